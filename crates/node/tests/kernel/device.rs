//! Sources of devices: one that can be made to wait, and to lose them; and one whose devices become another's.

use bowline_core::{Epoch, NodeId, VolumeId};
use bowline_node::{Device, Devices, DevicesError, Grant, Remains};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Passes everything on to another one.
pub(crate) struct Troubled {
    pub(crate) inner: Arc<dyn Devices>,
    /// The devices cannot be found, as if they had been pulled out.
    pub(crate) lost: AtomicBool,
    gate: Gate,
}

/// Where `connect` waits while the gate is shut.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Troubled {
    pub(crate) fn new(inner: Arc<dyn Devices>) -> Arc<Self> {
        Arc::new(Self { inner, lost: AtomicBool::new(false), gate: Gate::default() })
    }

    pub(crate) fn shut(&self) {
        self.gate.state.lock().unwrap().0 = true;
    }

    pub(crate) fn open(&self) {
        self.gate.state.lock().unwrap().0 = false;
        self.gate.changed.notify_all();
    }

    /// Until somebody stands at the gate.
    pub(crate) fn await_visitor(&self) {
        drop(self.gate.changed.wait_while(self.gate.state.lock().unwrap(), |state| state.1 == 0).unwrap());
    }

    fn pass(&self) {
        let mut state = self.gate.state.lock().unwrap();
        state.1 += 1;
        self.gate.changed.notify_all();
        let mut state = self.gate.changed.wait_while(state, |state| state.0).unwrap();
        state.1 -= 1;
    }

    fn answer(&self) -> Result<(), DevicesError> {
        if self.lost.load(Ordering::SeqCst) {
            return Err(DevicesError::Unreachable("the target does not answer".to_owned()));
        }
        Ok(())
    }
}

impl Devices for Troubled {
    fn identity(&self, grant: &Grant) -> String {
        self.inner.identity(grant)
    }

    fn connect(&self, grant: &Grant) -> Result<Device, DevicesError> {
        self.pass();
        self.answer()?;
        self.inner.connect(grant)
    }

    fn find(&self, volume: &VolumeId, node: &NodeId) -> Result<Vec<Device>, DevicesError> {
        if self.answer().is_err() { Ok(Vec::new()) } else { self.inner.find(volume, node) }
    }

    fn disconnect(&self, volume: &VolumeId, node: &NodeId, epoch: Epoch) -> Result<(), DevicesError> {
        self.inner.disconnect(volume, node, epoch)
    }

    fn refresh(&self, grant: &Grant, device: &Device, at_least: u64) -> Result<u64, DevicesError> {
        self.answer()?;
        self.inner.refresh(grant, device, at_least)
    }

    fn check(&self) -> Result<(), DevicesError> {
        self.answer()
    }
}

/// Passes everything on to another one, and does something once, right after a call was answered.
pub(crate) struct Fleeting {
    inner: Arc<dyn Devices>,
    then: Mutex<Option<Then>>,
}

/// After which call, and what.
type Then = (&'static str, Box<dyn FnOnce() + Send>);

impl Fleeting {
    pub(crate) fn new(inner: Arc<dyn Devices>) -> Arc<Self> {
        Arc::new(Self { inner, then: Mutex::default() })
    }

    pub(crate) fn after(&self, call: &'static str, then: impl FnOnce() + Send + 'static) {
        *self.then.lock().unwrap() = Some((call, Box::new(then)));
    }

    fn told<T>(&self, call: &str, answer: T) -> T {
        let then = self.then.lock().unwrap().take_if(|(after, _)| *after == call);
        then.into_iter().for_each(|(_, then)| then());
        answer
    }
}

impl Devices for Fleeting {
    fn identity(&self, grant: &Grant) -> String {
        self.inner.identity(grant)
    }

    fn connect(&self, grant: &Grant) -> Result<Device, DevicesError> {
        self.told("connect", self.inner.connect(grant))
    }

    fn find(&self, volume: &VolumeId, node: &NodeId) -> Result<Vec<Device>, DevicesError> {
        self.told("find", self.inner.find(volume, node))
    }

    fn get(&self, grant: &Grant) -> Result<Option<Device>, DevicesError> {
        self.told("get", self.inner.get(grant))
    }

    fn remains(&self, volume: &VolumeId, node: &NodeId) -> Result<Vec<Remains>, DevicesError> {
        self.inner.remains(volume, node)
    }

    fn disconnect(&self, volume: &VolumeId, node: &NodeId, epoch: Epoch) -> Result<(), DevicesError> {
        self.inner.disconnect(volume, node, epoch)
    }

    fn refresh(&self, grant: &Grant, device: &Device, at_least: u64) -> Result<u64, DevicesError> {
        self.inner.refresh(grant, device, at_least)
    }

    fn check(&self) -> Result<(), DevicesError> {
        self.inner.check()
    }
}
