//! What happened, for people: the latest in memory, and everything to those who follow.

use bowline_core::{Notice, Timestamp, VolumeId};
use std::collections::VecDeque;
use std::sync::Mutex;
use tokio::sync::broadcast;

use crate::catalog::{Event, lock};

/// How many are kept.
const KEPT: usize = 1000;

pub(crate) struct Events {
    kept: Mutex<VecDeque<Event>>,
    news: broadcast::Sender<Event>,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self { kept: Mutex::default(), news: broadcast::channel(KEPT).0 }
    }

    pub(crate) fn tell(&self, at: Timestamp, volume: Option<&VolumeId>, reason: &str, message: String) {
        let event = Event { at, volume: volume.cloned(), reason: reason.to_owned(), message };
        let mut kept = lock(&self.kept);
        // Whoever asks again and again is told the same again and again; that is no news.
        let last = kept.iter().rev().find(|last| last.volume == event.volume);
        if last.is_some_and(|last| last.reason == event.reason && last.message == event.message) {
            return;
        }
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(event.clone());
        // While the lock is held, so that both have one order. Nobody may be listening.
        let _ = self.news.send(event);
    }

    pub(crate) fn latest(&self, of: Option<&VolumeId>, limit: usize) -> Vec<Event> {
        let kept = lock(&self.kept);
        let wanted = |event: &&Event| of.is_none_or(|of| event.volume.as_ref() == Some(of));
        let mut latest: Vec<Event> = kept.iter().rev().filter(wanted).take(limit).cloned().collect();
        latest.reverse();
        latest
    }

    pub(crate) fn follow(&self) -> broadcast::Receiver<Event> {
        self.news.subscribe()
    }
}

/// What a notice of the engine is called, and its sentence.
pub(crate) fn notice(notice: &Notice) -> (&'static str, String) {
    match notice {
        Notice::OwnerGone { ticket, node, owner } => {
            ("OwnerGone", format!("{ticket} on {node} was withdrawn: {owner} is gone."))
        }
        Notice::Expired { ticket, node, at } => {
            ("Expired", format!("{ticket} on {node} was withdrawn: nobody renewed it before {at:.0}."))
        }
        Notice::MigrationTimedOut { ticket, node } => (
            "MigrationTimedOut",
            format!("The live migration to {node} for {ticket} took too long; {node} is shut out again."),
        ),
        Notice::UnrecordedExport { node, epoch } => (
            "UnrecordedExport",
            format!(
                "The target let {node} in at epoch {epoch}, and the ledger did not know it; it does now."
            ),
        ),
        Notice::ExportMissing { node, epoch } => (
            "ExportMissing",
            format!("The target did not let {node} in at epoch {epoch}, as it should; it is asked again."),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_kept_and_no_more() {
        let events = Events::new();
        let volume = VolumeId::new("v").unwrap();
        for number in 0..KEPT + 5 {
            let of = Some(&volume).filter(|_| number % 2 == 0);
            events.tell(Timestamp::UNIX_EPOCH, of, "Created", number.to_string());
        }
        let all = events.latest(None, usize::MAX);
        assert_eq!((all.len(), all[0].message.as_str()), (KEPT, "5"));
        let some: Vec<String> =
            events.latest(Some(&volume), 2).into_iter().map(|event| event.message).collect();
        assert_eq!(some, ["1002", "1004"]);
        for _ in 0..3 {
            events.tell(Timestamp::UNIX_EPOCH, Some(&volume), "Waiting", "the same".to_owned());
        }
        assert_eq!(events.latest(Some(&volume), 2)[0].message, "1004", "no news is told once");
    }
}
