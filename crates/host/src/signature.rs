//! What else may be on a device: everything here is somebody's, and none of it is ever formatted.
//!
//! Recognising these is a courtesy to people. Safety does not rest on it: bytes that are not zero are never blank,
//! known or not.

/// The beginning and the end of a device, and pages between.
#[derive(Clone, Debug)]
pub struct Sample {
    size: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
    /// Those that are not blank, by where they are.
    pages: Vec<(u64, Vec<u8>)>,
}

/// How much of the beginning is read: to behind every superblock of the first partition of a disk, which begins at 1 MiB. That of btrfs lies
/// 64 KiB further.
pub const HEAD: u64 = (1 << 20) + (128 << 10);
/// How much of the end is read.
pub const TAIL: u64 = 512 << 10;
/// A page.
pub const PAGE: u64 = 4096;

/// The pages between the beginning and the end of a device that are looked at, too: close to each other where things begin, and
/// then all over the device. What begins with zeros is not blank for that.
pub fn pages(size: u64) -> Vec<u64> {
    let near = (1..=16).map(|quarter| quarter * (256 << 10));
    let far = (1..=20).map(|part| size / 21 * part / PAGE * PAGE);
    let between = |at: &u64| *at >= HEAD && at + PAGE <= size.saturating_sub(TAIL);
    let mut pages: Vec<u64> = near.chain(far).filter(between).collect();
    pages.sort_unstable();
    pages.dedup();
    pages
}

impl Sample {
    /// Of a device with this size: its first [`HEAD`] and its last [`TAIL`] bytes, or all it has; less where that tells enough.
    pub fn new(size: u64, head: Vec<u8>, tail: Vec<u8>) -> Self {
        Self { size, head, tail, pages: vec![] }
    }

    /// With those of its [`pages`] that are not blank.
    #[must_use]
    pub fn with_pages(mut self, pages: Vec<(u64, Vec<u8>)>) -> Self {
        self.pages = pages;
        self.pages.sort_unstable();
        self
    }

    /// Its beginning, as far as it was read.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// The device's size.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of the device, if they are in the sample.
    pub(crate) fn at(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let tail = self.size.checked_sub(self.tail.len() as u64)?;
        let part = |bytes: &'_ [u8], from: u64| -> Option<std::ops::Range<usize>> {
            let start = usize::try_from(offset.checked_sub(from)?).ok()?;
            let end = start.checked_add(length)?;
            (end <= bytes.len()).then_some(start..end)
        };
        part(&self.head, 0)
            .and_then(|range| self.head.get(range))
            .or_else(|| part(&self.tail, tail).and_then(|range| self.tail.get(range)))
            .or_else(|| self.pages.iter().find_map(|(at, page)| page.get(part(page, *at)?)))
    }

    fn has(&self, offset: u64, magic: &[u8]) -> bool {
        self.at(offset, magic.len()) == Some(magic)
    }

    /// Where the first byte is that is not zero.
    pub(crate) fn first_byte(&self) -> Option<u64> {
        let first = |bytes: &[u8]| crate::direct::first_byte(bytes).map(|at| at as u64);
        let tail = self.size.saturating_sub(self.tail.len() as u64);
        let page = || self.pages.iter().find_map(|(at, page)| Some(first(page)? + at));
        first(&self.head).or_else(page).or_else(|| first(&self.tail).map(|at| at + tail))
    }
}

/// Signatures at a fixed place.
const FIXED: &[(u64, &[u8], &str)] = &[
    (0, b"LUKS\xBA\xBE", "a LUKS encrypted volume"),
    (0, b"hsqs", "a squashfs filesystem"),
    (0, b"verity\0\0", "a dm-verity hash device"),
    (0, b"integrt\0", "a dm-integrity device"),
    (0, b"bluestore block device", "a Ceph BlueStore device"),
    (3, b"NTFS    ", "an NTFS filesystem"),
    (3, b"EXFAT   ", "an exFAT filesystem"),
    (3, b"-FVE-FS-", "a BitLocker volume"),
    (54, b"FAT12   ", "a FAT filesystem"),
    (54, b"FAT16   ", "a FAT filesystem"),
    (82, b"FAT32   ", "a FAT filesystem"),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (1024, b"\x10\x20\xF5\xF2", "an f2fs filesystem"),
    (1024, b"\xE2\xE1\xF5\xE0", "an erofs filesystem"),
    (0, b"\xFC\x4E\x2B\xA9", "a member of a Linux RAID"),
    (4096, b"\xFC\x4E\x2B\xA9", "a member of a Linux RAID"),
    (4120, b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA", "a bcache or bcachefs device"),
    (4120, b"\xC6\x85\x73\xF6\x66\xCE\x90\xA9", "a bcache or bcachefs device"),
    (32_768, b"JFS1", "a JFS filesystem"),
    (32_769, b"CD001", "an ISO 9660 filesystem"),
    (32_769, b"NSR0", "a UDF filesystem"),
    (65_588, b"ReIsEr", "a ReiserFS filesystem"),
];

/// Every signature that is not one of ours, with where it is.
pub(crate) fn signatures(sample: &Sample) -> Vec<(u64, &'static str)> {
    let mut found: Vec<_> = FIXED
        .iter()
        .filter(|(at, magic, _)| sample.has(*at, magic))
        .map(|(at, _, name)| (*at, *name))
        .collect();
    found.extend(swap(sample));
    found.extend(lvm(sample));
    found.extend(second_luks_header(sample));
    found.extend(raid_at_the_end(sample));
    found.extend(partitions(sample));
    found.extend(zfs(sample));
    found.sort_unstable();
    found
}

/// In the last ten bytes of the first page, whose size depends on the machine it was made on.
fn swap(sample: &Sample) -> Option<(u64, &'static str)> {
    let pages = [4096_u64, 8192, 16_384, 32_768, 65_536];
    let magics: [&[u8]; 4] = [b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND\0", b"S2SUSPEND\0"];
    let at = pages.into_iter().map(|page| page - 10);
    at.filter(|at| magics.iter().any(|magic| sample.has(*at, magic))).map(|at| (at, "a swap area")).next()
}

/// In any of the first four sectors.
fn lvm(sample: &Sample) -> Option<(u64, &'static str)> {
    let sectors = (0..4_u64).map(|sector| sector * 512);
    let mut labels = sectors.filter(|at| sample.has(*at, b"LABELONE") && sample.has(at + 24, b"LVM2 001"));
    labels.next().map(|at| (at, "an LVM physical volume"))
}

/// LUKS2 keeps a second header, at one of these places, in case the first is lost.
fn second_luks_header(sample: &Sample) -> Option<(u64, &'static str)> {
    let mut places = (14..=21).map(|bit| 1_u64 << bit).filter(|at| sample.has(*at, b"SKUL\xBA\xBE"));
    places.next().map(|at| (at, "a LUKS encrypted volume"))
}

/// Metadata 0.90 and 1.0 lie near the end: 64 KiB aligned, and 8 to 12 KiB before it.
fn raid_at_the_end(sample: &Sample) -> Option<(u64, &'static str)> {
    let size = sample.size();
    let old = (size & !0xFFFF).checked_sub(0x1_0000);
    let new = (size / 512).checked_sub(16).map(|sector| (sector & !7) * 512);
    let magics: [&[u8]; 2] = [b"\xFC\x4E\x2B\xA9", b"\xA9\x2B\x4E\xFC"];
    let mut places = [old, new].into_iter().flatten();
    let at = places.find(|at| *at > 4096 && magics.iter().any(|magic| sample.has(*at, magic)))?;
    Some((at, "a member of a Linux RAID"))
}

/// A partition table in the first sector, or the second copy of a GPT in the last.
fn partitions(sample: &Sample) -> Vec<(u64, &'static str)> {
    let mut found = Vec::new();
    let last = [512, 4096].into_iter().filter_map(|sector| sample.size().checked_sub(sector));
    found.extend(last.filter(|at| sample.has(*at, b"EFI PART")).map(|at| (at, "a GPT partition table")));
    // Boot sectors of FAT and NTFS end like a partition table's; entries have a status of 0 or 0x80 and a type.
    let entries = sample.at(446, 64).map(|table| table.chunks_exact(16).collect::<Vec<_>>());
    let entry =
        |entry: &&[u8]| entry.first().is_some_and(|s| *s == 0 || *s == 0x80) && entry.get(4) != Some(&0);
    if sample.has(510, b"\x55\xAA") && entries.is_some_and(|entries| entries.iter().any(entry)) {
        found.push((446, "an MBR partition table"));
    }
    found
}

/// Four labels of 256 KiB, two at each end; the second half of each is a ring of uberblocks.
fn zfs(sample: &Sample) -> Option<(u64, &'static str)> {
    let size = sample.size();
    let labels = [Some(0), Some(256 << 10), size.checked_sub(512 << 10), size.checked_sub(256 << 10)];
    // The labels at the end are aligned to their own size.
    let labels = labels.into_iter().flatten().map(|label| label & !0x3_FFFF);
    let magic = 0x00BA_B10C_u64;
    let mut places = labels.flat_map(|label| (0..128).map(move |ring| label + (128 << 10) + ring * 1024));
    let at =
        places.find(|at| sample.has(*at, &magic.to_le_bytes()) || sample.has(*at, &magic.to_be_bytes()))?;
    Some((at, "a ZFS pool member"))
}
