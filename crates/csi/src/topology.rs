//! From where a volume or a snapshot is to be reachable.

use crate::attributes::MAP_BYTES;
use crate::field::{At, InvalidField, Problem};
use crate::wire;
use std::collections::{BTreeMap, BTreeSet};

/// The limit of CSI for a key's prefix, a key's name and a value.
const PART_BYTES: usize = 63;

/// A place: for each domain (`topology.example/zone`) the segment (`z1`) it is in. Has at least one; no two keys
/// differ in case only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Topology(BTreeMap<String, String>);

impl Topology {
    /// The segment of a domain.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Every domain with its segment, ordered by domain.
    pub fn segments(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    pub(crate) fn parse(at: At<'_>, topology: wire::Topology) -> Result<Self, InvalidField> {
        let at = at.child("segments");
        if topology.segments.is_empty() {
            return Err(at.is(Problem::Missing));
        }
        at.at_most(MAP_BYTES, topology.segments.iter().map(|(key, value)| key.len() + value.len()).sum())?;
        let mut spelled = BTreeSet::new();
        for (key, value) in &topology.segments {
            let name = match key.split_once('/') {
                None => key,
                Some((prefix, name)) => {
                    label(at, prefix, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), "-.")?;
                    name
                }
            };
            label(at, name, |c| c.is_ascii_alphanumeric(), "-_.")?;
            label(at, value, |c| c.is_ascii_alphanumeric(), "-_.")?;
            if !spelled.insert(key.to_ascii_lowercase()) {
                return Err(at.is(Problem::Form("has two keys that differ in case only")));
            }
        }
        Ok(Self(topology.segments.into_iter().collect()))
    }
}

/// A part of a key, or a value: `outer` characters at both ends, these or `inner` ones between.
fn label(
    at: At<'_>,
    text: &str,
    outer: impl Fn(char) -> bool,
    inner: &'static str,
) -> Result<(), InvalidField> {
    at.at_most(PART_BYTES, text.len())?;
    at.only(
        text,
        "allowed are letters, digits, '-', '_' and '.' (a prefix is lower case, without '_')",
        |c| outer(c) || inner.contains(c),
    )?;
    if text.starts_with(&outer) && text.ends_with(&outer) {
        Ok(())
    } else {
        Err(at.is(Problem::Form("has a key or a value that does not begin and end with a letter or a digit")))
    }
}

/// Where something has to be reachable from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TopologyRequirement {
    /// It must be reachable from one of these; from anywhere if there are none.
    pub requisite: Vec<Topology>,
    /// It should be reachable from these, the first ones rather than the last.
    pub preferred: Vec<Topology>,
}

impl TopologyRequirement {
    /// Reads the field `accessibility_requirements`; not given is the same as empty.
    pub(crate) fn parse(requirement: Option<wire::TopologyRequirement>) -> Result<Self, InvalidField> {
        let Some(requirement) = requirement else { return Ok(Self::default()) };
        let at = At::field("accessibility_requirements");
        let each = |name, topologies: Vec<wire::Topology>| -> Result<Vec<Topology>, InvalidField> {
            let topologies = topologies.into_iter().enumerate();
            topologies.map(|(index, one)| Topology::parse(at.child(name).entry(index), one)).collect()
        };
        let parsed = Self {
            requisite: each("requisite", requirement.requisite)?,
            preferred: each("preferred", requirement.preferred)?,
        };
        // CSI: whatever is preferred must be among what is required, if anything is.
        let stranger = parsed.preferred.iter().position(|one| !parsed.requisite.contains(one));
        match stranger.filter(|_| !parsed.requisite.is_empty()) {
            Some(index) => Err(at.child("preferred").entry(index).is(Problem::Form("is not in requisite"))),
            None => Ok(parsed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire_topology(segments: &[(&str, &str)]) -> wire::Topology {
        let segments = segments.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        wire::Topology { segments }
    }

    #[test]
    fn keys_and_values_are_as_csi_wants_them() {
        let long = "x".repeat(64);
        for (key, value, accepted) in [
            ("topology.bowline.storage/host", "worker-1", true),
            ("zone", "Z1", true),
            ("Zone", "a.b_c-d", true),
            ("", "z", false),
            ("zone", "", false),
            ("/zone", "z", false),
            ("a/", "z", false),
            ("A.example/zone", "z", false),
            ("a_b/zone", "z", false),
            ("a/b/c", "z", false),
            ("-zone", "z", false),
            ("zone", "z-", false),
            ("zone", "z z", false),
            ("zone", "z\n", false),
            (&long, "z", false),
            ("zone", &long, false),
        ] {
            let parsed = Topology::parse(At::field("t"), wire_topology(&[(key, value)]));
            assert_eq!(parsed.is_ok(), accepted, "{key:?} {value:?}: {parsed:?}");
        }
        assert!(Topology::parse(At::field("t"), wire_topology(&[("Zone", "a"), ("zone", "a")])).is_err());
        assert_eq!(
            Topology::parse(At::field("t"), wire_topology(&[])).unwrap_err().to_string(),
            "t.segments is required"
        );
    }

    #[test]
    fn what_is_preferred_is_among_what_is_required() {
        let parse = |requisite: &[&str], preferred: &[&str]| {
            let topologies =
                |zones: &[&str]| zones.iter().map(|zone| wire_topology(&[("zone", zone)])).collect();
            let requirement = wire::TopologyRequirement {
                requisite: topologies(requisite),
                preferred: topologies(preferred),
            };
            TopologyRequirement::parse(Some(requirement)).map_err(|error| error.to_string())
        };
        assert_eq!(parse(&["a", "b"], &["b"]).unwrap().preferred[0].get("zone"), Some("b"));
        assert_eq!(parse(&[], &["b"]).unwrap().preferred.len(), 1);
        assert_eq!(
            parse(&["a"], &["a", "c"]).unwrap_err(),
            "accessibility_requirements.preferred[1] is not in requisite"
        );
        assert_eq!(TopologyRequirement::parse(None), Ok(TopologyRequirement::default()));
    }
}
