//! What a caller of the registration socket sends, read before the server reads it: in whatever pieces it comes, the same is
//! passed on, and it never becomes much more than it was.
#![no_main]

use bowline_csi::authority::Corrected;
use libfuzzer_sys::fuzz_target;

/// Headers of the longest frame, written out, and the head of the frame.
const FRAME: usize = (16 << 10) + 9;

fn passed(pieces: &[&[u8]]) -> Result<Vec<u8>, Vec<u8>> {
    let (mut corrected, mut passed) = (Corrected::new(), Vec::new());
    for piece in pieces {
        let heard = corrected.hear(piece);
        loop {
            let some = corrected.take(1000);
            if some.is_empty() {
                break;
            }
            passed.extend(some);
        }
        if heard.is_err() {
            return Err(passed);
        }
    }
    Ok(passed)
}

/// Frames of headers one after the other, which random bytes hardly ever are.
fn frames(blocks: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    for (flags, block) in blocks {
        let length = u32::try_from(block.len()).unwrap_or_default().to_be_bytes();
        bytes.extend_from_slice(&length[1..]);
        bytes.extend([1, flags | 4, 0, 0, 0, 1]);
        bytes.extend_from_slice(block);
    }
    bytes
}

fuzz_target!(|input: (u16, &[u8], Vec<(u8, &[u8])>)| {
    let (at, raw, blocks) = input;
    for bytes in [raw.to_vec(), frames(&blocks)] {
        let whole = passed(&[&bytes]);
        let (left, right) = bytes.split_at(usize::from(at).min(bytes.len()));
        let pieces = passed(&[left, right]);
        assert_eq!(whole.is_ok(), pieces.is_ok());
        assert_eq!(
            whole.as_ref().unwrap_or_else(|so_far| so_far),
            pieces.as_ref().unwrap_or_else(|so_far| so_far)
        );
        let frames = bytes.len() / 9 + 1;
        assert!(whole.unwrap_or_else(|so_far| so_far).len() <= bytes.len() + frames * FRAME);
    }
});
