//! Sweeps: every step that leaves the process goes wrong once, in every way, in every story.

use std::sync::Arc;
use std::time::Duration;

use crate::{Fate, Luck};

const WAYS: [Luck; 5] = [
    Luck::DiesBefore,
    Luck::DiesAfter,
    Luck::LostBefore,
    Luck::LostAfter,
    Luck::Slow(Duration::from_secs(45)),
];

/// Something that is done step by step, and that another process can go on with.
pub trait Story {
    /// What outlives a process, and how far the story has come.
    type World;

    /// What it is called.
    fn name(&self) -> &str;

    /// How it begins.
    fn world(&self) -> Self::World;

    /// Goes on with it, in a process of its own, until the end or the process's death. Returns whether the end was reached.
    fn play(&self, world: &mut Self::World, fate: &Arc<Fate>) -> bool;

    /// Checks the end that every way must come to; `how` says which way it was.
    fn check_end(&self, world: &Self::World, how: &str);
}

/// Lives in a process of its own, with a clock of its own, until everything is done or the process is dead. Returns whether it
/// was done, and how long that took.
pub fn live(fate: &Fate, life: impl Future<Output = ()>) -> (bool, Duration) {
    let process =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let lived = process.block_on(async {
        let begin = tokio::time::Instant::now();
        let (life, death) = (std::pin::pin!(life), std::pin::pin!(fate.death()));
        let ended = futures::future::select(life, death).await;
        (matches!(ended, futures::future::Either::Left(_)), begin.elapsed())
    });
    // Dropping the runtime ends every task where it stands: whatever was not durable is lost.
    drop(process);
    lived
}

/// Plays a story with one thing going wrong; further processes are calm. Tells whether it went wrong at all.
fn play_with<S: Story>(story: &S, step: usize, luck: Luck) -> bool {
    let (mut world, fate) = (story.world(), Arc::new(Fate::at(step, luck)));
    if !story.play(&mut world, &fate) {
        assert!(story.play(&mut world, &Arc::new(Fate::calm())), "a calm process dies");
    }
    story.check_end(&world, &format!("{luck:?} at step {step} of {:?}", fate.steps()));
    fate.count() > step
}

/// Lets every step of every story go wrong once, in every way. Returns how often something did.
#[allow(clippy::print_stdout, reason = "a test says what it covered")]
pub fn every_step<S: Story>(stories: &[S]) -> usize {
    let mut points = 0;
    for story in stories {
        let mut here = 0;
        for luck in WAYS {
            here += (0..).take_while(|step| play_with(story, *step, luck)).count();
        }
        println!("{here:>5} points: {}", story.name());
        points += here;
    }
    points
}

/// Lets a second process die on the way back from the death of the first, at every pair of steps. Returns how many pairs there
/// were.
pub fn every_second_death<S: Story>(stories: &[S]) -> usize {
    let mut pairs = 0;
    for story in stories {
        for first in 0.. {
            let mut hit = false;
            for second in 0.. {
                let mut world = story.world();
                let deaths = [first, second].map(|step| Arc::new(Fate::at(step, Luck::DiesAfter)));
                let ended = deaths.iter().any(|fate| story.play(&mut world, fate));
                assert!(ended || story.play(&mut world, &Arc::new(Fate::calm())), "a calm process dies");
                story.check_end(&world, &format!("deaths after step {first} and then after step {second}"));
                hit = deaths[0].is_dead();
                pairs += usize::from(deaths[1].is_dead());
                if !deaths[1].is_dead() {
                    break;
                }
            }
            if !hit {
                break;
            }
        }
    }
    pairs
}
