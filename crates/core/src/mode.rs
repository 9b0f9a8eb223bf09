use serde::{Deserialize, Serialize};

/// With whom a grant may be shared. Ordered from the strictest to the most generous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// With no other node.
    Nobody,
    /// With nodes that read only.
    Readers,
    /// With other nodes, of which at most one writes.
    OneWriter,
    /// With other nodes that write (raw block only).
    Writers,
}

/// What a grant lets a node do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mode {
    /// Whether it may write.
    pub write: bool,
    /// Whether workloads on the node get to see it (`disableFrontend` turns this off).
    pub frontend: bool,
    /// Which other nodes may be let in beside it.
    pub share: Share,
}

impl Mode {
    /// The mode of which nothing is known: it must be taken for the worst.
    pub const UNKNOWN: Mode = Mode { write: true, frontend: true, share: Share::Nobody };

    /// Whether two nodes may reach one volume at the same time, one in this mode and one in the other.
    pub fn admits(self, other: Mode) -> bool {
        self.share != Share::Nobody
            && other.share != Share::Nobody
            && (!other.write || self.bears_a_writer())
            && (!self.write || other.bears_a_writer())
    }

    fn bears_a_writer(self) -> bool {
        match self.share {
            Share::Nobody | Share::Readers => false,
            Share::OneWriter => !self.write,
            Share::Writers => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Share::*;

    #[test]
    fn who_may_be_let_in_beside_whom() {
        let mode = |write, share| Mode { write, frontend: true, share };
        for (a, b, together) in [
            (mode(true, Nobody), mode(true, Nobody), false),
            (mode(false, Nobody), mode(false, Nobody), false),
            (mode(false, Nobody), mode(false, Readers), false),
            (mode(false, Readers), mode(false, Readers), true),
            (mode(false, Readers), mode(false, OneWriter), true),
            (mode(false, Readers), mode(true, OneWriter), false),
            (mode(false, Readers), mode(true, Writers), false),
            (mode(true, OneWriter), mode(false, OneWriter), true),
            (mode(true, OneWriter), mode(true, OneWriter), false),
            (mode(true, OneWriter), mode(true, Writers), false),
            (mode(false, OneWriter), mode(true, Writers), true),
            (mode(true, Writers), mode(true, Writers), true),
        ] {
            assert_eq!(a.admits(b), together, "{a:?} beside {b:?}");
            assert_eq!(b.admits(a), together, "{b:?} beside {a:?}");
        }
    }
}
