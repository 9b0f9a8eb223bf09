//! Letting nodes in and shutting them out: the next command, given what was seen. Nothing here waits or remembers.
//!
//! A volume has one export: one name, one host that may connect, on or off. The newest epoch is in the name also while it is
//! off, so the device itself knows which epochs are closed, and every change says the name it expects.

use super::command::{Find, Property, set};
use super::name::{ANYBODY, Mark, NOBODY, Names, Seen};
use crate::{Grant, Revocation, TargetError};
use bowline_core::{Epoch, Export, NeverAgain};
use std::fmt;

/// What the firmware can keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// Only the host of the grant may connect.
    OneHost,
    /// The firmware cannot name the host: whoever knows the name of an export can connect while it is on.
    OnOrOff,
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneHost => "the device lets in the host of a grant and no other",
            Self::OnOrOff => {
                "the firmware of this device does not know nvme-tcp-server-allow-host-name: a volume can be exported or not, and while \
                 it is exported, whoever knows the name of the export can connect"
            }
        })
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step<T> {
    /// It is so; nothing more is needed.
    So(T),
    /// It will not be.
    No(TargetError),
    /// Send this, and look again.
    Send(String),
}

impl Seen {
    /// The newest epoch, if it is a volume.
    pub(super) fn epoch(&self) -> Epoch {
        match &self.mark {
            Mark::Closed(epoch) | Mark::Granted(epoch, _) => *epoch,
            Mark::Making(_) | Mark::Snapshot(..) => Epoch::default(),
        }
    }

    /// Whom it lets in, if that is as it should be.
    pub(super) fn lets_in(&self, names: &Names, guarantee: Guarantee) -> Option<(Epoch, &Export)> {
        let Mark::Granted(epoch, export) = &self.mark else { return None };
        (self.export && !self.is_breach(names, guarantee)).then_some((*epoch, export))
    }

    /// Whether it is exported to others than it should be.
    pub(super) fn is_breach(&self, names: &Names, guarantee: Guarantee) -> bool {
        if !self.export {
            return false;
        }
        match (self.granted(), guarantee) {
            (None, _) => true,
            (Some(_), Guarantee::OnOrOff) => false,
            (Some(grant), Guarantee::OneHost) => self.host.as_deref() != Some(&names.fabric(&grant).host),
        }
    }

    /// The grant in the name of its export.
    fn granted(&self) -> Option<Grant> {
        let (Mark::Granted(epoch, Export { node, mode }), crate::Item::Volume(volume)) =
            (&self.mark, &self.item)
        else {
            return None;
        };
        Some(Grant { volume: volume.clone(), node: node.clone(), epoch: *epoch, mode: *mode, beside: None })
    }

    fn find<'a>(&'a self, also: &'a [Property<'a>]) -> Find<'a> {
        Find { slot: &self.slot, nqn: &self.nqn, also }
    }

    /// It, while it is not exported.
    pub(super) fn find_off(&self) -> Find<'_> {
        self.find(&[Property::Export(false)])
    }

    /// Takes it from everybody.
    pub(super) fn switch_off(&self) -> String {
        set(&self.find(&[]), &[Property::Export(false)])
    }

    fn switch_on(&self) -> String {
        match &self.host {
            Some(host) => set(
                &self.find(&[Property::AllowHost(host), Property::Export(false)]),
                &[Property::Export(true)],
            ),
            None => set(&self.find_off(), &[Property::Export(true)]),
        }
    }

    /// Says which host may connect, while none can.
    fn name_host(&self, host: &str) -> String {
        set(&self.find_off(), &[Property::AllowHost(host)])
    }

    /// Says that nobody is let in up to an epoch, while nobody can connect.
    fn close(&self, nqn: &str) -> String {
        let name = Property::ServerNqn(nqn);
        match &self.host {
            Some(_) => set(&self.find_off(), &[name, Property::AllowHost(NOBODY)]),
            None => set(&self.find_off(), &[name]),
        }
    }
}

fn one_host(seen: &Seen, epoch: Epoch, other: &Export) -> TargetError {
    let error = format!(
        "this device exports a volume to one host only, and {} is exported to node {} at epoch {epoch}",
        super::name::called(&seen.item),
        other.node
    );
    TargetError::Refused { error }
}

/// The way to let a node in.
pub(super) fn allow(names: &Names, guarantee: Guarantee, seen: &Seen, grant: &Grant) -> Step<()> {
    if seen.is_breach(names, guarantee) {
        return Step::Send(seen.switch_off());
    }
    let Grant { volume, node, epoch, mode, beside: _ } = grant;
    let wanted = names.fabric(grant);
    match &seen.mark {
        Mark::Making(_) | Mark::Snapshot(..) => {
            Step::No(TargetError::Refused { error: format!("volume {volume} is not on this target") })
        }
        Mark::Closed(last) if epoch <= last => Step::No(NeverAgain { highest: *last }.into()),
        Mark::Granted(last, _) if epoch < last => Step::No(NeverAgain { highest: *last }.into()),
        Mark::Granted(last, export) if epoch == last && (export.node != *node || export.mode != *mode) => {
            let error = format!("epoch {epoch} is that of node {} in another way", export.node);
            Step::No(TargetError::Refused { error })
        }
        Mark::Granted(last, _) if epoch == last => match (&seen.host, seen.export) {
            (_, true) => Step::So(()),
            (Some(host), false) if *host != wanted.host => Step::Send(seen.name_host(&wanted.host)),
            (_, false) => Step::Send(seen.switch_on()),
        },
        Mark::Granted(last, export) if seen.export => Step::No(one_host(seen, *last, export)),
        // Its host may still be named, and must not get in when the export is switched on.
        Mark::Granted(last, _) => Step::Send(seen.close(&names.closed(volume, *last))),
        Mark::Closed(_) => Step::Send(match &seen.host {
            // One command will do, in whatever order the device applies its parts: as long as the new host is not named the only
            // one who may connect is nobody, and from then on it is the new host alone. That nobody is named is part of what
            // is looked for.
            Some(host) if host == NOBODY => set(
                &seen.find(&[Property::AllowHost(NOBODY), Property::Export(false)]),
                &[
                    Property::ServerNqn(&wanted.subsystem),
                    Property::AllowHost(&wanted.host),
                    Property::Export(true),
                ],
            ),
            Some(_) => seen.name_host(NOBODY),
            // Whoever knows the old name could connect if the export came before the new one. So that comes first, alone.
            None => set(&seen.find_off(), &[Property::ServerNqn(&wanted.subsystem)]),
        }),
    }
}

/// The way to shut a node out. First the export goes; then, when that is seen, the epoch is closed in its name; that this is seen is
/// the proof.
pub(super) fn revoke(
    names: &Names,
    guarantee: Guarantee,
    seen: &Seen,
    revocation: &Revocation,
) -> Step<NeverAgain> {
    if seen.is_breach(names, guarantee) {
        return Step::Send(seen.switch_off());
    }
    let Revocation { volume, node, epoch, fence: _ } = revocation;
    if node.as_str() == ANYBODY {
        // Nobody is ever granted anything under this name; that it is not open to all is seen.
        return Step::So(NeverAgain { highest: seen.epoch() });
    }
    let next = names.closed(volume, *epoch);
    match &seen.mark {
        Mark::Making(_) | Mark::Snapshot(..) => Step::So(NeverAgain { highest: *epoch }),
        Mark::Closed(last) if epoch <= last => Step::So(NeverAgain { highest: *last }),
        Mark::Closed(_) => Step::Send(seen.close(&next)),
        Mark::Granted(last, _) if last > epoch => Step::So(NeverAgain { highest: *last }),
        Mark::Granted(_, export) if export.node == *node && seen.export => Step::Send(seen.switch_off()),
        // The device remembers one epoch. To close a later one would take this node's export away; to say that it is closed
        // without that would not be true for long.
        Mark::Granted(last, export) if seen.export => {
            let error = format!(
                "that epoch {epoch} is closed can be stored when node {} (epoch {last}) is out: this device exports a volume to \
                 one host only, and remembers one epoch",
                export.node
            );
            Step::No(TargetError::Refused { error })
        }
        Mark::Granted(..) => Step::Send(seen.close(&next)),
    }
}
