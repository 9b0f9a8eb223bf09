//! How much room files take together: blocks that several of them share are there only once.

use super::directory::Directory;
use super::name::Part;
use crate::Item;
use bowline_host::extents::{self, Map};
use bowline_host::file;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;

/// How many stretches are remembered during one look; they take some 30 MiB. With shared volumes in more pieces than that,
/// less is promised than could be.
const MOST: usize = 1 << 20;

/// Stretches of the disk that have been counted.
#[derive(Debug)]
struct Counted {
    /// Where each begins and ends. No two touch each other.
    stretches: BTreeMap<u64, u64>,
    most: usize,
}

impl Counted {
    fn new(most: usize) -> Self {
        Self { stretches: BTreeMap::new(), most }
    }

    /// Counts a stretch, and says how many bytes of it are counted only now. One that cannot be remembered is none: it
    /// could be counted again.
    fn add(&mut self, stretch: Range<u64>) -> u64 {
        let Range { start, end } = stretch;
        let before = self.stretches.range(..=start).next_back().filter(|(_, last)| **last >= start);
        if start >= end || before.is_some_and(|(_, last)| *last >= end) {
            return 0;
        }
        let from = before.map_or(start, |(first, _)| *first);
        let touched: Vec<(u64, u64)> =
            self.stretches.range(from..=end).map(|(first, last)| (*first, *last)).collect();
        if touched.is_empty() && self.stretches.len() >= self.most {
            return 0;
        }
        let (mut new, mut to) = (end - start, end);
        for (first, last) in touched {
            new -= last.min(end).saturating_sub(first.max(start));
            to = to.max(last);
            self.stretches.remove(&first);
        }
        self.stretches.insert(from, to);
        new
    }

    /// How much room a file takes beside what has been counted.
    fn add_file(&mut self, path: &Path) -> io::Result<u64> {
        let file = match file::open_file(path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            other => other?,
        };
        let allocated = file::allocated(&file.metadata()?);
        let mut known = 0_u64;
        let map = extents::shared(&file, &mut |shared| {
            let new = shared.place.map_or(0, |place| self.add(place));
            known = known.saturating_add(shared.length.saturating_sub(new));
        })?;
        match map {
            Map::Whole => Ok(allocated.saturating_sub(known)),
            Map::Unsupported => Ok(allocated),
        }
    }
}

/// How much room the bytes of all these items take together. What is not certain is left out: then it seems to be kept by
/// others, and less is promised, not more.
pub(super) fn together(directory: &Directory, items: &[Item]) -> u64 {
    let mut counted = Counted::new(MOST);
    let mut sum = 0_u64;
    for item in items {
        for part in [Part::Data, Part::Partial] {
            let path = directory.path(item, part);
            match counted.add_file(&path) {
                Ok(bytes) => sum = sum.saturating_add(bytes),
                Err(error) => {
                    tracing::debug!(path = %path.display(), %error, "counts as kept by others");
                }
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DISK: usize = 96;

    fn stretches() -> impl Strategy<Value = Vec<Range<u64>>> {
        let one = (0..DISK as u64, 0..16_u64).prop_map(|(start, length)| start..start + length);
        prop::collection::vec(one, 0..40)
    }

    /// The bytes of a stretch that are not marked yet.
    fn mark(disk: &mut [bool], stretch: &Range<u64>) -> u64 {
        let mut new = 0;
        for byte in stretch.clone() {
            let byte = &mut disk[usize::try_from(byte).unwrap()];
            new += u64::from(!*byte);
            *byte = true;
        }
        new
    }

    proptest! {
        #[test]
        fn every_byte_is_counted_once(stretches in stretches()) {
            let mut disk = [false; DISK + 16];
            let mut counted = Counted::new(usize::MAX);
            for stretch in stretches {
                prop_assert_eq!(counted.add(stretch.clone()), mark(&mut disk, &stretch), "{:?} {:?}", stretch, counted);
                let ends: Vec<_> = counted.stretches.iter().collect();
                prop_assert!(ends.windows(2).all(|two| two[0].1 < two[1].0), "they touch: {:?}", counted);
            }
        }

        #[test]
        fn no_byte_is_counted_twice_where_not_all_are_remembered(stretches in stretches(), most in 0..6_usize) {
            let mut disk = [false; DISK + 16];
            let mut counted = Counted::new(most);
            let (mut sum, mut all) = (0, 0);
            for stretch in stretches {
                sum += counted.add(stretch.clone());
                all += mark(&mut disk, &stretch);
                prop_assert!(sum <= all && counted.stretches.len() <= most, "{} {} {:?}", sum, all, counted);
            }
            let kept: u64 = counted.stretches.iter().map(|(first, last)| last - first).sum();
            prop_assert_eq!(sum, kept);
        }
    }
}
