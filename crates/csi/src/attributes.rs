//! Maps of texts: parameters and contexts, which may be shown, and secrets, which may not.

use crate::field::{At, InvalidField, Problem};
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// The general limit of CSI for one map, keys and values together.
pub(crate) const MAP_BYTES: usize = 4096;

fn bounded(at: At<'_>, map: HashMap<String, String>) -> Result<BTreeMap<String, String>, InvalidField> {
    at.at_most(MAP_BYTES, map.iter().map(|(key, value)| key.len() + value.len()).sum())?;
    Ok(map.into_iter().collect())
}

/// Parameters or a context: what they mean is decided by whoever defined the keys. At most 4 KiB, ordered by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes(BTreeMap<String, String>);

impl Attributes {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Every key with its value, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn parse(at: At<'_>, map: HashMap<String, String>) -> Result<Self, InvalidField> {
        bounded(at, map).map(Self)
    }

    pub(crate) fn parse_required(at: At<'_>, map: HashMap<String, String>) -> Result<Self, InvalidField> {
        if map.is_empty() { Err(at.is(Problem::Missing)) } else { Self::parse(at, map) }
    }
}

/// Secrets of a call. They can be used, but not shown: neither `Debug` nor an error tells a key or a value.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(BTreeMap<String, String>);

impl Secrets {
    /// The secret of a key. Whoever takes it out answers for it.
    pub fn expose(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn parse(map: HashMap<String, String>) -> Result<Self, InvalidField> {
        bounded(At::field("secrets"), map).map(Self)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hidden", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_at_most_four_kib_with_its_keys() {
        let at = At::field("parameters");
        let map = |bytes: usize| HashMap::from([("key".to_owned(), "v".repeat(bytes - 3))]);
        assert_eq!(Attributes::parse(at, map(4096)).unwrap().get("key").unwrap().len(), 4093);
        assert_eq!(
            Attributes::parse(at, map(4097)).unwrap_err().to_string(),
            "parameters has 4097 bytes; at most 4096 are allowed"
        );
        assert_eq!(
            Secrets::parse(map(4097)).unwrap_err().to_string(),
            "secrets has 4097 bytes; at most 4096 are allowed"
        );
        assert!(Attributes::parse_required(at, HashMap::new()).is_err());
    }

    #[test]
    fn secrets_can_be_used_but_not_shown() {
        let secrets = Secrets::parse(HashMap::from([("token".to_owned(), "hunter2".to_owned())])).unwrap();
        assert_eq!(secrets.expose("token"), Some("hunter2"));
        assert_eq!(format!("{secrets} {secrets:?} {secrets:#?}"), "1 hidden 1 hidden 1 hidden");
    }
}
