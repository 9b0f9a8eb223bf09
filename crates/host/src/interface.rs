//! The addresses of this machine's interfaces, as the kernel tells them over netlink (rtnetlink(7)).
//!
//! Not from `/proc/net/fib_trie`: that is a picture of routes for people, in which what is routed to this machine looks like an address
//! of it, and which may be torn while routes change. Netlink says when an answer is torn.
//!
//! Numbers and layouts are those of `linux/netlink.h`, `linux/rtnetlink.h` and `linux/if_addr.h`.

use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use std::io;
use std::net::{IpAddr, UdpSocket};

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLA_TYPE_MASK: u16 = 0x3fff;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_TEMPORARY: u32 = 0x01;
const IFA_F_DEPRECATED: u32 = 0x20;

/// The length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// The length of `struct ifaddrmsg`.
const ABOUT: usize = 8;
/// The kernel fills at most 32 KiB at a time.
const BUFFER: usize = 64 << 10;
/// How often it is asked again because something changed meanwhile.
const ATTEMPTS: usize = 10;

/// Why it is not known which addresses this machine has.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// The kernel does not say.
    #[error("the kernel does not say which addresses this machine has: {0}")]
    Io(#[source] io::Error),
    /// What it says is not what rtnetlink(7) describes.
    #[error("what the kernel says of this machine's addresses cannot be read")]
    Unreadable,
    /// They were others at every look.
    #[error("this machine's addresses change all the time")]
    Changing,
}

impl From<Errno> for InterfaceError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// What one datagram of the kernel's answer says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Addresses that will stay. Not temporary ones, which IPv6 changes every day, nor deprecated ones, which nobody is to
    /// begin to use.
    pub addresses: Vec<IpAddr>,
    /// There were others while they were listed: some may be missing.
    pub is_torn: bool,
    /// There are no more.
    pub is_last: bool,
}

/// The addresses at which this machine can listen now, in the network of the calling process.
pub fn addresses() -> Result<Vec<IpAddr>, InterfaceError> {
    for _ in 0..ATTEMPTS {
        if let Some(mut found) = look()? {
            found.retain(|address| is_up(*address));
            return Ok(found);
        }
    }
    Err(InterfaceError::Changing)
}

/// An address is there also while its interface is down, or while IPv6 still asks whether somebody else has it: the kernel
/// then lets nobody listen at it.
fn is_up(address: IpAddr) -> bool {
    let tried = UdpSocket::bind((address, 0));
    !tried.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
}

/// `None`: the list was torn.
fn look() -> Result<Option<Vec<IpAddr>>, InterfaceError> {
    // Without a protocol it is NETLINK_ROUTE, which is 0.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    sendto(&socket, &question(), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut buffer = vec![0; BUFFER];
    let mut found = Vec::new();
    let mut is_torn = false;
    loop {
        let (_, length) = retry_on_intr(|| recv(&socket, buffer.as_mut_slice(), RecvFlags::TRUNC))?;
        let part = parse(buffer.get(..length).ok_or(InterfaceError::Unreadable)?)?;
        found.extend(part.addresses);
        is_torn |= part.is_torn;
        if part.is_last {
            return Ok((!is_torn).then_some(found));
        }
    }
}

/// All addresses, of every family.
fn question() -> Vec<u8> {
    let length = u32::try_from(HEADER + ABOUT).unwrap_or_default();
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(RTM_GETADDR.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes.resize(HEADER + ABOUT, 0);
    bytes
}

/// Reads one datagram.
pub fn parse(mut bytes: &[u8]) -> Result<Part, InterfaceError> {
    let mut part = Part::default();
    while !bytes.is_empty() {
        let message = Message::first(bytes).ok_or(InterfaceError::Unreadable)?;
        part.is_torn |= message.flags & NLM_F_DUMP_INTR != 0;
        match message.kind {
            RTM_NEWADDR => {
                let address = message.address().ok_or(InterfaceError::Unreadable)?;
                part.addresses.extend(address.filter(Told::stays).map(|told| told.address));
            }
            NLMSG_DONE => {
                // An answer that ends early says why in its last message.
                failed(message.body)?;
                part.is_last = true;
                return Ok(part);
            }
            NLMSG_ERROR => {
                failed(message.body)?;
                return Err(InterfaceError::Unreadable);
            }
            _ => {}
        }
        bytes = after(bytes, HEADER + message.body.len());
    }
    Ok(part)
}

fn failed(body: &[u8]) -> Result<(), InterfaceError> {
    let code = i32::from_ne_bytes(at(body, 0).ok_or(InterfaceError::Unreadable)?);
    if code == 0 {
        return Ok(());
    }
    let code = code.checked_neg().filter(|code| *code > 0).ok_or(InterfaceError::Unreadable)?;
    Err(InterfaceError::Io(io::Error::from_raw_os_error(code)))
}

struct Message<'a> {
    kind: u16,
    flags: u16,
    body: &'a [u8],
}

/// One address, as it is told.
struct Told {
    address: IpAddr,
    flags: u32,
}

impl Told {
    fn stays(&self) -> bool {
        // For IPv4 the same bit says that another address of the network was there first.
        let is_temporary = self.address.is_ipv6() && self.flags & IFA_F_TEMPORARY != 0;
        !is_temporary && self.flags & IFA_F_DEPRECATED == 0
    }
}

impl<'a> Message<'a> {
    fn first(bytes: &'a [u8]) -> Option<Self> {
        let length = usize::try_from(u32::from_ne_bytes(at(bytes, 0)?)).ok()?;
        let kind = u16::from_ne_bytes(at(bytes, 4)?);
        let flags = u16::from_ne_bytes(at(bytes, 6)?);
        Some(Self { kind, flags, body: bytes.get(HEADER..length)? })
    }

    /// `Some(None)`: of another family than ours.
    fn address(&self) -> Option<Option<Told>> {
        let [family, _, flags, _] = at(self.body, 0)?;
        let mut flags = u32::from(flags);
        let (mut local, mut other) = (None, None);
        let mut rest = self.body.get(ABOUT..)?;
        while !rest.is_empty() {
            let length = usize::from(u16::from_ne_bytes(at(rest, 0)?));
            let kind = u16::from_ne_bytes(at(rest, 2)?) & NLA_TYPE_MASK;
            let value = rest.get(4..length)?;
            match kind {
                IFA_LOCAL => local = Some(value),
                IFA_ADDRESS => other = Some(value),
                // Wider than the byte in front.
                IFA_FLAGS => flags = u32::from_ne_bytes(at(value, 0)?),
                _ => {}
            }
            rest = after(rest, length);
        }
        // Where an interface leads to one other machine, IFA_ADDRESS is that machine's.
        let value = local.or(other);
        let address = match family {
            AF_INET => IpAddr::from(<[u8; 4]>::try_from(value?).ok()?),
            AF_INET6 => IpAddr::from(<[u8; 16]>::try_from(value?).ok()?),
            _ => return Some(None),
        };
        Some(Some(Told { address, flags }))
    }
}

fn at<const N: usize>(bytes: &[u8], place: usize) -> Option<[u8; N]> {
    bytes.get(place..)?.first_chunk().copied()
}

/// What comes after something of this length: everything begins at a multiple of four.
fn after(bytes: &[u8], length: usize) -> &[u8] {
    bytes.get(length.next_multiple_of(4)..).unwrap_or_default()
}

#[cfg(test)]
#[path = "interface_tests.rs"]
mod tests;
