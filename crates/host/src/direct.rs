//! Reading much of a device at once, past the page cache: it is read once, and whoever comes next should not find the
//! cache full of it.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// What one read asks for.
const PIECE: usize = 1 << 20;
/// More than any device wants.
const ALIGNED: usize = 4096;

/// Bytes that are zero, to compare with.
static ZEROS: [u8; ALIGNED] = [0; ALIGNED];

/// Where the first byte is that is not zero.
pub(crate) fn first_byte(bytes: &[u8]) -> Option<usize> {
    let index = bytes.chunks(ALIGNED).position(|part| Some(part) != ZEROS.get(..part.len()))?;
    let from = index * ALIGNED;
    let within = bytes.get(from..)?.iter().position(|byte| *byte != 0)?;
    Some(from + within)
}

/// A device to be read directly.
pub(crate) struct Direct<'a> {
    file: &'a File,
}

impl<'a> Direct<'a> {
    /// Asks for direct reads of this open file from now on. Where there are none, it is read as usual.
    pub(crate) fn new(file: &'a File) -> Self {
        if let Ok(flags) = fcntl_getfl(file) {
            // A wish: what cannot be read directly is read through the cache.
            let _ = fcntl_setfl(file, flags | OFlags::DIRECT);
        }
        Self { file }
    }

    /// Reads into bytes that are all zero. Those that stay zero are not touched, and so take no memory.
    pub(crate) fn read_sparse(&self, into: &mut [u8], from: u64) -> io::Result<()> {
        let length = into.len().min(PIECE);
        let mut buffer = vec![0; length + ALIGNED];
        let start = buffer.as_ptr().align_offset(ALIGNED).min(ALIGNED);
        let Some(buffer) = buffer.get_mut(start..start + length) else { return Ok(()) };
        let mut at = from;
        for part in into.chunks_mut(PIECE) {
            let Some(piece) = buffer.get_mut(..part.len()) else { break };
            self.read_piece(piece, at)?;
            if first_byte(piece).is_some() {
                part.copy_from_slice(piece);
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Those pages at these places that are not all zero.
    pub(crate) fn read_pages(&self, places: &[u64], length: u64) -> io::Result<Vec<(u64, Vec<u8>)>> {
        let mut found = Vec::new();
        for at in places {
            let mut page = vec![0; usize::try_from(length).unwrap_or_default()];
            self.read_sparse(&mut page, *at)?;
            if first_byte(&page).is_some() {
                found.push((*at, page));
            }
        }
        Ok(found)
    }

    fn read_piece(&self, piece: &mut [u8], at: u64) -> io::Result<()> {
        match self.file.read_exact_at(piece, at) {
            // open(2): what is not aligned as the device wants it.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let flags = fcntl_getfl(self.file)?;
                fcntl_setfl(self.file, flags - OFlags::DIRECT)?;
                self.file.read_exact_at(piece, at)
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_first_byte_is_found_wherever_it_is() {
        for length in [0, 1, 7, 4095, 4096, 4097, 10_000] {
            let mut bytes = vec![0; length];
            assert_eq!(first_byte(&bytes), None, "{length} zeros");
            for at in [0, 1, 4095, 4096, 8191, 8192, 9999].into_iter().filter(|at| *at < length) {
                bytes[at] = 1;
                assert_eq!(first_byte(&bytes), Some(at), "of {length}");
                bytes[at] = 0;
            }
        }
    }

    #[test]
    fn it_reads_what_is_there_aligned_or_not() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> =
            (0..3_000_001_u32).map(|n| if n < 1_500_000 { 0 } else { n.to_le_bytes()[0] }).collect();
        file.write_all(&bytes).unwrap();
        for (from, length) in [(0, 8192), (0, 3_000_001), (1, 100), (4096, 2_000_000), (1_048_576, 1_048_576)]
        {
            let mut into = vec![0; length];
            Direct::new(&file).read_sparse(&mut into, from as u64).unwrap();
            assert!(into == bytes[from..from + length], "{length} bytes from {from}");
        }
        let beyond = Direct::new(&file).read_sparse(&mut [0; 10], 3_000_000);
        assert_eq!(beyond.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
