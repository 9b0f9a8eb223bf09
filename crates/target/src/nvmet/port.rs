//! Where the kernel listens: one port for each address.

use super::kernel::{Fault, Kernel};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// One port of the kernel's target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Port(String);

impl Port {
    fn directory(&self) -> PathBuf {
        Path::new("ports").join(&self.0)
    }

    /// The link that shows a subsystem there.
    pub(super) fn link(&self, subsystem: &str) -> PathBuf {
        self.directory().join("subsystems").join(subsystem)
    }
}

/// What a port listens at, by attribute. The transport is last: without it, a port is none.
fn attributes(address: SocketAddr) -> [(&'static str, String); 4] {
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    [
        ("addr_traddr", address.ip().to_string()),
        ("addr_trsvcid", address.port().to_string()),
        ("addr_adrfam", family.to_owned()),
        ("addr_trtype", "tcp".to_owned()),
    ]
}

/// Every port there is, whosever it is.
pub(super) fn all(kernel: &Kernel) -> Result<Vec<Port>, Fault> {
    let mut ports: Vec<_> = kernel.list(Path::new("ports"))?.into_iter().map(Port).collect();
    ports.sort();
    Ok(ports)
}

/// The port of an address. One that is there is used, whoever made it: the kernel listens at an address once. Another one gets
/// the first number from the address's own on that nobody has; what others have is not touched.
pub(super) fn ensure(kernel: &Kernel, address: SocketAddr) -> Result<Port, Fault> {
    let wanted = attributes(address);
    for port in all(kernel)? {
        let has = |(name, value): &(&str, String)| {
            kernel.read(&port.directory().join(name)).map(|found| found == *value)
        };
        let [address, service, family, transport] = &wanted;
        if !has(address)? || !has(service)? {
            continue;
        }
        // Ours, and a crash came before it was whole; or whole.
        let half_made = kernel.read(&port.directory().join(transport.0))?.is_empty();
        if half_made || (has(family)? && has(transport)?) {
            return complete(kernel, port, &wanted);
        }
    }
    let mut number = address.port();
    loop {
        let port = Port(number.to_string());
        if !kernel.exists(&port.directory())? {
            kernel.make(&port.directory())?;
            return complete(kernel, port, &wanted);
        }
        // There are fewer ports than numbers: each listens at an address of this machine.
        number = number.checked_add(1).unwrap_or(1);
    }
}

fn complete(kernel: &Kernel, port: Port, wanted: &[(&str, String)]) -> Result<Port, Fault> {
    for (name, value) in wanted {
        kernel.set(&port.directory().join(name), value)?;
    }
    Ok(port)
}
