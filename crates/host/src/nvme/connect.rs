//! Connecting: one command to `/dev/nvme-fabrics` for each address.

use super::sysfs::{Address, attribute};
use super::{BlockNode, Controller, ControllerState, LINGER, Nvme, NvmeError, Settings, until, write};
use bowline_core::{MODEL_OF_BLANK, NvmeNames};
use bowline_failpoint::pass;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// What it takes to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// Whom to connect to, as whom, and which namespace is wanted.
    pub names: NvmeNames,
    /// Where; each becomes a connection of its own if the kernel makes one disk of them.
    pub addresses: Vec<SocketAddr>,
}

/// An address that was not connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub address: SocketAddr,
    /// Why.
    pub why: String,
}

/// A device that is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// The device.
    pub node: BlockNode,
    /// Whether its target says that it was blank before it was shown for this grant.
    pub was_blank: bool,
    /// The addresses through which it is not reached; the others suffice.
    pub failures: Vec<Failure>,
}

/// What the kernel answers to a connect that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The number of the new controller on this machine. Says nothing about the number of its disk.
    pub instance: u32,
    /// Its number at the target.
    pub cntlid: u32,
}

impl Answer {
    /// From `instance=3,cntlid=17`.
    pub fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let digits =
                text.trim().split(',').find_map(|word| word.trim().strip_prefix(key)?.strip_prefix('='))?;
            let number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            number.then(|| digits.parse().ok()).flatten()
        };
        Some(Self { instance: value("instance")?, cntlid: value("cntlid")? })
    }
}

/// Address and port, as a connect says them and sysfs repeats them.
pub(super) fn words(address: SocketAddr) -> Address {
    Address { traddr: address.ip().to_string(), trsvcid: address.port().to_string() }
}

/// The command that connects to an address.
fn command(names: &NvmeNames, address: SocketAddr, settings: &Settings) -> Result<String, NvmeError> {
    let NvmeNames { subsystem, host, host_id, .. } = names;
    for word in [subsystem, host, host_id] {
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, ',' | '=');
        if word.is_empty() || !word.chars().all(plain) {
            return Err(NvmeError::Word(word.clone()));
        }
    }
    let Address { traddr, trsvcid } = words(address);
    let Settings { keep_alive, reconnect_delay, fail_io_after, give_up_after, .. } = settings;
    // Both names of the host, always: kernels take one without the other for another host.
    Ok(format!(
        "transport=tcp,traddr={traddr},trsvcid={trsvcid},nqn={subsystem},hostnqn={host},hostid={host_id},\
         keep_alive_tmo={keep_alive},reconnect_delay={reconnect_delay},fast_io_fail_tmo={fail_io_after},\
         ctrl_loss_tmo={give_up_after}"
    ))
}

/// Failures, for people.
pub(super) fn listed(failures: &[Failure]) -> String {
    let mut said = String::new();
    for Failure { address, why } in failures {
        let between = if said.is_empty() { "" } else { "; " };
        let _ = write!(said, "{between}{address}: {why}");
    }
    if said.is_empty() { "it has no address".to_owned() } else { said }
}

/// One connect at a time in this process; whoever writes it sees to the others on the machine.
#[derive(Debug, Default)]
pub(super) struct Turn {
    taken: Mutex<bool>,
    free: Condvar,
}

impl Turn {
    /// Runs the work when nobody else's is running; `None` if that does not come to an end in time.
    fn run<T>(&self, patience: Duration, work: impl FnOnce() -> T) -> Option<T> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.free.wait_timeout_while(taken, patience, |taken| *taken);
        let (mut taken, over) = waited.unwrap_or_else(PoisonError::into_inner);
        if over.timed_out() && *taken {
            return None;
        }
        *taken = true;
        drop(taken);
        let _end = End(self);
        Some(work())
    }
}

struct End<'a>(&'a Turn);

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.free.notify_one();
    }
}

/// Whether a connection leads there, or is on its way.
fn is_used(controllers: &[Controller], address: &SocketAddr) -> bool {
    controllers.iter().any(|one| one.leads_to(*address) && !matches!(one.state, ControllerState::Dead))
}

impl Nvme {
    /// The device of a namespace, connected if it is not yet, and proven to be that namespace's.
    ///
    /// Without native multipath one connection is made and no more: two would be two disks with the same bytes.
    pub fn connect(&self, login: &Login) -> Result<Connected, NvmeError> {
        self.connect_while(login, &|_| true)
    }

    /// The same. Once there is a device, further connections, each of which may take long, are made only if it `is_wanted`.
    pub fn connect_while(
        &self,
        login: &Login,
        is_wanted: &dyn Fn(&BlockNode) -> bool,
    ) -> Result<Connected, NvmeError> {
        let NvmeNames { subsystem: nqn, host, .. } = &login.names;
        let known = self.subsystem(nqn)?;
        let controllers = known.map(|subsystem| subsystem.controllers).unwrap_or_default();
        if let Some(other) = controllers.iter().find(|one| one.host_nqn != *host) {
            let (found, expected) = (other.host_nqn.clone(), host.clone());
            return Err(NvmeError::OtherHost { nqn: nqn.clone(), found, expected });
        }
        if !controllers.is_empty() {
            self.await_device(login)?;
        }
        let alone = !self.is_multipath();
        let mut reached = controllers.len();
        let mut failures = Vec::new();
        let mut was_shown = false;
        for address in login.addresses.iter().filter(|address| !is_used(&controllers, address)) {
            if alone && reached > 0 {
                break;
            }
            if reached > 0 && !std::mem::replace(&mut was_shown, true) && !self.is_wanted(login, is_wanted)? {
                break;
            }
            if login.addresses.len() > 1
                && let Err(error) = self.kernel.answers(*address, self.settings.answer_within)
            {
                failures.push(Failure { address: *address, why: error.to_string() });
                continue;
            }
            match self.reach(&login.names, *address) {
                Ok(()) => reached += 1,
                Err(
                    error @ (NvmeError::Word(_) | NvmeError::Foreign { .. } | NvmeError::NoModule { .. }),
                ) => {
                    return Err(error);
                }
                Err(error) => failures.push(Failure { address: *address, why: error.to_string() }),
            }
        }
        if reached == 0 {
            return Err(NvmeError::Connect { nqn: nqn.clone(), failures });
        }
        let node = self.await_device(login)?;
        let was_blank = self.was_blank(&node, nqn)?;
        Ok(Connected { node, was_blank, failures })
    }

    /// Whether the device of a login is wanted. One that does not come soon is left to whoever waits for it.
    fn is_wanted(&self, login: &Login, is_wanted: &dyn Fn(&BlockNode) -> bool) -> Result<bool, NvmeError> {
        let NvmeNames { subsystem: nqn, namespace, .. } = &login.names;
        let time = self.settings.appear_within.min(LINGER);
        Ok(until(time, || self.resolve(nqn, namespace))?.is_none_or(|node| is_wanted(&node)))
    }

    fn was_blank(&self, node: &BlockNode, nqn: &str) -> Result<bool, NvmeError> {
        // Both the subsystem above a multipath disk and the controller above a plain one say what they are, and whose.
        let above = self.host.roots.sys.join(format!("dev/block/{}/device", node.number));
        Ok(attribute(&above, "model")?.as_deref() == Some(MODEL_OF_BLANK)
            && attribute(&above, "subsysnqn")?.as_deref() == Some(nqn))
    }

    /// Whether a subsystem is connected, but not to one of its addresses where somebody answers. Changes nothing.
    pub fn is_worth_another_connect(&self, login: &Login) -> Result<bool, NvmeError> {
        let known = self.subsystem(&login.names.subsystem)?;
        let controllers = known.map(|subsystem| subsystem.controllers).unwrap_or_default();
        let answers =
            |address: &SocketAddr| self.kernel.answers(*address, self.settings.answer_within).is_ok();
        let mut lost = login.addresses.iter().filter(|address| !is_used(&controllers, address));
        Ok(self.is_multipath() && !controllers.is_empty() && lost.any(answers))
    }

    fn reach(&self, names: &NvmeNames, address: SocketAddr) -> Result<(), NvmeError> {
        let command = command(names, address, &self.settings)?;
        let file = self.host.roots.dev.join(write::FABRICS);
        let limit = self.settings.connect_within;
        pass("host.nvme-connect.before");
        let written = self.turn.run(limit, || self.kernel.write(&file, &command, limit));
        let late = || write::WriteError::TimedOut { file: file.clone(), limit };
        let answer = match written.unwrap_or_else(|| Err(late())) {
            Ok(answer) => answer,
            // Somebody was faster. Whether it leads to our device is looked at by the caller.
            Err(error) if matches!(error.errno(), Some(libc::EALREADY | libc::EINPROGRESS)) => return Ok(()),
            Err(error) if error.errno() == Some(libc::ENOENT) => return Err(NvmeError::NoModule { file }),
            Err(error) => return Err(error.into()),
        };
        pass("host.nvme-connect.after");
        match Answer::parse(&answer) {
            Some(_) => Ok(()),
            None => {
                let error = std::io::Error::other(format!("it answered {answer:?}"));
                Err(write::WriteError::Refused { file, error }.into())
            }
        }
    }

    /// The device of a subsystem that is connected; one that has none is disconnected.
    fn await_device(&self, login: &Login) -> Result<BlockNode, NvmeError> {
        let NvmeNames { subsystem: nqn, namespace, .. } = &login.names;
        let found = until(self.settings.appear_within, || self.resolve(nqn, namespace))?;
        found.ok_or_else(|| self.orphan(login))
    }

    /// What to say of a subsystem that is connected and of no use; it is disconnected, if that can be done.
    fn orphan(&self, login: &Login) -> NvmeError {
        let NvmeNames { subsystem: nqn, host, .. } = &login.names;
        match self.disconnect(nqn, host) {
            Ok(()) => NvmeError::Orphaned { nqn: nqn.clone(), waited: self.settings.appear_within },
            Err(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_core::{Epoch, NodeId, VolumeId};
    use proptest::prelude::*;

    fn names() -> NvmeNames {
        let (volume, node) = (VolumeId::new("v").unwrap(), NodeId::new("n").unwrap());
        NvmeNames::new("storage", &volume, &node, Epoch::new(7))
    }

    #[test]
    fn a_connect_says_this_to_the_kernel() {
        for (address, traddr) in [("10.0.0.1:4420", "10.0.0.1"), ("[fd00::1]:4420", "fd00::1")] {
            let said = command(&names(), address.parse().unwrap(), &Settings::default()).unwrap();
            let NvmeNames { subsystem, host, host_id, .. } = names();
            assert_eq!(
                said,
                format!(
                    "transport=tcp,traddr={traddr},trsvcid=4420,nqn={subsystem},hostnqn={host},hostid={host_id},\
                     keep_alive_tmo=5,reconnect_delay=2,fast_io_fail_tmo=15,ctrl_loss_tmo=60"
                )
            );
        }
    }

    #[test]
    fn what_would_say_more_than_a_name_is_not_said() {
        for bad in ["", "a,hostnqn=b", "a=b", "a\nb", "ä"] {
            let names = NvmeNames { host: bad.to_owned(), ..names() };
            let said = command(&names, "10.0.0.1:1".parse().unwrap(), &Settings::default());
            assert!(matches!(said, Err(NvmeError::Word(_))), "{bad:?}");
        }
    }

    #[test]
    fn the_kernels_answer_is_understood() {
        for (text, expected) in [
            ("instance=0,cntlid=1\n", Some((0, 1))),
            ("instance=12,cntlid=65535", Some((12, 65_535))),
            ("cntlid=3, instance=4", Some((4, 3))),
            ("instance=0", None),
            ("instance=,cntlid=1", None),
            ("instance=-1,cntlid=1", None),
            ("instance=99999999999,cntlid=1", None),
            ("", None),
        ] {
            let answer = expected.map(|(instance, cntlid)| Answer { instance, cntlid });
            assert_eq!(Answer::parse(text), answer, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_is_a_panic(text in ".*") {
            let _ = Answer::parse(&text);
            let _ = Address::parse(&text);
        }
    }

    #[test]
    fn connects_wait_for_each_other_and_not_for_ever() {
        let turn = Turn::default();
        let long = Duration::from_secs(30);
        let inner = turn.run(long, || turn.run(Duration::from_millis(1), || ()));
        assert_eq!(inner, Some(None), "one at a time");
        assert_eq!(turn.run(long, || 7), Some(7), "and it ends");
    }
}
