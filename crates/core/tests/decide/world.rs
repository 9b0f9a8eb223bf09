//! The sentence a row is written in: who files what, what is seen, and what must follow.

use bowline_core::*;
use std::collections::BTreeMap;

/// The moment every row begins.
pub(crate) fn start() -> Timestamp {
    "2030-01-01T00:00:00Z".parse().unwrap()
}

/// So many seconds after the beginning.
pub(crate) fn second(seconds: i64) -> Timestamp {
    Timestamp::from_second(start().as_second() + seconds).unwrap()
}

pub(crate) fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

pub(crate) fn id(name: &str) -> TicketId {
    TicketId::new(name).unwrap()
}

/// A ticket that a row files; what the row does not say is the plainest there is.
#[derive(Clone)]
pub(crate) struct Filed {
    ticket: Ticket,
    aged: bool,
}

pub(crate) fn ticket(kind: TicketKind, name: &str, on: &str) -> Filed {
    let ticket = Ticket {
        id: id(name),
        kind,
        node: node(on),
        access: AccessMode::SingleNodeWriter,
        content: Content::Filesystem,
        read_only: false,
        frontend: Frontend::On,
        generation: 1,
        created_at: start(),
        owner: Owner::Withdrawn,
        reason: None,
    };
    Filed { ticket, aged: false }
}

pub(crate) fn csi(name: &str, on: &str) -> Filed {
    ticket(TicketKind::CsiAttacher, name, on)
}

pub(crate) fn snapshot(name: &str, on: &str) -> Filed {
    ticket(TicketKind::SnapshotController, name, on)
}

pub(crate) fn backup(name: &str, on: &str) -> Filed {
    ticket(TicketKind::BackupController, name, on)
}

impl Filed {
    pub(crate) fn access(mut self, access: AccessMode) -> Self {
        self.ticket.access = access;
        self
    }

    pub(crate) fn content(mut self, content: Content) -> Self {
        self.ticket.content = content;
        self
    }

    pub(crate) fn block(self) -> Self {
        self.content(Content::Block)
    }

    pub(crate) fn read_only(mut self) -> Self {
        self.ticket.read_only = true;
        self
    }

    pub(crate) fn frontend(mut self, frontend: Frontend) -> Self {
        self.ticket.frontend = frontend;
        self
    }

    pub(crate) fn generation(mut self, generation: u64) -> Self {
        self.ticket.generation = generation;
        self
    }

    pub(crate) fn owner(mut self, owner: Owner) -> Self {
        self.ticket.owner = owner;
        self
    }

    /// Filed so many seconds after the beginning; otherwise each is a second younger than the one before.
    pub(crate) fn created(mut self, seconds: i64) -> Self {
        self.ticket.created_at = second(seconds);
        self.aged = true;
        self
    }
}

/// One volume, what is seen of the world around it, and a target that keeps its promises.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) ledger: Ledger,
    pub(crate) seen: Observed,
    pub(crate) now: Timestamp,
    exports: Exports,
    filed: i64,
    last: Option<Plan>,
}

impl World {
    pub(crate) fn new() -> Self {
        let volume = VolumeFacts::new(TargetId::new("rack-1").unwrap());
        Self {
            ledger: Ledger::default(),
            seen: Observed::new(volume),
            now: start(),
            exports: Exports::default(),
            filed: 0,
            last: None,
        }
    }

    pub(crate) fn file(mut self, mut filed: Filed) -> Self {
        self.filed += 1;
        if !filed.aged {
            filed.ticket.created_at = second(self.filed);
        }
        self.ledger.submit(filed.ticket, self.now).unwrap();
        self
    }

    pub(crate) fn withdraw(mut self, name: &str) -> Self {
        self.ledger.withdraw(&id(name), self.now).expect("a row withdraws only what is there");
        self
    }

    /// The clock shows so many seconds after the beginning.
    pub(crate) fn at(mut self, seconds: i64) -> Self {
        self.now = second(seconds);
        self
    }

    pub(crate) fn migratable(mut self, seconds: u16) -> Self {
        self.seen.volume.migratable = Some(MigrationTimeout::from_seconds(seconds).unwrap());
        self
    }

    pub(crate) fn volume(mut self, change: impl FnOnce(&mut VolumeFacts)) -> Self {
        change(&mut self.seen.volume);
        self
    }

    pub(crate) fn node(mut self, name: &str, state: NodeState) -> Self {
        self.seen.nodes.entry(node(name)).or_default().state = state;
        self
    }

    pub(crate) fn room(mut self, name: &str, free: u32, limit: u32) -> Self {
        self.seen.nodes.entry(node(name)).or_default().room = Some(Room { free, limit });
        self
    }

    pub(crate) fn force(mut self, name: &str) -> Self {
        self.seen.nodes.entry(node(name)).or_default().forced = true;
        self
    }

    pub(crate) fn contact(mut self, contact: Contact) -> Self {
        self.seen.contact = contact;
        self
    }

    pub(crate) fn fact(mut self, name: &str, generation: u64, change: impl FnOnce(&mut TicketFacts)) -> Self {
        let mut facts = TicketFacts { generation, owner_gone: false, copied: false };
        change(&mut facts);
        self.seen.tickets.insert(id(name), facts);
        self
    }

    /// The target says this of one node's grant, whatever is true.
    pub(crate) fn hear(mut self, name: &str, epoch: u64, outcome: Outcome) -> Self {
        self.seen.answers.insert(node(name), Answer { epoch: Epoch::new(epoch), outcome });
        self
    }

    /// The target lists whom it lets in, whatever is true.
    pub(crate) fn list(mut self, exports: &[(u64, &str)]) -> Self {
        let listed = exports
            .iter()
            .map(|(epoch, name)| (Epoch::new(*epoch), Export { node: node(name), mode: Mode::UNKNOWN }));
        self.seen.exports = Some(listed.collect());
        self
    }

    /// The target does all that is asked of it, until nothing is left to ask.
    pub(crate) fn settle(mut self) -> Self {
        for _ in 0..20 {
            let plan = self.decided();
            if plan.effects.is_empty() {
                return self;
            }
            for effect in &plan.effects {
                let outcome = obey(&mut self.exports, effect);
                let answer = Answer { epoch: effect.epoch(), outcome };
                self.seen.answers.insert(effect.node().clone(), answer);
            }
        }
        panic!("does not settle: {}", self.holds());
    }

    /// Decides, and goes through a restart.
    fn decided(&mut self) -> Plan {
        let plan = decide(&self.ledger, &self.seen, self.now);
        self.seen.answers.clear();
        self.seen.exports = None;

        let stored = serde_json::to_string(&plan.next).unwrap();
        self.ledger = serde_json::from_str(&stored).expect("what decide wrote can be read back");
        let again = decide(&self.ledger, &self.seen, self.now);
        assert_eq!(again.next, plan.next, "deciding again with nothing new changed the ledger");
        assert_eq!(again.effects, plan.effects, "a restart asks for the same");
        assert_eq!(again.notices, [], "deciding again with nothing new had something to say");
        self.last = Some(plan.clone());
        plan
    }

    /// Decides, and compares what follows with what the row says: `node phase epoch`, `allow|revoke|fence
    /// node epoch`, `ticket reason`, each separated by commas.
    #[track_caller]
    pub(crate) fn then(mut self, holds: &str, effects: &str, verdicts: &str) -> Self {
        let plan = self.decided();
        let shown = [self.holds(), effects_of(&plan), verdicts_of(&plan)];
        assert_eq!(shown, [holds, effects, verdicts].map(str::to_owned));
        self
    }

    /// Nothing is asked of the target any more, and this is who has the volume and what the tickets are told.
    #[track_caller]
    pub(crate) fn settles(self, holds: &str, verdicts: &str) -> Self {
        self.settle().then(holds, "", verdicts)
    }

    /// What the last decision told one ticket, in full.
    #[track_caller]
    pub(crate) fn told(self, name: &str, verdict: &Verdict) -> Self {
        assert_eq!(self.last.as_ref().expect("decided").verdicts.get(&id(name)), Some(verdict));
        self
    }

    #[track_caller]
    pub(crate) fn noticed(self, notices: &[Notice]) -> Self {
        assert_eq!(self.last.as_ref().expect("decided").notices, notices);
        self
    }

    #[track_caller]
    pub(crate) fn wakes(self, seconds: Option<i64>) -> Self {
        assert_eq!(self.last.as_ref().expect("decided").wake, seconds.map(second));
        self
    }

    #[track_caller]
    pub(crate) fn epoch(self, number: u64) -> Self {
        assert_eq!(self.ledger.epoch(), Epoch::new(number));
        self
    }

    fn holds(&self) -> String {
        let shown = self.ledger.holds().iter().map(|(node, hold)| {
            let phase = match hold.phase {
                Phase::Granting => "granting",
                Phase::Held => "held",
                Phase::Releasing => "releasing",
                Phase::Fencing { .. } => "fencing",
            };
            format!("{node} {phase} {}", hold.epoch)
        });
        joined(shown)
    }
}

pub(crate) fn obey(exports: &mut Exports, effect: &Effect) -> Outcome {
    match effect {
        Effect::Allow { node, epoch, mode } => match exports.allow(node, *epoch, *mode) {
            Ok(()) => Outcome::Allowed,
            Err(NeverAgain { highest }) => Outcome::Gone { highest },
        },
        Effect::Revoke { node, epoch, .. } => {
            let NeverAgain { highest } = exports.revoke(node, *epoch);
            Outcome::Gone { highest }
        }
    }
}

fn effects_of(plan: &Plan) -> String {
    joined(plan.effects.iter().map(|effect| {
        let verb = match effect {
            Effect::Allow { .. } => "allow",
            Effect::Revoke { fence: false, .. } => "revoke",
            Effect::Revoke { fence: true, .. } => "fence",
        };
        format!("{verb} {} {}", effect.node(), effect.epoch())
    }))
}

fn verdicts_of(plan: &Plan) -> String {
    joined(plan.verdicts.iter().map(|(id, verdict)| format!("{id} {}", verdict.reason())))
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// Who may have the volume at the end, by ticket, once nothing is left to ask.
pub(crate) fn satisfied(world: World) -> BTreeMap<String, bool> {
    let world = world.settle();
    let plan = world.last.expect("decided");
    plan.verdicts.iter().map(|(id, verdict)| (id.to_string(), verdict.is_satisfied())).collect()
}
