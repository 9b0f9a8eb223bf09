//! Writers in machines whose every write can be told from every other.

use super::{Running, Vm};
use bowline_vmtool::stamp::{Found, Stamp};
use std::collections::BTreeMap;
use std::time::Duration;

/// A writer that stamps blocks in a machine.
pub struct Writer {
    running: Running,
}

/// What a writer was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// How many writes were acknowledged.
    pub count: usize,
    /// The last that was, of each block.
    pub last: BTreeMap<u64, u64>,
    /// The numbers of the errors, in order.
    pub errors: Vec<i32>,
}

impl Vm {
    /// Starts to stamp a file or device. The options are those of `vmtool write`.
    pub fn stamp(&self, path: &str, epoch: u64, options: &str) -> Writer {
        let epoch = format!("epoch={epoch}");
        let mut words = vec!["vmtool", "write", path, &epoch];
        words.extend(options.split_whitespace());
        Writer { running: self.start(&words) }
    }

    /// What the blocks of a file or device are now, read past the cache.
    pub fn stamps(&self, path: &str, count: u64) -> Vec<Found> {
        let said = self.sh(&format!("vmtool stamps {path} count={count} direct"));
        said.lines().map(parse).collect()
    }

    /// A number that is another one as soon as a byte of a file or device is, read past the cache.
    pub fn sum(&self, path: &str) -> String {
        self.sh(&format!("vmtool sum {path}"))
    }
}

fn parse(line: &str) -> Found {
    let number = |word: &str| word.parse::<u64>().unwrap_or_else(|_| panic!("vmtool stamps says {line:?}"));
    match line.split(' ').collect::<Vec<_>>().as_slice() {
        [_, "blank"] => Found::Blank,
        [_, "torn"] => Found::Torn,
        [_, "other"] => Found::Other,
        [index, epoch, sequence] => {
            Found::Stamp(Stamp { epoch: number(epoch), sequence: number(sequence), index: number(index) })
        }
        _ => panic!("vmtool stamps says {line:?}"),
    }
}

/// How many of the blocks have a stamp of an epoch.
pub fn count_of(epoch: u64, blocks: &[Found]) -> usize {
    blocks.iter().filter(|block| matches!(block, Found::Stamp(stamp) if stamp.epoch == epoch)).count()
}

impl Told {
    fn from(out: &str) -> Self {
        let mut told = Self::default();
        // The last line may not be whole yet.
        let whole = out.rfind('\n').map_or("", |end| &out[..end]);
        for line in whole.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["ack", sequence, block] => {
                    told.count += 1;
                    let (block, sequence): (u64, u64) = (block.parse().unwrap(), sequence.parse().unwrap());
                    told.last.entry(block).and_modify(|last| *last = sequence.max(*last)).or_insert(sequence);
                }
                ["error", _, _, errno, ..] => told.errors.push(errno.parse().unwrap()),
                _ => panic!("vmtool write says {line:?}"),
            }
        }
        told
    }

    /// Panics unless everything that was acknowledged is there: that very write, or a later one of the same writer.
    pub fn assert_kept(&self, epoch: u64, blocks: &[Found]) {
        for (block, sequence) in &self.last {
            let found = blocks[*block as usize];
            let is_kept =
                matches!(found, Found::Stamp(stamp) if stamp.epoch == epoch && stamp.sequence >= *sequence);
            assert!(
                is_kept,
                "block {block}: write {sequence} of epoch {epoch} was acknowledged, but there is {found:?}"
            );
        }
    }
}

impl Writer {
    /// What it was told until now.
    pub fn told(&mut self) -> Told {
        Told::from(&self.running.so_far().out)
    }

    /// Waits until that many writes more were acknowledged.
    pub fn more(&mut self, writes: usize) {
        let before = self.told().count;
        let (what, enough) = (format!("{writes} more writes"), before + writes);
        self.running.wait_until(&what, super::PATIENCE, |out| Told::from(out).count >= enough);
    }

    /// Waits for the first error; its number.
    pub fn must_fail_within(&mut self, patience: Duration) -> i32 {
        self.running.wait_until("an error", patience, |out| !Told::from(out).errors.is_empty());
        self.told().errors[0]
    }

    /// Waits for its end; what it was told.
    pub fn finish(mut self) -> Told {
        self.running.succeed();
        self.told()
    }

    /// Ends it; what it was told. A write that hangs in the kernel is left to it.
    pub fn stop(mut self) -> Told {
        self.running.signal("KILL");
        self.running.wait_for(Duration::from_secs(5));
        self.told()
    }
}
