//! What waits for the kernel because of a device, and for how long that is believed to be right.
//!
//! A connection that the kernel takes for live and that is dead keeps whoever waits for its device for ever (Linux 6.1; see `docs/nvme.md`). So
//! somebody looks at the clock meanwhile. Nothing is taken away from under a filesystem that is being flushed: a slow flush must not lose data.

use crate::devices::Devices;
use crate::event::Event;
use crate::node::ThisNode;
use bowline_core::{Epoch, VolumeId};
use bowline_host::DeviceNumber;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

/// The pause before the connections are reset once more.
const AGAIN: Duration = Duration::from_secs(60);

/// A grant of a volume, and where its device comes from.
pub(crate) type Way<'a> = (&'a dyn Devices, Epoch);

impl ThisNode {
    /// Does work that may wait for the devices of these grants of a volume. If it waits longer than the kernel waits for a connection that it
    /// knows to be lost, they are reset.
    pub(crate) fn watched<T>(&self, volume: &VolumeId, over: &[Way<'_>], work: impl FnOnce() -> T) -> T {
        let Some(patience) = over.iter().filter_map(|(devices, _)| devices.patience()).max() else {
            return work();
        };
        let (working, done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let watch = move || self.watch(volume, over, patience, &done);
            if let Err(error) =
                std::thread::Builder::new().name("watch".to_owned()).spawn_scoped(scope, watch)
            {
                tracing::warn!(%volume, %error, "nobody looks whether its connections only count as live");
            }
            // Its end, also by a panic, is the end of the watch.
            let _working = working;
            work()
        })
    }

    fn watch(&self, volume: &VolumeId, over: &[Way<'_>], patience: Duration, done: &Receiver<()>) {
        let mut pause = patience;
        while done.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            over.iter().for_each(|way| self.reset(volume, *way));
            pause = AGAIN;
        }
    }

    /// A program that was ended and does not go, or that an earlier process of this node left behind, waits in the kernel, too, and nobody looks at
    /// the clock for it any more.
    pub(crate) fn reset_under_a_program(&self, volume: &VolumeId, way: Way<'_>, device: DeviceNumber) {
        if self.host.is_in_a_programs_hands(device) {
            self.reset(volume, way);
        }
    }

    fn reset(&self, volume: &VolumeId, (devices, epoch): Way<'_>) {
        match devices.reset(volume, &self.id, epoch) {
            Ok(0) => {}
            Ok(connections) => self.tell(volume, &Event::Reset { epoch, connections }),
            Err(error) => tracing::warn!(%volume, %epoch, %error, "its connections could not be reset"),
        }
    }
}
