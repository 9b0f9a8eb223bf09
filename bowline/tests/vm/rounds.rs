//! The fence again and again: with other pauses each time, written in all ways, and with deaths of the agent and of the controller at every
//! step of letting in and of shutting out.
//!
//! Some rounds in `make test`, a hundred and every death with `BOWLINE_VM=all`. `BOWLINE_SEED` makes them others.

use crate::bystander::Bystander;
use crate::fence::{must_fail, take_down};
use bowline_csi::wire;
use bowline_testkit::driver::{BLOCK, Driver, How, MIB, RWO};
use bowline_testkit::vm::{Found, Kernel, Site, Told, Vm, Writer, bring, count_of, insist};
use bowline_testkit::{Dice, say};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Status;

const SOON: Duration = Duration::from_secs(60);
/// What only confirms is written up to a second after an order was answered.
const LATE: Duration = Duration::from_secs(2);
/// In how many rounds a death may be waited for in vain: an agent that has just been started writes whole records, and not in place.
const TRIES: usize = 6;
/// How many blocks are written and flushed, and how many are dirtied.
const BLOCKS: u64 = 256;
const DIRT: u64 = 64;

/// How a volume is written.
const MANNERS: [Manner; 4] = [
    Manner { name: "direct", how: BLOCK, options: "direct threads=8", is_laid_out: false },
    Manner { name: "flushed", how: BLOCK, options: "threads=4", is_laid_out: false },
    Manner { name: "ext4", how: RWO.fs("ext4"), options: "threads=4", is_laid_out: false },
    Manner { name: "ext4-direct", how: RWO.fs("ext4"), options: "direct threads=4", is_laid_out: true },
];

struct Manner {
    name: &'static str,
    how: How,
    options: &'static str,
    /// The file has its blocks before: a write past the cache does not wait for what it changes of the filesystem.
    is_laid_out: bool,
}

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Much {
    /// So many deaths while a node is let in, and as many while it is shut out; every one if not said.
    deaths: Option<usize>,
    /// At least so many rounds.
    rounds: u64,
}

impl Much {
    /// Every manner once, and so many deaths of each kind; or everything, if there is time for that.
    pub(crate) fn of(deaths: usize) -> Self {
        match crate::is_thorough() {
            true => Self { deaths: None, rounds: 100 },
            false => Self { deaths: Some(deaths), rounds: 0 },
        }
    }
}

/// What the controller is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    LetIn,
    ShutOut,
}

/// The process of a machine dies while an order is carried out, at a failpoint that it has passed so many times before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Death {
    machine: &'static str,
    order: Order,
    point: String,
    after: usize,
}

/// A volume that node a is let in to, or was never, and what must be on it.
struct Held {
    volume: wire::Volume,
    manner: &'static Manner,
    epoch: Option<u64>,
}

/// Where a node sees a volume.
struct Seen {
    stamps: String,
    dirt: String,
    /// The first block that is dirtied.
    first: u64,
}

impl Seen {
    fn new(pod: &str, manner: &Manner) -> Self {
        if manner.how.block {
            return Self { stamps: pod.to_owned(), dirt: pod.to_owned(), first: BLOCKS };
        }
        Self { stamps: format!("{pod}/stamps"), dirt: format!("{pod}/dirt"), first: 0 }
    }

    fn lay_out(&self, on: &Vm) {
        on.sh(&format!("dd if=/dev/zero of={} bs=4096 count={BLOCKS} conv=fsync 2>/dev/null", self.stamps));
    }

    /// Goes on until it is killed, whatever it is told.
    fn write(&self, on: &Vm, epoch: u64, options: &str) -> Writer {
        on.stamp(&self.stamps, epoch, &format!("{options} count={BLOCKS} stubborn"))
    }

    /// Leaves blocks in the node's memory that nobody flushes.
    fn soil(&self, on: &Vm, epoch: u64) {
        let options = format!("lazy first={} count={DIRT} writes={DIRT}", self.first);
        on.stamp(&self.dirt, epoch, &options).finish();
    }

    /// Every block, flushed.
    fn fill(&self, on: &Vm, epoch: u64) {
        on.stamp(&self.stamps, epoch, &format!("direct count={BLOCKS} writes={BLOCKS}")).finish();
        let options = format!("direct first={} count={DIRT} writes={DIRT}", self.first);
        on.stamp(&self.dirt, epoch, &options).finish();
    }

    fn flushed(&self, on: &Vm) -> Vec<Found> {
        on.stamps(&self.stamps, BLOCKS)
    }

    /// Panics unless every block is of this epoch.
    fn assert_full_of(&self, on: &Vm, epoch: u64, when: &str) {
        let dirt = on.stamps(&self.dirt, self.first + DIRT).split_off(self.first as usize);
        let found = (count_of(epoch, &self.flushed(on)) as u64, count_of(epoch, &dirt) as u64);
        assert_eq!(found, (BLOCKS, DIRT), "blocks of {epoch} on {}, {when}: {dirt:?}", on.name());
    }
}

struct Rounds {
    site: Site,
    dice: Dice,
    held: Vec<Held>,
    /// The manner of the last round.
    last: usize,
    number: u64,
    fences: Vec<Duration>,
    /// In how many rounds the old connection was still tried again when the node was let in again.
    retrying: usize,
    /// Where somebody died.
    died: BTreeSet<Death>,
    /// Every point that each of the two machines passed on the way in and on the way out, in a round without a death.
    passed: Vec<Death>,
    /// Another volume of the same target, which has nothing to do with all of this.
    bystander: Bystander,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_determined_writer_does_not_pass_the_fence() {
    let Some(site) = crate::site(Kernel::Debian12) else { return };
    run(site, "fence", Much::of(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-vm has the time"]
async fn a_determined_writer_does_not_pass_the_fence_on_linux_6_12() {
    let Some(site) = crate::site(Kernel::Debian13) else { return };
    run(site, "fence on Linux 6.12", Much { deaths: Some(6), rounds: 25 }).await;
}

/// Every manner once, and then with deaths. One that did not come is waited for in a later round.
pub(crate) async fn run(site: Site, what: &str, much: Much) -> Site {
    let seed = std::env::var("BOWLINE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("BOWLINE_SEED={seed}");
    let mut rounds = Rounds::new(site, seed).await;
    for at in 0..MANNERS.len() {
        rounds.round(at, None).await;
    }
    let mut due: VecDeque<Death> = rounds.every_death().into();
    if let Some(some) = much.deaths {
        let some = |order| due.iter().filter(move |death| death.order == order).take(some).cloned();
        due = some(Order::LetIn).chain(some(Order::ShutOut)).collect();
    }
    let (planned, mut tries) = (BTreeSet::from_iter(due.iter().cloned()), BTreeMap::new());
    while rounds.number < much.rounds || !due.is_empty() {
        // Where there is time, every second one is without a death.
        let is_quiet = much.rounds > 0 && rounds.number % 2 == 0;
        let death = due.pop_front_if(|_| !is_quiet);
        let tried = death.as_ref().and_then(|death| tries.get(death)).copied().unwrap_or(0);
        let any = rounds.dice.below(MANNERS.len() as u64) as usize;
        // Most of what did not come needs a volume that this very agent has closed before.
        rounds.round(if tried > 0 { rounds.last } else { any }, death.as_ref()).await;
        if let Some(death) = death.filter(|death| !rounds.died.contains(death)) {
            assert!(tried < TRIES, "nobody died at {death:?} in {TRIES} rounds");
            tries.insert(death.clone(), tried + 1);
            due.push_back(death);
        }
    }
    assert_eq!(rounds.died, planned, "there was a death everywhere");
    rounds.end(what, seed).await
}

impl Rounds {
    async fn new(mut site: Site, seed: u64) -> Self {
        // An hour, in which nothing is written back on its own.
        let script =
            "for name in writeback expire; do echo 360000 >/proc/sys/vm/dirty_${name}_centisecs; done";
        site.lab.vm("a").sh(script);
        let mut held = vec![];
        for manner in &MANNERS {
            let volume = site.control.create(manner.name, 32 * MIB, manner.how).await.unwrap();
            held.push(Held { volume, manner, epoch: None });
        }
        let (dice, bystander) = (Dice::new(seed), Bystander::new(&mut site).await);
        let (died, passed, fences) = (BTreeSet::new(), vec![], vec![]);
        Self { site, dice, held, last: 0, number: 0, fences, retrying: 0, died, passed, bystander }
    }

    async fn pause(&mut self) {
        tokio::time::sleep(Duration::from_millis(self.dice.below(400))).await;
    }

    /// Node a writes and is shut out; node b is let in and writes; node a is let in again, while it still has what it had.
    async fn round(&mut self, at: usize, death: Option<&Death>) {
        let lab = Arc::clone(&self.site.lab);
        let (target, on_a, on_b) = (lab.vm("target"), lab.vm("a"), lab.vm("b"));
        let Held { volume, manner, epoch } = &self.held[at];
        let (volume, manner, before, id) = (volume.clone(), *manner, *epoch, &volume.volume_id.clone());
        let (mine, theirs) = (2 * self.number + 1, 2 * self.number + 2);
        let (file, about) =
            (self.site.file(id), format!("round {}, {}, {death:?}", self.number, manner.name));
        println!("{about}");

        let pod = bring(&mut self.site.control, &mut self.site.a, &volume, manner.how).await.unwrap();
        let seen = Seen::new(&pod, manner);
        match before {
            Some(before) => seen.assert_full_of(on_a, before, "after it was let in again"),
            None if manner.is_laid_out => seen.lay_out(on_a),
            None => {}
        }
        let mut writer = seen.write(on_a, mine, manner.options);
        writer.more(8 + self.dice.below(64) as usize);
        seen.soil(on_a, mine);
        lab.cut("a", "control");
        self.pause().await;

        let begun = Instant::now();
        self.carry_out(Order::ShutOut, &volume, manner.how, death).await;
        self.fences.push(begun.elapsed());
        let at_the_fence = target.sum(&file);
        assert_eq!(exports_of(target, id), "", "{about}: it is exported while nobody is let in");
        self.bystander.goes_on(on_b, &about);
        self.pause().await;
        assert_eq!(target.sum(&file), at_the_fence, "{about}: something came after the fence");

        let pod = bring(&mut self.site.control, &mut self.site.b, &volume, manner.how).await.unwrap();
        let there = Seen::new(&pod, manner);
        if manner.how.block {
            assert_eq!(target.sum(&file), at_the_fence, "{about}: something came after the next was let in");
        }
        let found = there.flushed(on_b);
        there.fill(on_b, theirs);
        self.pause().await;
        there.assert_full_of(on_b, theirs, "while a goes on");
        self.site.b.detach_all(&mut self.site.control, id, "pod").await.unwrap();
        lab.mend("a", "control");

        self.carry_out(Order::LetIn, &volume, manner.how, death).await;
        let at_the_grant = target.sum(&file);
        self.assert_refused(&volume, manner.how, &about).await;
        must_fail(lab.vm("a"), &mut writer);
        let told: Told = writer.stop();
        // Also what it was told after somebody else had heard of the fence.
        told.assert_kept(mine, &found);
        take_down(&mut self.site, id).await;
        assert_eq!(target.sum(&file), at_the_grant, "{about}: something came when it was let in again");
        self.bystander.goes_on(on_b, &about);
        self.held[at].epoch = Some(theirs);
        self.number += 1;
        self.last = at;
    }

    /// Let in again, the node does not take the new disk while it has the old one.
    async fn assert_refused(&mut self, volume: &wire::Volume, how: How, about: &str) {
        let context = self.site.control.publish(volume, "a", how, false).await.unwrap();
        let states = self.site.lab.vm("a").sh("cat /sys/class/nvme/*/state 2>/dev/null || :");
        self.retrying += usize::from(states.contains("connecting"));
        let refused = self.site.a.stage(volume, &context, how).await.unwrap_err();
        assert!(refused.message().contains("epoch"), "{about}: {refused}");
    }

    /// Has an order carried out for node a, if need be by asking again after a death.
    async fn carry_out(&mut self, order: Order, volume: &wire::Volume, how: How, death: Option<&Death>) {
        let before = ["target", "control"].map(|machine| self.site.points(machine).len());
        if let Some(death) = death.filter(|death| death.order == order) {
            self.die(death, volume, how).await;
        }
        let control = &self.site.control;
        insist("an order to be carried out", || ask(control.clone(), volume.clone(), how, order)).await;
        if death.is_none() && self.passed.iter().all(|passed| passed.order != order) {
            for (machine, before) in ["target", "control"].into_iter().zip(before) {
                let mut times = BTreeMap::<_, usize>::new();
                for point in self.site.points(machine).split_off(before) {
                    let seen = times.entry(point.clone()).or_default();
                    self.passed.push(Death { machine, order, point, after: *seen });
                    *seen += 1;
                }
            }
        }
    }

    /// Asks for an order whose death it is; it may not come.
    async fn die(&mut self, death: &Death, volume: &wire::Volume, how: How) {
        let Death { machine, order, point, after } = death;
        self.site.arm(machine, &format!("{point} {after}"));
        let asked = tokio::spawn(ask(self.site.control.clone(), volume.clone(), how, *order));
        let (begun, mut answered) = (Instant::now(), None::<Instant>);
        while self.site.stopped(machine).is_none() && answered.is_none_or(|at| at.elapsed() < LATE) {
            assert!(begun.elapsed() < SOON, "waited {SOON:?} for {death:?}");
            if asked.is_finished() {
                answered.get_or_insert_with(Instant::now);
            }
        }
        self.site.disarm(machine);
        tokio::time::sleep(Duration::from_millis(100)).await;
        if self.site.stopped(machine).is_some() {
            self.died.insert(death.clone());
            self.site.again(machine);
        } else {
            println!("  it did not come");
        }
        let _ = tokio::time::timeout(SOON, asked).await.expect("an order that ends");
    }

    /// Every place where one of the two can die, shuffled.
    fn every_death(&mut self) -> Vec<Death> {
        let mut all = self.passed.clone();
        for at in (1..all.len()).rev() {
            all.swap(at, self.dice.below(at as u64 + 1) as usize);
        }
        all
    }

    async fn end(mut self, what: &str, seed: u64) -> Site {
        for Held { volume, manner, epoch } in &self.held {
            let pod = bring(&mut self.site.control, &mut self.site.a, volume, manner.how).await.unwrap();
            Seen::new(&pod, manner).assert_full_of(self.site.lab.vm("a"), epoch.unwrap(), "at the end");
            self.site.a.detach_all(&mut self.site.control, &volume.volume_id, "pod").await.unwrap();
        }
        let aside = self.bystander.end(&mut self.site).await;
        let left = (self.site.exports(), self.site.controllers("a"), self.site.controllers("b"));
        assert_eq!(left, Default::default());
        say(&format!(
            "{what}: {} rounds with a writer who goes on (seed {seed}), {} of them with the old connection tried again when the node was let in again, a death of agent or controller at {} of {} points, {aside} writes of another volume without an error; the longest fence took {:?}",
            self.number,
            self.retrying,
            self.died.len(),
            self.passed.len(),
            self.fences.iter().max().unwrap()
        ));
        self.site
    }
}

async fn ask(mut control: Driver, volume: wire::Volume, how: How, order: Order) -> Result<(), Status> {
    match order {
        Order::LetIn => control.publish(&volume, "a", how, false).await.map(drop),
        Order::ShutOut => control.unpublish(&volume.volume_id, "a").await,
    }
}

/// What the target's kernel exports of one volume.
fn exports_of(target: &Vm, volume: &str) -> String {
    target.sh(&format!("ls /sys/kernel/config/nvmet/subsystems | grep -F ':{volume}:' || :"))
}
