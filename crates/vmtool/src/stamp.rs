//! Blocks that say who wrote them and when, so that nobody's write can be taken for another's.

/// How long a block is: what every disk writes at once.
pub const BLOCK: usize = 4096;

const MAGIC: [u8; 8] = *b"bowstamp";

/// Who wrote a block, and as which of its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// The writer's epoch.
    pub epoch: u64,
    /// Which of its writes this is: 1 and up.
    pub sequence: u64,
    /// Which block this is meant to be, counted from the start of the device.
    pub index: u64,
}

/// What a block turns out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Never written.
    Blank,
    /// A whole stamp.
    Stamp(Stamp),
    /// Parts of a stamp, or of several, or of another block.
    Torn,
    /// Something else, such as what a filesystem wrote.
    Other,
}

impl Stamp {
    /// The block: the stamp at its start, its checksum, and the stamp's numbers all over the rest, so that half a write is noticed.
    pub fn write(&self, block: &mut [u8]) {
        let words = [self.epoch, self.sequence, self.index];
        for (at, word) in block.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(words[at % 3] ^ at as u64).to_le_bytes());
        }
        block[..8].copy_from_slice(&MAGIC);
        for (at, word) in words.iter().enumerate() {
            block[8 + at * 8..16 + at * 8].copy_from_slice(&word.to_le_bytes());
        }
        let sum = checksum(&block[40..], &words);
        block[32..40].copy_from_slice(&sum.to_le_bytes());
    }

    /// What a block is.
    pub fn read(block: &[u8], index: u64) -> Found {
        if block.iter().all(|byte| *byte == 0) {
            return Found::Blank;
        }
        let word = |at: usize| block.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (Some(epoch), Some(sequence), Some(own), Some(sum)) = (word(8), word(16), word(24), word(32))
        else {
            return Found::Other;
        };
        if block[..8] != MAGIC {
            return Found::Other;
        }
        let is_whole = own == index && checksum(&block[40..], &[epoch, sequence, own]) == sum;
        if is_whole { Found::Stamp(Self { epoch, sequence, index }) } else { Found::Torn }
    }
}

/// FNV-1a, eight bytes at a time.
pub(crate) fn checksum(body: &[u8], head: &[u64; 3]) -> u64 {
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    let sum = head.iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| step(sum, *word));
    let (words, _) = body.as_chunks::<8>();
    words.iter().fold(sum, |sum, word| step(sum, u64::from_le_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { epoch: 3, sequence: 70_000, index: 12 };

    fn block(stamp: Stamp) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        stamp.write(&mut block);
        block
    }

    #[test]
    fn a_stamp_is_read_as_it_was_written() {
        assert_eq!(Stamp::read(&block(STAMP), 12), Found::Stamp(STAMP));
        assert_eq!(Stamp::read(&vec![0; BLOCK], 12), Found::Blank);
        assert_eq!(Stamp::read(&vec![7; BLOCK], 12), Found::Other);
    }

    #[test]
    fn what_is_not_whole_is_torn() {
        assert_eq!(Stamp::read(&block(STAMP), 13), Found::Torn, "the block of another place");
        let (old, new) = (block(STAMP), block(Stamp { sequence: 70_001, ..STAMP }));
        for sectors in 1..BLOCK / 512 {
            let half = [&new[..sectors * 512], &old[sectors * 512..]].concat();
            assert_eq!(Stamp::read(&half, 12), Found::Torn, "{sectors} sectors of the new one");
        }
    }
}
