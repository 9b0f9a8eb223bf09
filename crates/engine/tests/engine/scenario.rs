//! Stories that must come to the same end, whatever happens on the way.

use bowline_core::{AccessMode, Content, NodeState, Ticket, Timestamp, Verdict, VolumeFacts};
use bowline_engine::{NodeReport, Submitted, Withdrawn};
use bowline_testkit::sweep::{Story, live};
use bowline_testkit::{Fate, backup, csi, node};
use std::sync::Arc;
use std::time::Duration;

use crate::world::{Running, World, v};

/// One thing that somebody does, and repeats until it is done.
#[derive(Clone, Debug)]
pub(crate) enum Do {
    /// Ask for the volume until it is there.
    Attach(Ticket),
    /// Ask for the volume and be told to wait.
    Queue(Ticket),
    /// Ask for the volume and take whatever answer comes.
    Ask(Ticket),
    /// Give it back until it is out.
    Detach(Ticket),
    /// Cut a node off until it is out.
    Force(&'static str),
    /// See a node in this state.
    See(&'static str, NodeState),
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) migratable: bool,
    pub(crate) steps: Vec<Do>,
    /// Who can reach the volume at the end.
    pub(crate) ends: &'static [&'static str],
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    use Do::*;
    let gone = NodeState::OutOfService { since: Timestamp::UNIX_EPOCH };
    let again = Ticket { generation: 2, ..csi("a") };
    let block = |on| Ticket { content: Content::Block, ..csi(on) };
    let reader = |on| Ticket { access: AccessMode::MultiNodeReaderOnly, ..csi(on) };
    let plain = |name, steps, ends| Scenario { name, migratable: false, steps, ends };
    vec![
        plain("attach and detach", vec![Attach(csi("a")), Detach(csi("a"))], &[]),
        plain(
            "move to another node",
            vec![Attach(csi("a")), Queue(csi("b")), Detach(csi("a")), Attach(csi("b"))],
            &["b"],
        ),
        plain(
            "force detach of a live writer",
            vec![
                Attach(csi("a")),
                See("a", NodeState::NotReady { since: Timestamp::UNIX_EPOCH }),
                Queue(csi("b")),
                Force("a"),
                Attach(csi("b")),
            ],
            &["b"],
        ),
        plain(
            "node out of service",
            vec![Attach(csi("a")), Queue(csi("b")), See("a", gone), Attach(csi("b")), Detach(csi("a"))],
            &["b"],
        ),
        plain(
            "three readers, one leaves",
            vec![Attach(reader("a")), Attach(reader("b")), Attach(reader("c")), Detach(reader("b"))],
            &["a", "c"],
        ),
        plain(
            "backup interrupted by a pod and resumed",
            vec![
                Attach(backup("a")),
                Attach(csi("b")),
                Queue(backup("a")),
                Detach(csi("b")),
                Attach(backup("a")),
                Detach(backup("a")),
            ],
            &[],
        ),
        plain("filed anew", vec![Attach(csi("a")), Attach(again)], &["a"]),
        Scenario {
            name: "live migration, confirmed",
            migratable: true,
            steps: vec![
                Attach(block("a")),
                Attach(block("b")),
                Queue(block("c")),
                Detach(block("c")),
                Detach(block("a")),
            ],
            ends: &["b"],
        },
        Scenario {
            name: "live migration, rolled back",
            migratable: true,
            steps: vec![Attach(block("a")), Attach(block("b")), Detach(block("b"))],
            ends: &["a"],
        },
    ]
}

impl Scenario {
    pub(crate) fn world(&self) -> World {
        let mut world = World::new();
        if self.migratable {
            let facts = world.volumes.remove(&v()).unwrap();
            world.volumes.insert(v(), VolumeFacts { migratable: Some(Default::default()), ..facts });
        }
        world
    }

    /// Plays from step `done` on until the end or the process's death, in a process of its own. Returns whether the end
    /// was reached.
    pub(crate) fn play(&self, world: &mut World, fate: &Arc<Fate>, done: &mut usize) -> bool {
        let (finished, took) = live(fate, async {
            let running = world.engine_with(Arc::clone(fate)).await.unwrap();
            while let Some(step) = self.steps.get(*done) {
                if let Do::See(name, state) = step {
                    let report = NodeReport { state: *state, limit: None };
                    world.nodes.insert(node(name), report);
                }
                perform(&running, world, step).await;
                *done += 1;
            }
            running.quiet().await;
        });
        world.later += took;
        finished
    }

    /// The end that every way must come to.
    pub(crate) fn check_end(&self, world: &World, told: &str) {
        let name = self.name;
        assert_eq!(world.target.violations(), [""; 0], "{name}, {told}: two were let in");
        let open: Vec<String> =
            world.target.open(&v()).into_iter().map(|(_, node)| node.to_string()).collect();
        let mut sorted = open.clone();
        sorted.sort();
        assert_eq!(sorted, self.ends, "{name}, {told}: who can reach the volume at the end");
    }
}

impl Story for Scenario {
    type World = (World, usize);

    fn name(&self) -> &str {
        self.name
    }

    fn world(&self) -> (World, usize) {
        (Self::world(self), 0)
    }

    fn play(&self, (world, done): &mut (World, usize), fate: &Arc<Fate>) -> bool {
        Self::play(self, world, fate, done)
    }

    fn check_end(&self, (world, _): &(World, usize), how: &str) {
        Self::check_end(self, world, how);
    }
}

/// Does one thing as a patient caller would: asks again until it is done. What it was told must be in the store.
async fn perform(running: &Running, world: &World, step: &Do) {
    for _ in 0..10_000 {
        let done = match step {
            Do::Attach(ticket) | Do::Ask(ticket) | Do::Queue(ticket) => {
                let told = running.attach(ticket.clone()).await;
                check_told(world, ticket, &told).await;
                match step {
                    Do::Attach(_) => matches!(told, Submitted::Satisfied { .. }),
                    Do::Queue(_) => matches!(told, Submitted::Waiting(_)),
                    _ => !matches!(told, Submitted::StillWorking { .. }),
                }
            }
            Do::Detach(ticket) => {
                let out = running.detach(ticket).await == Withdrawn::Out;
                let stored = world.stored().await;
                assert!(
                    !out || !stored.tickets().contains_key(&ticket.id),
                    "told out, stored as wanted: {stored:?}"
                );
                out
            }
            Do::Force(name) => {
                let out = running.force(&node(name)).await == Withdrawn::Out;
                let stored = world.stored().await;
                let open = stored.holds().get(&node(name)).is_some_and(bowline_core::Hold::is_open);
                assert!(!out || !open, "told out, stored as held: {stored:?}");
                let reached = world.target.open(&v()).iter().any(|(_, open)| *open == node(name));
                assert!(!out || !reached, "told out, and the target still lets it in");
                out
            }
            Do::See(name, state) => {
                running.see(&node(name), *state);
                true
            }
        };
        if done {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("{step:?} is never done: {:#?}", running.engine.view(&v()).await);
}

/// A caller is told only what is durable: its place in the queue, or its grant.
async fn check_told(world: &World, ticket: &Ticket, told: &Submitted) {
    let stored = world.stored().await;
    if matches!(told, Submitted::Satisfied { .. } | Submitted::Waiting(_)) {
        assert!(
            stored.tickets().contains_key(&ticket.id),
            "told {told:?}, but its ticket is not stored: {stored:?}"
        );
    }
    if let Submitted::Satisfied { verdict: Verdict::Satisfied { node, epoch, .. }, .. } = told {
        let hold = stored.holds().get(node);
        assert!(
            hold.is_some_and(|hold| hold.epoch == *epoch),
            "told {told:?}, but its grant is not stored: {stored:?}"
        );
        let open = world.target.open(&v());
        assert!(open.contains(&(epoch.number(), node.clone())), "told {told:?}, but the target has {open:?}");
    }
}
