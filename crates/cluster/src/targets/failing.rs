//! Targets that are not as their objects say: when each is tried again, and what was said of it last.
//!
//! One whose machine is gone for good stays so until somebody deletes its object. It shall cost a question now and then, and no writes.

use std::collections::HashMap;
use std::time::Duration;

/// When it is tried again after the first failure; twice as long after each further one.
const FIRST: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Failing {
    all: HashMap<String, Failed>,
}

struct Failed {
    times: u32,
    sentence: String,
}

impl Failing {
    /// Notes a failure. Tells whether people have not been told of it yet.
    pub(super) fn note(&mut self, target: &str, sentence: &str) -> bool {
        let before = self.all.remove(target);
        let is_news = before.as_ref().is_none_or(|before| before.sentence != sentence);
        let times = before.map_or(0, |before| before.times).saturating_add(1);
        self.all.insert(target.to_owned(), Failed { times, sentence: sentence.to_owned() });
        is_news
    }

    /// It is as its object says, or has none any more.
    pub(super) fn end(&mut self, target: &str) {
        self.all.remove(target);
    }

    /// How long to wait before it is tried again.
    pub(super) fn pause(&self, target: &str) -> Duration {
        let times = self.all.get(target).map_or(1, |failed| failed.times);
        (FIRST * 2_u32.pow(times.saturating_sub(1).min(8))).min(super::LOOK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_was_gone_for_good_was_told_of_and_tried_every_five_seconds() {
        let mut failing = Failing::default();
        let mut said = |sentence| {
            let is_news = failing.note("gone", sentence);
            (is_news, failing.pause("gone").as_secs())
        };
        assert_eq!(said("no answer"), (true, 5));
        assert_eq!(said("no answer"), (false, 10));
        assert_eq!(said("another key"), (true, 20), "what is new is told, however often it was tried");
        assert_eq!([said("another key"), said("another key")], [(false, 30), (false, 30)]);
        for _ in 0..100 {
            said("another key");
        }
        assert!(failing.note("other", "no answer"), "each for itself");
        assert_eq!(failing.pause("other"), FIRST);
        failing.end("gone");
        assert_eq!(failing.pause("gone"), FIRST);
        assert!(failing.note("gone", "another key"), "it was well in between");
    }
}
