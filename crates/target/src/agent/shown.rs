//! What an agent's records let in and it does not show to nodes, on its way to people.
//!
//! It goes along with what the agent says of itself, which is asked for regularly. Nothing is decided by it: one that says it in an odd way is
//! a target like any other.

use super::parse::Bad;
use super::wire;
use std::fmt;

/// More than what names a few volumes; it becomes a part of the Target's status.
const WHY_BYTES: usize = 2048;
/// What stands for the rest of a sentence that was cut.
const CUT: char = '…';

/// What an agent says of the exports that it has to show to nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ExportsShown {
    /// Nothing: it is of an earlier version, or did not answer.
    #[default]
    NotTold,
    /// Everything that is to be shown is shown.
    All,
    /// Some volumes are not shown to everybody whom their records let in, or not everywhere.
    Missing {
        /// How many; none if all of them lack the same way.
        volumes: u64,
        /// Which, and why, in a sentence. The words stay the same as long as nothing changes: whoever shows them to people writes them whenever
        /// they are others.
        why: String,
    },
}

impl fmt::Display for ExportsShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTold => f.write_str("its agent does not say whether everything is shown"),
            Self::All => f.write_str("its agent shows everything that it has to show"),
            Self::Missing { volumes: 0, why } => {
                write!(f, "its exports are not to be reached everywhere: {why}")
            }
            Self::Missing { volumes: 1, why } => write!(f, "1 volume is missing on its nodes: {why}"),
            Self::Missing { volumes, why } => {
                write!(f, "{volumes} volumes are missing on their nodes: {why}")
            }
        }
    }
}

/// Onto the wire, with a sentence that is cut to what the other side takes.
pub(crate) fn tell(shown: ExportsShown) -> Option<wire::Unshown> {
    match shown {
        ExportsShown::NotTold => None,
        ExportsShown::All => Some(wire::Unshown { volumes: 0, why: String::new() }),
        ExportsShown::Missing { volumes, why } => Some(wire::Unshown { volumes, why: fitting(&why) }),
    }
}

/// As much of a sentence as fits. It may have words of the kernel and names of files in it.
fn fitting(why: &str) -> String {
    let mut plain = why.replace(char::is_control, " ");
    if plain.len() > WHY_BYTES {
        plain.truncate(plain.floor_char_boundary(WHY_BYTES - CUT.len_utf8()));
        plain.push(CUT);
    }
    plain
}

/// What an agent told.
pub fn exports_shown(told: Option<wire::Unshown>) -> Result<ExportsShown, Bad> {
    let field = "unshown.why";
    let Some(wire::Unshown { volumes, why }) = told else { return Ok(ExportsShown::NotTold) };
    match (volumes, why.is_empty()) {
        (0, true) => Ok(ExportsShown::All),
        (_, true) => Err(Bad::Missing(field)),
        (_, false) if why.len() > WHY_BYTES || why.contains(char::is_control) => {
            Err(Bad::Value { field, must: "must have at most 2048 bytes, and no control characters" })
        }
        (volumes, false) => Ok(ExportsShown::Missing { volumes, why }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn missing(why: &str) -> ExportsShown {
        ExportsShown::Missing { volumes: 2, why: why.to_owned() }
    }

    #[test]
    fn what_is_told_arrives_as_it_was_meant() {
        for shown in [ExportsShown::NotTold, ExportsShown::All, missing("v (no)"), missing(&"x".repeat(2048))]
        {
            assert_eq!(exports_shown(tell(shown.clone())), Ok(shown));
        }
        let everywhere = ExportsShown::Missing { volumes: 0, why: "no address".to_owned() };
        assert_eq!(everywhere.to_string(), "its exports are not to be reached everywhere: no address");
        assert_eq!(exports_shown(tell(everywhere.clone())), Ok(everywhere));
        assert_eq!(exports_shown(tell(missing("a\nb\0"))), Ok(missing("a b ")));
        for long in ["x".repeat(2049), "ä".repeat(2000), format!("x{}", "🦀".repeat(1000))] {
            let Ok(ExportsShown::Missing { why, .. }) = exports_shown(tell(missing(&long))) else {
                panic!("{long} is not told");
            };
            assert!(
                why.len() > 2040 && why.ends_with(CUT) && long.starts_with(why.trim_end_matches(CUT)),
                "{why}"
            );
        }
    }

    #[test]
    fn what_cannot_be_meant_so_is_refused_by_its_field() {
        let told = |volumes, why: &str| exports_shown(Some(wire::Unshown { volumes, why: why.to_owned() }));
        for (volumes, why, error) in [
            (1, "", "unshown.why is required"),
            (1, "a\nb", "unshown.why must have at most 2048 bytes, and no control characters"),
            (1, &"x".repeat(2049), "unshown.why must have at most 2048 bytes, and no control characters"),
        ] {
            assert_eq!(told(volumes, why).map_err(|bad| bad.to_string()), Err(error.to_owned()));
        }
    }

    /// Agents and controllers of different versions understand each other by these numbers.
    #[test]
    fn it_has_a_place_of_its_own_on_the_wire() {
        let unshown = tell(missing("no"));
        let answer = wire::DescribeResponse { unshown, ..Default::default() };
        let bytes = [11 << 3 | 2, 6, 1 << 3, 2, 2 << 3 | 2, 2, b'n', b'o'];
        assert_eq!(answer.encode_to_vec(), bytes);
        let all = wire::DescribeResponse { unshown: tell(ExportsShown::All), ..Default::default() };
        assert_eq!(all.encode_to_vec(), [11 << 3 | 2, 0], "that it is all is said, too");
        let earlier = wire::DescribeResponse::decode(&[][..]).unwrap();
        assert_eq!(exports_shown(earlier.unshown), Ok(ExportsShown::NotTold));
    }
}
