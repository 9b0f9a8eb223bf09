//! A network as people write it (`10.1.0.0/24`, `fd00:1::/64`), and which addresses lie in it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Its first address: all other bits are 0.
    first: IpAddr,
    /// How many bits are the same; at least one.
    prefix: u8,
}

/// Why something is not a network that can be meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// It is not written as one.
    #[error("{0:?} is no network; write 10.1.0.0/24 or fd00:1::/64")]
    Unreadable(String),
    /// It is one address, with the size of its network.
    #[error("{typed} is an address with the size of its network; did you mean the network {network}?")]
    Address {
        /// What was written.
        typed: String,
        /// The network around it.
        network: Network,
    },
    /// It has every address.
    #[error("{0} is every network there is; name the one in which nodes reach this machine")]
    Everything(String),
}

/// What one machine has for itself (loopback), or for its neighbours alone (link-local).
const NEAR: [Network; 4] = [
    Network { first: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 },
    Network { first: IpAddr::V6(Ipv6Addr::LOCALHOST), prefix: 128 },
    Network { first: IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), prefix: 16 },
    Network { first: IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), prefix: 10 },
];

impl Network {
    /// Whether an address lies in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && first_of(address, self.prefix) == self.first
    }

    /// Those of a machine's addresses that are meant by it, each once and in their order. Loopback and link-local ones are
    /// meant only by a network of nothing else.
    pub fn of(&self, addresses: &[IpAddr]) -> Vec<IpAddr> {
        let is_near = |address| {
            NEAR.iter().any(|near| {
                let lies_in_it = near.contains(self.first) && near.prefix <= self.prefix;
                near.contains(address) && !lies_in_it
            })
        };
        let meant = addresses.iter().copied().filter(|one| self.contains(*one) && !is_near(*one));
        let mut meant: Vec<_> = meant.collect();
        meant.sort();
        meant.dedup();
        meant
    }
}

/// The first address of the network of this size around an address.
fn first_of(address: IpAddr, prefix: u8) -> IpAddr {
    let others = |bits: u8| u32::from(bits.saturating_sub(prefix));
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(others(32)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(others(128)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let unreadable = || NetworkError::Unreadable(text.to_owned());
        let (address, typed) = text.split_once('/').ok_or_else(unreadable)?;
        let address: IpAddr = address.parse().map_err(|_| unreadable())?;
        let prefix: u8 = typed.parse().map_err(|_| unreadable())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        // `+8` and `08` are numbers, too.
        if prefix > most || prefix.to_string() != typed {
            return Err(unreadable());
        }
        if prefix == 0 {
            return Err(NetworkError::Everything(text.to_owned()));
        }
        let network = Self { first: first_of(address, prefix), prefix };
        if network.first != address {
            return Err(NetworkError::Address { typed: text.to_owned(), network });
        }
        Ok(network)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_read_as_it_is_written() {
        for text in ["10.1.0.0/24", "10.0.0.0/8", "10.1.0.7/32", "128.0.0.0/1", "fd00:1::/64", "fd00::1/128"]
        {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_what_to_write() {
        for (text, told) in [
            ("10.1.0.7/24", "did you mean the network 10.1.0.0/24?"),
            ("10.1.2.3/1", "did you mean the network 0.0.0.0/1?"),
            ("fd00:1::7/64", "did you mean the network fd00:1::/64?"),
            ("0.0.0.0/0", "0.0.0.0/0 is every network"),
            ("10.0.0.1/0", "10.0.0.1/0 is every network"),
            ("::/0", "::/0 is every network"),
            ("10.1.0.0/33", "is no network; write 10.1.0.0/24"),
            ("fd00::/129", "is no network"),
            ("10.1.0.0/256", "is no network"),
            ("10.1.0.0/+8", "is no network"),
            ("10.1.0.0/024", "is no network"),
            ("10.1.0.0/", "is no network"),
            ("10.1.0.0", "is no network"),
            ("10.1.0/24", "is no network"),
            ("[fd00::]/64", "is no network"),
            ("10.1.0.0/24:4420", "is no network"),
            ("eth0/24", "is no network"),
            ("/", "is no network"),
        ] {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn a_network_means_the_addresses_in_it_and_no_near_ones_unless_it_has_only_such() {
        let machine = [
            "10.1.0.9",
            "127.0.0.1",
            "10.1.0.5",
            "10.1.0.5",
            "10.1.1.5",
            "169.254.3.4",
            "::1",
            "fe80::5",
            "fd00:1::5",
            "fd00:1:0:1::5",
            "::ffff:10.1.0.7",
        ];
        let machine: Vec<IpAddr> = machine.iter().map(|text| text.parse().unwrap()).collect();
        for (network, meant) in [
            ("10.1.0.0/24", &["10.1.0.5", "10.1.0.9"][..]),
            ("10.1.0.0/23", &["10.1.0.5", "10.1.0.9", "10.1.1.5"]),
            ("10.1.0.5/32", &["10.1.0.5"]),
            ("10.1.0.4/32", &[]),
            ("0.0.0.0/1", &["10.1.0.5", "10.1.0.9", "10.1.1.5"]),
            ("126.0.0.0/7", &[]),
            ("127.0.0.0/8", &["127.0.0.1"]),
            ("127.0.0.1/32", &["127.0.0.1"]),
            ("128.0.0.0/1", &[]),
            ("169.254.0.0/16", &["169.254.3.4"]),
            ("169.254.3.0/24", &["169.254.3.4"]),
            ("169.254.0.0/15", &[]),
            ("fd00:1::/64", &["fd00:1::5"]),
            ("fd00:1::/48", &["fd00:1::5", "fd00:1:0:1::5"]),
            ("::/1", &["::ffff:10.1.0.7"]),
            ("::1/128", &["::1"]),
            ("8000::/1", &["fd00:1::5", "fd00:1:0:1::5"]),
            ("fe80::/64", &["fe80::5"]),
        ] {
            let found = network.parse::<Network>().unwrap().of(&machine);
            let found: Vec<_> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found, meant, "{network}");
        }
    }
}
