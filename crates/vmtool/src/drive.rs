//! Drives a device for a while, to see how fast it is.

use crate::blocks::{DIRECT, aligned};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How a device is driven: one request after the other, past the cache.
#[derive(Clone, Debug)]
pub struct Driving {
    /// The file or device.
    pub path: PathBuf,
    /// How many bytes at once.
    pub bytes: usize,
    /// The part of it that is used, from its start.
    pub span: u64,
    /// For how long.
    pub time: Duration,
    /// Here and there, not one after the other.
    pub is_random: bool,
    /// It is written, not read.
    pub is_writing: bool,
}

/// How many requests were answered in how many microseconds.
///
/// # Errors
/// The first error of a request.
pub fn drive(driving: &Driving) -> io::Result<(u64, u128)> {
    let Driving { path, bytes, span, time, is_random, is_writing } = driving;
    let file = File::options().read(true).write(*is_writing).custom_flags(DIRECT).open(path)?;
    let mut buffer = vec![7; 2 * bytes.next_multiple_of(4096)];
    let block = &mut aligned(&mut buffer)[..*bytes];
    let places = (span / *bytes as u64).max(1);
    let (mut count, mut dice, begun) = (0_u64, 1_u64, Instant::now());
    while begun.elapsed() < *time {
        // xorshift: the same places each time.
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let place = if *is_random { dice % places } else { count % places } * *bytes as u64;
        match is_writing {
            true => file.write_all_at(block, place)?,
            false => file.read_exact_at(block, place)?,
        }
        count += 1;
    }
    Ok((count, begun.elapsed().as_micros()))
}
