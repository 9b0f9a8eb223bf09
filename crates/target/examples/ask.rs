//! Asks an agent that runs, on its socket: for tests on machines where nothing but the programs themselves is.
//!
//! `ask SOCKET contract DIRECTORY` puts it through the suites that every target passes; the bytes of volumes are read and
//! written in the agent's directory. `create VOLUME SIZE`, `grow VOLUME SIZE`, `delete VOLUME`, `snapshot NAME VOLUME`,
//! `allow VOLUME NODE EPOCH rw|ro` (which prints what the node is told), `revoke VOLUME NODE EPOCH` and `exports` ask for one thing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed check is a panic"
)]

use bowline_core::{Epoch, Mode, NodeId, Share, SnapshotId, VolumeId};
use bowline_target::agent::{AgentClient, ClientSettings, Place};
use bowline_target::contract::{self, provision::Bytes};
use bowline_target::{Cut, Grant, NewVolume, Progress, Provision, Revocation, Target};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

struct Raw(PathBuf);

impl Raw {
    fn file(&self, volume: &VolumeId, write: bool) -> File {
        File::options().read(true).write(write).open(self.0.join(format!("vol-{volume}.data"))).unwrap()
    }
}

impl Bytes for Raw {
    fn write(&self, volume: &VolumeId, offset: u64, bytes: &[u8]) {
        self.file(volume, true).write_all_at(bytes, offset).unwrap();
    }
    fn read(&self, volume: &VolumeId, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.file(volume, false).read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }
}

async fn contract(client: &AgentClient, directory: &Raw) {
    let volumes = ["c1", "c2", "c3"].map(|id| VolumeId::new(id).unwrap());
    for volume in &volumes {
        client.create(&order(volume, 1 << 20), &Progress::default()).await.unwrap();
    }
    contract::run(client, &volumes).await;
    for volume in &volumes {
        client.delete(volume).await.unwrap();
    }
    contract::provision::run(client, directory, "contract-").await;
    println!("the contract is kept");
}

fn order(volume: &VolumeId, size: u64) -> NewVolume {
    NewVolume { volume: volume.clone(), name: volume.to_string(), size, source: None }
}

fn grant(volume: &VolumeId, node: &str, epoch: &str, access: &str) -> Grant {
    let share = if access == "rw" { Share::Writers } else { Share::Readers };
    Grant {
        volume: volume.clone(),
        node: NodeId::new(node).unwrap(),
        epoch: Epoch::new(epoch.parse().unwrap()),
        mode: Mode { write: access == "rw", frontend: true, share },
    }
}

async fn ask(client: &AgentClient, words: &[&str]) -> Result<(), String> {
    let volume = |id: &str| VolumeId::new(id).unwrap();
    let told = |error: &dyn std::fmt::Display| error.to_string();
    match *words {
        ["contract", directory] => contract(client, &Raw(directory.into())).await,
        ["create", id, size] => {
            let order = order(&volume(id), size.parse().unwrap());
            client.create(&order, &Progress::default()).await.map_err(|error| told(&error))?;
        }
        ["grow", id, size] => {
            client.grow(&volume(id), size.parse().unwrap()).await.map_err(|error| told(&error))?;
        }
        ["delete", id] => client.delete(&volume(id)).await.map_err(|error| told(&error))?,
        ["snapshot", name, id] => {
            let snapshot = SnapshotId::new(name).unwrap();
            let cut = Cut { snapshot, name: name.to_owned(), volume: volume(id) };
            client.snapshot(&[cut], &Progress::default()).await.map_err(|error| told(&error))?;
        }
        ["allow", id, node, epoch, access] => {
            let grant = grant(&volume(id), node, epoch, access);
            client.allow(&grant).await.map_err(|error| told(&error))?;
            for (key, value) in client.context(&grant) {
                println!("{}={value}", key.trim_start_matches("bowline.storage/"));
            }
        }
        ["revoke", id, node, epoch] => {
            let Grant { volume, node, epoch, .. } = grant(&volume(id), node, epoch, "rw");
            let revocation = Revocation { volume, node, epoch, fence: true };
            client.revoke(&revocation).await.map_err(|error| told(&error))?;
        }
        ["exports"] => {
            println!("{:?}", client.exports(None, 1000).await.map_err(|error| told(&error))?.listings);
        }
        _ => return Err(format!("what is {words:?}?")),
    }
    Ok(())
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (socket, words) = words.split_first().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let asked = runtime.block_on(async {
        let place = Place::Unix(PathBuf::from(socket));
        let client = AgentClient::connect(place, None, ClientSettings::default()).await.unwrap();
        ask(&client, words).await
    });
    if let Err(error) = asked {
        println!("{error}");
        std::process::exit(1);
    }
}
