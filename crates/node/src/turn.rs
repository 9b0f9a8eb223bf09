//! One operation at a time per volume, and per path.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// What is being worked on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Arc<Mutex<BTreeSet<String>>>);

/// The right to work on some things, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    names: Vec<String>,
}

impl Turns {
    /// All of these names or none; the first that is taken otherwise.
    pub(crate) fn take(&self, names: Vec<String>) -> Result<Turn, String> {
        let mut busy = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = names.iter().find(|name| busy.contains(*name)) {
            return Err(taken.clone());
        }
        busy.extend(names.iter().cloned());
        drop(busy);
        Ok(Turn { turns: self.clone(), names })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut busy = self.turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        for name in &self.names {
            busy.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_for_all_its_names_and_ends_with_its_owner() {
        let turns = Turns::default();
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let first = turns.take(names(&["volume a", "/x"])).unwrap();
        assert_eq!(turns.take(names(&["volume b", "/x"])).unwrap_err(), "/x");
        let second = turns.take(names(&["volume b", "/y"])).unwrap();
        drop(first);
        turns.take(names(&["volume a", "/x"])).unwrap();
        assert!(turns.take(names(&["volume b"])).is_err());
        drop(second);
    }
}
