//! The superblocks of the filesystems Bowline makes: is it one, is it whole, what does it own.
//!
//! Layouts: the kernel's `ext4.h`, `xfs_format.h`, `btrfs_tree.h`. Checksums are checked where the filesystem has
//! them: the bytes may come from anybody.

use crate::format::{FsType, FsUuid};
use crate::signature::Sample;

/// A superblock that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) fs: FsType,
    pub(crate) uuid: FsUuid,
    /// The bytes that are the filesystem's; what looks like something else in there is its users' data.
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// What is wrong with a superblock that has the right magic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// Its mkfs did not get to its end.
    #[error("is half made")]
    HalfMade,
    /// Its checksum is wrong.
    #[error("has a damaged superblock")]
    Checksum,
    /// It does not fit.
    #[error("is larger than its device")]
    TooLarge,
    /// Its fields contradict each other.
    #[error("has a superblock that makes no sense")]
    Nonsense,
}

/// What is where a superblock would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Whole(Superblock),
    Flawed(FsType, u64, Flaw),
    /// A relative that is not made or mounted here.
    Relative(&'static str, u64),
}

/// Everything found, the lowest offset first.
pub(crate) fn superblocks(sample: &Sample) -> Vec<Found> {
    [xfs(sample), ext(sample), btrfs(sample)].into_iter().flatten().collect()
}

fn whole(fs: FsType, uuid: &[u8], start: u64, bytes: Option<u64>, size: u64) -> Found {
    let uuid = <[u8; 16]>::try_from(uuid).map(FsUuid::from_bytes);
    match (uuid, bytes) {
        (Ok(uuid), Some(bytes)) if bytes > start && bytes <= size => {
            Found::Whole(Superblock { fs, uuid, start, end: bytes })
        }
        (Ok(_), Some(bytes)) if bytes > size => Found::Flawed(fs, start, Flaw::TooLarge),
        _ => Found::Flawed(fs, start, Flaw::Nonsense),
    }
}

/// How much of a device's beginning has the superblock of a filesystem, whatever its sectors are.
pub(crate) fn superblock_within(fs: FsType) -> u64 {
    match fs {
        FsType::Ext4 => 4096,
        FsType::Xfs => 32_768,
        FsType::Btrfs => BTRFS + 4096,
    }
}

const EXT: u64 = 1024;

fn ext(sample: &Sample) -> Option<Found> {
    let block = sample.at(EXT, 1024)?;
    let field = |at| le32(block, at);
    if block.get(56..58)? != [0x53, 0xEF] {
        return None;
    }
    let (compat, incompat, ro_compat) = (field(92)?, field(96)?, field(100)?);
    if incompat & 0x8 != 0 {
        return Some(Found::Relative("a journal of an ext4 filesystem", EXT));
    }
    let checksum = le32(block, 0x3FC)?;
    // metadata_csum; ext4 keeps the checksum without the usual final inversion.
    if ro_compat & 0x400 != 0 && checksum != !crc32c(&[block.get(..0x3FC)?]) {
        return Some(Found::Flawed(FsType::Ext4, EXT, Flaw::Checksum));
    }
    // The features that the ext2 and ext3 drivers knew; everything beyond makes it an ext4.
    let old = ro_compat & !0x7 == 0 && incompat & !0x16 == 0;
    if old {
        let name = if compat & 0x4 != 0 { "an ext3 filesystem" } else { "an ext2 filesystem" };
        return Some(Found::Relative(name, EXT));
    }
    let high = if incompat & 0x80 != 0 { u64::from(field(336)?) } else { 0 };
    let blocks = (high << 32) | u64::from(field(4)?);
    let block_size = field(24).filter(|log| *log <= 6).map(|log| 1024_u64 << log);
    let bytes = block_size.and_then(|size| blocks.checked_mul(size));
    Some(whole(FsType::Ext4, block.get(104..120)?, EXT, bytes, sample.size()))
}

fn xfs(sample: &Sample) -> Option<Found> {
    let block = sample.at(0, 512)?;
    if block.get(..4)? != b"XFSB" {
        return None;
    }
    // mkfs.xfs sets this when it begins and clears it as its last write.
    if *block.get(126)? != 0 {
        return Some(Found::Flawed(FsType::Xfs, 0, Flaw::HalfMade));
    }
    let (version, sector) = (be16(block, 100)? & 0xF, usize::from(be16(block, 102)?));
    if !matches!(version, 4 | 5) || !sector.is_power_of_two() || !(512..=32_768).contains(&sector) {
        return Some(Found::Flawed(FsType::Xfs, 0, Flaw::Nonsense));
    }
    if version == 5 {
        let block = sample.at(0, sector)?;
        let summed = crc32c(&[block.get(..224)?, &[0; 4], block.get(228..)?]);
        if le32(block, 224)? != summed {
            return Some(Found::Flawed(FsType::Xfs, 0, Flaw::Checksum));
        }
    }
    let bytes = be64(block, 8)?.checked_mul(u64::from(be32(block, 4)?));
    Some(whole(FsType::Xfs, block.get(32..48)?, 0, bytes, sample.size()))
}

const BTRFS: u64 = 65_536;

fn btrfs(sample: &Sample) -> Option<Found> {
    let block = sample.at(BTRFS, 4096)?;
    match block.get(64..72)? {
        b"_BHRfS_M" => {}
        // mkfs.btrfs writes this magic first, and the real one as its last write.
        b"!BHRfS_M" => return Some(Found::Flawed(FsType::Btrfs, BTRFS, Flaw::HalfMade)),
        _ => return None,
    }
    let crc32c_type = block.get(196..198)? == [0, 0];
    if crc32c_type && le32(block, 0)? != crc32c(&[block.get(32..)?]) {
        return Some(Found::Flawed(FsType::Btrfs, BTRFS, Flaw::Checksum));
    }
    if le64(block, 136)? != 1 {
        return Some(Found::Relative("one of several devices of a btrfs filesystem", BTRFS));
    }
    Some(whole(FsType::Btrfs, block.get(32..48)?, BTRFS, le64(block, 112), sample.size()))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}
fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}
fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}
fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_be_bytes)
}
fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}
fn le64(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

/// CRC-32C (Castagnoli), bit by bit: a few KiB per probe are not worth a table or a dependency.
fn crc32c(parts: &[&[u8]]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82F6_3B78 * (crc & 1)))
    };
    !parts.iter().flat_map(|part| part.iter()).fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_standard() {
        // RFC 3720, B.4, and the usual check value.
        for (bytes, expected) in
            [(&b"123456789"[..], 0xE306_9283), (&[0; 32], 0x8A91_36AA), (&[0xFF; 32], 0x62A8_AB43)]
        {
            assert_eq!(crc32c(&[bytes]), expected);
            let (a, b) = bytes.split_at(4);
            assert_eq!(crc32c(&[a, b]), expected, "in parts");
        }
    }
}
