use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

use crate::Dice;

/// What becomes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Luck {
    /// It goes through.
    Good,
    /// It is lost before it has any effect; the caller hears that nobody knows.
    LostBefore,
    /// It is done, and its answer is lost; the caller hears that nobody knows.
    LostAfter,
    /// It is done after a while.
    Slow(Duration),
    /// The process dies before it.
    DiesBefore,
    /// The process dies after it, before the answer.
    DiesAfter,
}

/// One call that left the process, in the order they were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it was.
    pub what: String,
    /// What became of it.
    pub luck: Luck,
}

enum Chooser {
    Calm,
    /// One step has this luck, all others are good.
    At(usize, Luck),
    /// Drawn by a seeded generator; this many calls in a thousand go wrong, and none after the given number of steps.
    Random {
        dice: Dice,
        per_thousand: u64,
        until: usize,
    },
}

/// Decides what becomes of every call that leaves the process.
pub struct Fate {
    chooser: Mutex<Chooser>,
    steps: Mutex<Vec<Step>>,
    dead: AtomicBool,
    died: Notify,
}

impl Fate {
    fn with(chooser: Chooser) -> Self {
        Self {
            chooser: Mutex::new(chooser),
            steps: Mutex::default(),
            dead: AtomicBool::new(false),
            died: Notify::new(),
        }
    }

    /// Everything goes well.
    pub fn calm() -> Self {
        Self::with(Chooser::Calm)
    }

    /// Step number `step`, counted from 0, has this luck; all others are good.
    pub fn at(step: usize, luck: Luck) -> Self {
        Self::with(Chooser::At(step, luck))
    }

    /// Of the first `until` steps, `per_thousand` in a thousand go wrong. The same seed gives the same run.
    pub fn random(seed: u64, per_thousand: u64, until: usize) -> Self {
        Self::with(Chooser::Random { dice: Dice::new(seed), per_thousand, until })
    }

    /// How many steps there were.
    pub fn count(&self) -> usize {
        self.steps.lock().unwrap().len()
    }

    /// Every step so far.
    pub fn steps(&self) -> Vec<Step> {
        self.steps.lock().unwrap().clone()
    }

    /// Whether the process has died.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Waits until the process dies.
    pub async fn death(&self) {
        loop {
            let died = self.died.notified();
            if self.is_dead() {
                return;
            }
            died.await;
        }
    }

    /// Makes one call, or what becomes of it. A call of a dead process never returns.
    pub(crate) async fn meet<T>(
        &self,
        what: String,
        call: impl Future<Output = T>,
        lost: impl FnOnce() -> T,
    ) -> T {
        if self.is_dead() {
            return std::future::pending().await;
        }
        match self.draw(what) {
            Luck::Good => call.await,
            Luck::LostBefore => lost(),
            Luck::LostAfter => {
                call.await;
                lost()
            }
            Luck::Slow(time) => {
                tokio::time::sleep(time).await;
                call.await
            }
            Luck::DiesBefore => self.die().await,
            Luck::DiesAfter => {
                call.await;
                self.die().await
            }
        }
    }

    async fn die<T>(&self) -> T {
        self.dead.store(true, Ordering::SeqCst);
        self.died.notify_waiters();
        std::future::pending().await
    }

    fn draw(&self, what: String) -> Luck {
        let mut steps = self.steps.lock().unwrap();
        let luck = match &mut *self.chooser.lock().unwrap() {
            Chooser::Calm => Luck::Good,
            Chooser::At(step, luck) if steps.len() == *step => *luck,
            Chooser::At(..) => Luck::Good,
            Chooser::Random { until, .. } if steps.len() >= *until => Luck::Good,
            Chooser::Random { dice, per_thousand, .. } => {
                if dice.below(1000) >= *per_thousand {
                    Luck::Good
                } else {
                    match dice.below(5) {
                        0 => Luck::LostBefore,
                        1 => Luck::LostAfter,
                        2 => Luck::DiesBefore,
                        3 => Luck::DiesAfter,
                        _ => Luck::Slow(Duration::from_millis(dice.below(90_000))),
                    }
                }
            }
        };
        steps.push(Step { what, luck });
        luck
    }
}
