//! A file or device of stamped blocks: written by threads that do not give up easily, and read back.

use crate::stamp::{BLOCK, Found, Stamp, checksum};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// `O_DIRECT` on x86: past the cache.
pub(crate) const DIRECT: i32 = 0o40000;

/// How blocks are written.
#[derive(Clone, Debug)]
pub struct Writing {
    /// The file or device.
    pub path: PathBuf,
    /// Whose stamps.
    pub epoch: u64,
    /// The blocks `first..first + count` are written, again and again.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// Past the cache. If not: into it, and flushed after each write.
    pub is_direct: bool,
    /// Into the cache and never flushed: what the kernel writes back is its business.
    pub is_lazy: bool,
    /// How many write at once.
    pub threads: u64,
    /// Ends after that many writes; never if 0.
    pub writes: u64,
    /// A pause after each write.
    pub pause: Duration,
    /// Goes on after an error, with the file opened anew, until it is killed.
    pub is_stubborn: bool,
}

/// Writes stamps and says of each that was acknowledged `ack SEQUENCE BLOCK`, and of each that was not `error SEQUENCE BLOCK ERRNO TEXT`.
///
/// # Errors
/// The first error of a write, if it does not go on.
pub fn write(writing: &Writing, out: &mut (impl Write + Send)) -> io::Result<()> {
    let (sequence, has_failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let out = Mutex::new(out);
    let say = |line: &str| {
        let mut out = out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // One line, one write: whoever reads must not see half of it.
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    };
    let work = |thread: u64| {
        let mut file = None;
        let mut place = thread % writing.count;
        let mut buffer = vec![0; 2 * BLOCK];
        while !has_failed.load(Ordering::Relaxed) {
            let number = sequence.fetch_add(1, Ordering::Relaxed) + 1;
            if writing.writes > 0 && number > writing.writes {
                return Ok(());
            }
            let stamp = Stamp { epoch: writing.epoch, sequence: number, index: writing.first + place };
            place = (place + writing.threads) % writing.count;
            match once(writing, &mut file, stamp, &mut buffer) {
                Ok(()) => say(&format!("ack {number} {}\n", stamp.index)),
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(0);
                    say(&format!("error {number} {} {errno} {error}\n", stamp.index));
                    if !writing.is_stubborn {
                        has_failed.store(true, Ordering::Relaxed);
                        return Err(error);
                    }
                    file = None;
                    thread::sleep(Duration::from_millis(50));
                }
            }
            thread::sleep(writing.pause);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..writing.threads).map(|thread| scope.spawn(move || work(thread))).collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())));
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

/// One write, acknowledged in the way that was asked for.
fn once(writing: &Writing, file: &mut Option<File>, stamp: Stamp, buffer: &mut [u8]) -> io::Result<()> {
    let file = match file {
        Some(file) => file,
        None => file.insert(open(&writing.path, writing.is_direct, true)?),
    };
    let block = &mut aligned(buffer)[..BLOCK];
    stamp.write(block);
    file.write_all_at(block, stamp.index * BLOCK as u64)?;
    if writing.is_direct || writing.is_lazy { Ok(()) } else { file.sync_data() }
}

/// Says of each block what it is: `BLOCK EPOCH SEQUENCE`, `BLOCK blank`, `BLOCK torn` or `BLOCK other`.
///
/// # Errors
/// If it cannot be read.
pub fn read(path: &Path, is_direct: bool, count: Option<u64>, out: &mut impl Write) -> io::Result<()> {
    let file = open(path, is_direct, false)?;
    let mut buffer = vec![0; 2 * BLOCK];
    let block = &mut aligned(&mut buffer)[..BLOCK];
    for index in 0..count.unwrap_or(u64::MAX) {
        match file.read_at(block, index * BLOCK as u64)? {
            0 => return Ok(()),
            length if length < BLOCK => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {}
        }
        match Stamp::read(block, index) {
            Found::Blank => writeln!(out, "{index} blank")?,
            Found::Stamp(stamp) => writeln!(out, "{index} {} {}", stamp.epoch, stamp.sequence)?,
            Found::Torn => writeln!(out, "{index} torn")?,
            Found::Other => writeln!(out, "{index} other")?,
        }
    }
    Ok(())
}

/// A number that is another one as soon as a byte of a file or device is, read past the cache.
///
/// # Errors
/// If it cannot be read.
pub fn sum(path: &Path) -> io::Result<u64> {
    const PIECE: usize = 256 * BLOCK;
    let file = open(path, true, false)?;
    let mut buffer = vec![0; PIECE + BLOCK];
    let piece = &mut aligned(&mut buffer)[..PIECE];
    let (mut sum, mut at) = (0, 0);
    loop {
        let length = file.read_at(piece, at)?;
        if length == 0 {
            return Ok(sum);
        }
        sum = checksum(&piece[..length], &[sum, at, length as u64]);
        at += length as u64;
    }
}

fn open(path: &Path, is_direct: bool, is_writable: bool) -> io::Result<File> {
    let flags = if is_direct { DIRECT } else { 0 };
    // A device must be there: a file in its place would take everything and tell nobody.
    let is_file = !path.starts_with("/dev");
    File::options()
        .read(true)
        .write(is_writable)
        .create(is_writable && is_file)
        .custom_flags(flags)
        .open(path)
}

/// What of a buffer starts where memory pages do, as requests past the cache demand.
pub(crate) fn aligned(buffer: &mut [u8]) -> &mut [u8] {
    let start = buffer.as_ptr().align_offset(BLOCK);
    &mut buffer[start..]
}
