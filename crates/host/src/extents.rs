//! Which of its blocks a file shares, and where they lie.

use crate::ioctl::ExtentMap;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;

// linux/fiemap.h
const LAST: u32 = 0x0001;
const UNKNOWN: u32 = 0x0002;
const DELALLOC: u32 = 0x0004;
const ENCODED: u32 = 0x0008;
const NOT_ALIGNED: u32 = 0x0100;
const INLINE: u32 = 0x0200;
const TAIL: u32 = 0x0400;
const SHARED: u32 = 0x2000;

/// What is compressed takes up less than its length, and nobody tells how much; what lies among records or is not written
/// yet has no blocks of its own.
const WITHOUT_PLACE: u32 = UNKNOWN | DELALLOC | ENCODED | NOT_ALIGNED | INLINE | TAIL;

/// A stretch of a file whose blocks are also those of another file, or of another stretch of the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// How many bytes of the file it is.
    pub length: u64,
    /// Which bytes of the disk it is, if that is certain. They are the same for all who share them.
    pub place: Option<Range<u64>>,
}

/// Whether a filesystem tells what its files share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// Everything that is shared was told.
    Whole,
    /// This filesystem has no such maps; nothing was told.
    Unsupported,
}

/// Tells of every stretch of a file that is shared. Writers go on meanwhile, and what they change is told as it was or as
/// it is.
pub fn shared(file: &File, told: &mut dyn FnMut(Shared)) -> io::Result<Map> {
    let mut map = ExtentMap::EMPTY;
    let mut at = 0;
    loop {
        // Without FIEMAP_FLAG_SYNC: what waits to be written shares nothing, and all volumes would be written out for a look.
        let extents = match map.read(file, at) {
            Ok(extents) => extents,
            Err(Errno::OPNOTSUPP | Errno::NOTTY) if at == 0 => return Ok(Map::Unsupported),
            Err(error) => return Err(error.into()),
        };
        for extent in extents.iter().filter(|extent| extent.flags & SHARED != 0) {
            let place = extent.physical..extent.physical.saturating_add(extent.length);
            told(Shared {
                length: extent.length,
                place: Some(place).filter(|_| extent.flags & WITHOUT_PLACE == 0),
            });
        }
        let Some(last) = extents.last().filter(|last| last.flags & LAST == 0) else { return Ok(Map::Whole) };
        let next = last.logical.saturating_add(last.length);
        if next <= at {
            return Err(io::Error::other("the filesystem tells of the same extents again and again"));
        }
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::io::Write;

    #[test]
    fn a_file_in_memory_has_no_map() {
        let mut file = File::from(memfd_create("file", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(&[1; 8192]).unwrap();
        assert_eq!(shared(&file, &mut |_| panic!("told")).unwrap(), Map::Unsupported);
    }
}
