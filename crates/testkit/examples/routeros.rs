//! A simulated RouterOS device whose disks this machine's kernel exports over NVMe/TCP: what machines of the VM lab have instead of
//! the hardware. It runs until it is ended, and forgets its disks then.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a broken test shall stop at once, and what it says is what it is for"
)]

use bowline_target::nvmet::Configfs;
use bowline_testkit::routeros::{Firmware, Login, RouterOs, SshServer};
use std::net::SocketAddr;
use std::sync::Arc;

// A command that waits for the kernel blocks its thread.
#[tokio::main(flavor = "multi_thread", worker_threads = 4)]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, directory, user, password] = words.as_slice() else {
        panic!("usage: routeros ADDRESS DIRECTORY USER PASSWORD");
    };
    let address: SocketAddr = address.parse().expect("an address is IP:PORT");
    let device = RouterOs::in_directory(Firmware::default(), directory);
    device.export_by(Arc::new(Configfs::new("/sys/kernel/config/nvmet")), address.ip());
    let login = Login { user: user.clone(), password: Some(password.clone()), keys: vec![] };
    let server = SshServer::start_at(device, login, address).await;
    println!("host key {}", server.host_key().fingerprint());
    std::future::pending::<()>().await;
}
