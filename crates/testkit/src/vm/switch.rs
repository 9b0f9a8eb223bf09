//! The network of a VM lab: an Ethernet switch in this process, whose every connection can be cut.
//!
//! A machine's network card is a stream of frames on a unix socket, each after its length (`-netdev stream` of QEMU). So nothing of the
//! network is outside the lab, and nothing needs rights.

use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

/// A frame with everything that cards may add to it; what they hand over undivided (segmentation offload) is longer.
const LONGEST: usize = 128 << 10;
/// How much waits for a machine that does not take it, before frames are dropped as a switch does.
const QUEUE: usize = 1024;

type Name = Arc<str>;

/// What the switch knows.
#[derive(Default)]
struct Table {
    /// Who is connected, and the way to it.
    ports: HashMap<Name, SyncSender<Arc<[u8]>>>,
    /// Behind which port a card is, as learned from what it sent.
    cards: HashMap<[u8; 6], Name>,
    /// From whom nothing reaches whom.
    cuts: BTreeSet<(Name, Name)>,
}

impl Table {
    /// Where a frame goes: to its receiver if that is known, to everybody otherwise.
    fn ways(&mut self, from: &Name, frame: &[u8]) -> Vec<SyncSender<Arc<[u8]>>> {
        let Some((to, rest)) = frame.split_first_chunk::<6>() else { return vec![] };
        let Some(card) = rest.first_chunk::<6>() else { return vec![] };
        self.cards.insert(*card, Arc::clone(from));
        let known = self.cards.get(to).cloned();
        let ports = self.ports.iter().filter(|(name, _)| match &known {
            Some(known) => *name == known,
            None => *name != from,
        });
        ports
            .filter(|(name, _)| !self.cuts.contains(&(Arc::clone(from), Arc::clone(name))))
            .map(|(_, way)| way.clone())
            .collect()
    }
}

/// The switch of one lab.
#[derive(Clone, Default)]
pub(super) struct Switch {
    table: Arc<Mutex<Table>>,
}

impl Switch {
    /// A socket on which the card of a machine connects, again and again.
    pub(super) fn add(&self, name: &str, socket: &Path) {
        let listener = UnixListener::bind(socket).unwrap();
        let name: Name = name.into();
        let switch = self.clone();
        thread::spawn(move || {
            for card in listener.incoming() {
                let Ok(card) = card else { return };
                switch.connect(&name, card);
            }
        });
    }

    fn connect(&self, name: &Name, card: UnixStream) {
        let (way, queue) = sync_channel(QUEUE);
        self.table.lock().unwrap().ports.insert(Arc::clone(name), way);
        let Ok(out) = card.try_clone() else { return };
        thread::spawn(move || deliver(out, &queue));
        let (switch, name) = (self.clone(), Arc::clone(name));
        thread::spawn(move || switch.forward(&name, card));
    }

    /// Takes what a machine sends until its card is gone.
    fn forward(&self, from: &Name, mut card: UnixStream) {
        let mut length = [0; 4];
        while card.read_exact(&mut length).is_ok() {
            let long = u32::from_be_bytes(length) as usize;
            assert!(long <= LONGEST, "{from} sends {long} bytes at once: this is not QEMU");
            let mut frame = vec![0; 4 + long];
            frame[..4].copy_from_slice(&length);
            if card.read_exact(&mut frame[4..]).is_err() {
                return;
            }
            let ways = self.table.lock().unwrap().ways(from, &frame[4..]);
            let frame: Arc<[u8]> = frame.into();
            for way in ways {
                let _ = way.try_send(Arc::clone(&frame));
            }
        }
    }

    /// From now on nothing of one reaches the other.
    pub(super) fn cut(&self, from: &str, to: &str) {
        self.table.lock().unwrap().cuts.insert((from.into(), to.into()));
    }

    /// Takes a cut back.
    pub(super) fn mend(&self, from: &str, to: &str) {
        self.table.lock().unwrap().cuts.remove(&(from.into(), to.into()));
    }
}

fn deliver(mut card: UnixStream, queue: &Receiver<Arc<[u8]>>) {
    for frame in queue {
        if card.write_all(&frame).is_err() {
            return;
        }
    }
}
