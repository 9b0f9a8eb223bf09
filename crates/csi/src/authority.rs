//! Callers whose `:authority` is none.
//!
//! The kubelet dials a registration socket by its path, and grpc-go then sends that path, percent-encoded, as `:authority`
//! (seen with kubelet 1.36: `%2Fvar%2Flib%2Fkubelet%2F…`). The `h2` crate takes that for a protocol error and resets the
//! stream before any service sees it. So what such a caller sends is read here first: the headers of each call are decoded,
//! `:authority` becomes `localhost`, and they are passed on without compression. All else passes as it is.

use httlib_hpack::Decoder;
use std::io;

const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
/// The largest frame that anybody may send who was not told otherwise.
const FRAME_BYTES: usize = 16 << 10;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Reads what a caller sends, and says what to pass on.
pub struct Corrected {
    decoder: Decoder<'static>,
    /// Bytes of the preface that are still to come.
    preface: usize,
    /// What has come and is not a whole frame yet.
    raw: Vec<u8>,
    /// What is to be passed on.
    ready: Vec<u8>,
}

impl Corrected {
    /// For a connection that has just begun.
    #[allow(clippy::new_without_default, reason = "a connection begins; it is not there by default")]
    pub fn new() -> Self {
        Self { decoder: Decoder::with_dynamic_size(4096), preface: PREFACE, raw: vec![], ready: vec![] }
    }

    /// Takes up to `most` bytes of what can be passed on.
    pub fn take(&mut self, most: usize) -> Vec<u8> {
        let rest = self.ready.split_off(self.ready.len().min(most));
        std::mem::replace(&mut self.ready, rest)
    }

    /// Hears more of what the caller sends.
    ///
    /// # Errors
    ///
    /// When it is nothing that a caller of ours sends. The connection is to be ended then.
    pub fn hear(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.raw.extend_from_slice(bytes);
        if self.preface > 0 {
            let some = self.preface.min(self.raw.len());
            self.ready.extend(self.raw.drain(..some));
            self.preface -= some;
        }
        while let Some(length) = frame_length(&self.raw)? {
            let frame: Vec<u8> = self.raw.drain(..length).collect();
            match frame.get(3) {
                Some(&HEADERS) => self.pass_headers(&frame)?,
                _ => self.ready.extend(frame),
            }
        }
        Ok(())
    }

    fn pass_headers(&mut self, frame: &[u8]) -> io::Result<()> {
        let flags = frame.get(4).copied().unwrap_or_default();
        if flags & END_HEADERS == 0 {
            return Err(odd("headers in several frames"));
        }
        // The decoder panics where a number or a text is cut short.
        let whole = block(frame, flags).filter(|block| is_whole(block));
        let mut block = whole.ok_or_else(|| odd("headers that are cut short"))?.to_vec();
        let mut plain = Vec::new();
        while !block.is_empty() {
            // One at a time: a byte can stand for four thousand.
            let mut header = Vec::with_capacity(1);
            let decoded = self.decoder.decode_exact(&mut block, &mut header);
            decoded.map_err(|error| odd(&format!("headers: {error:?}")))?;
            for (name, value, _) in header {
                let value = if name == b":authority" { b"localhost".to_vec() } else { value };
                // A literal that goes into no table, under a new name.
                plain.push(0);
                write_text(&mut plain, &name);
                write_text(&mut plain, &value);
            }
            if plain.len() > FRAME_BYTES {
                return Err(odd("headers that are too long"));
            }
        }
        let length = u32::try_from(plain.len()).unwrap_or_default().to_be_bytes();
        self.ready.extend_from_slice(length.get(1..).unwrap_or_default());
        self.ready.extend([HEADERS, flags & !(PADDED | PRIORITY)]);
        self.ready.extend_from_slice(frame.get(5..FRAME_HEAD).unwrap_or_default());
        self.ready.extend(plain);
        Ok(())
    }
}

fn odd(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a caller sent {what}"))
}

/// How long the first frame is; `None` while it is not all there.
fn frame_length(raw: &[u8]) -> io::Result<Option<usize>> {
    let &[a, b, c, ..] = raw else { return Ok(None) };
    let payload = u32::from_be_bytes([0, a, b, c]) as usize;
    if payload > FRAME_BYTES {
        return Err(odd("a frame that is too long"));
    }
    Ok(Some(FRAME_HEAD + payload).filter(|length| raw.len() >= *length))
}

/// The compressed headers of a frame, without padding and priority.
fn block(frame: &[u8], flags: u8) -> Option<&[u8]> {
    let mut payload = frame.get(FRAME_HEAD..)?;
    let mut padding = 0;
    if flags & PADDED != 0 {
        padding = usize::from(*payload.first()?);
        payload = payload.get(1..)?;
    }
    if flags & PRIORITY != 0 {
        payload = payload.get(5..)?;
    }
    payload.get(..payload.len().checked_sub(padding)?)
}

/// Whether every number and every text of a block of headers is all there, and no number is longer than any that is meant.
fn is_whole(mut block: &[u8]) -> bool {
    while let Some(first) = block.first().copied() {
        let (bits, is_literal) = match first {
            0x80.. => (7, false),
            0x40..=0x7f => (6, true),
            0x20..=0x3f => (5, false),
            _ => (4, true),
        };
        let Some((index, rest)) = number(block, bits) else { return false };
        let texts = if !is_literal {
            0
        } else if index == 0 {
            2
        } else {
            1
        };
        block = rest;
        for _ in 0..texts {
            let rest = number(block, 7).and_then(|(length, rest)| rest.get(length..));
            let Some(rest) = rest else { return false };
            block = rest;
        }
    }
    true
}

/// A number that begins in the last `bits` of the first byte, and what comes after it.
fn number(bytes: &[u8], bits: u32) -> Option<(usize, &[u8])> {
    let (first, mut rest) = bytes.split_first()?;
    let most = (1_usize << bits) - 1;
    let mut number = usize::from(*first) & most;
    if number < most {
        return Some((number, rest));
    }
    for shift in [0, 7, 14, 21] {
        let (byte, after) = rest.split_first()?;
        (number, rest) = (number + (usize::from(byte & 0x7f) << shift), after);
        if byte & 0x80 == 0 {
            return Some((number, rest));
        }
    }
    None
}

/// A length of at most seven bits in one byte, or more in the bytes after it; then the bytes as they are.
fn write_text(to: &mut Vec<u8>, text: &[u8]) {
    if text.len() < 127 {
        to.push(u8::try_from(text.len()).unwrap_or_default());
    } else {
        to.push(127);
        let mut rest = text.len() - 127;
        while rest >= 128 {
            to.push(u8::try_from(rest % 128).unwrap_or_default() | 128);
            rest /= 128;
        }
        to.push(u8::try_from(rest).unwrap_or_default());
    }
    to.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use httlib_hpack::Encoder;
    use proptest::prelude::*;

    fn headers(encoder: &mut Encoder<'_>, flags: u8, pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in pairs {
            let field = (
                name.as_bytes().to_vec(),
                value.as_bytes().to_vec(),
                Encoder::WITH_INDEXING | Encoder::HUFFMAN_VALUE | Encoder::BEST_FORMAT,
            );
            encoder.encode(field, &mut block).unwrap();
        }
        let mut payload = vec![];
        if flags & PADDED != 0 {
            payload.push(3);
        }
        if flags & PRIORITY != 0 {
            payload.extend([0, 0, 0, 0, 9]);
        }
        payload.extend(block);
        if flags & PADDED != 0 {
            payload.extend([0; 3]);
        }
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[HEADERS, flags, 0, 0, 0, 1], &payload].concat()
    }

    fn read(frame: &[u8]) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut block = frame[FRAME_HEAD..].to_vec();
        Decoder::with_dynamic_size(4096).decode(&mut block, &mut found).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        found.into_iter().map(|(name, value, _)| (text(name), text(value))).collect()
    }

    #[test]
    fn an_authority_that_is_a_path_becomes_a_host_in_every_call_of_a_connection() {
        let long = "x".repeat(300);
        let pairs = [(":path", "/a"), (":authority", "%2Fvar%2Flib%2Fkubelet%2Fx.sock"), ("long", &long)];
        for flags in
            [END_HEADERS, END_HEADERS | PADDED, END_HEADERS | PRIORITY, END_HEADERS | PADDED | PRIORITY]
        {
            let mut corrected = Corrected::new();
            let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
            let other = [&[0, 0, 2, 0, 1, 0, 0, 0, 1][..], b"hi"].concat();
            let mut encoder = Encoder::with_dynamic_size(4096);
            let first = headers(&mut encoder, flags, &pairs);
            let again = headers(&mut encoder, flags, &pairs);
            assert!(again.len() < first.len(), "the second one is in the table");
            for byte in [preface.as_slice(), &first, &other, &again].concat() {
                corrected.hear(&[byte]).unwrap();
            }
            let passed = corrected.take(usize::MAX);
            assert_eq!(&passed[..PREFACE], preface);
            let (start, size) = (PREFACE, frame_length(&passed[PREFACE..]).unwrap().unwrap());
            let expected: Vec<_> = [(":path", "/a"), (":authority", "localhost"), ("long", &long)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec();
            assert_eq!(read(&passed[start..start + size]), expected);
            assert_eq!(&passed[start + size..start + size + other.len()], other);
            assert_eq!(read(&passed[start + size + other.len()..]), expected);
        }
    }

    #[test]
    fn what_is_no_frame_ends_the_connection() {
        for bytes in [
            [0xff; 16].as_slice(),
            &[0, 0, 1, HEADERS, 0, 0, 0, 0, 1, 0x82],
            &[0, 0, 1, HEADERS, 4 | 8, 0, 0, 0, 1, 9],
        ] {
            let mut corrected = Corrected::new();
            corrected.hear(&[b'x'; PREFACE]).unwrap();
            assert!(corrected.hear(bytes).is_err(), "{bytes:?}");
        }
    }

    fn heard(corrected: &mut Corrected, block: &[u8]) -> io::Result<()> {
        let length = u32::try_from(block.len()).unwrap().to_be_bytes();
        corrected.hear(&[&length[1..], &[HEADERS, END_HEADERS, 0, 0, 0, 1], block].concat())
    }

    #[test]
    fn headers_that_are_cut_short_end_the_connection_and_not_the_process() {
        for block in
            [&[0xff][..], &[0x00], &[0x40], &[0x3f], &[0x0f], &[0x00, 0x05, b'a'], &[0x41, 0xff], &[0xff; 9]]
        {
            let mut corrected = Corrected::new();
            corrected.hear(&[b'x'; PREFACE]).unwrap();
            let told = heard(&mut corrected, block).unwrap_err().to_string();
            assert_eq!(told, "a caller sent headers that are cut short", "{block:?}");
        }
    }

    #[test]
    fn a_byte_that_stands_for_thousands_does_not_fill_the_memory() {
        let mut corrected = Corrected::new();
        corrected.hear(&[b'x'; PREFACE]).unwrap();
        // An entry of 3,000 bytes for the table, and then that entry 10,000 times.
        let mut long = vec![0x40];
        write_text(&mut long, b"n");
        write_text(&mut long, &[b'v'; 3000]);
        heard(&mut corrected, &long).unwrap();
        let told = heard(&mut corrected, &[0x80 | 62; 10_000]).unwrap_err().to_string();
        assert_eq!(told, "a caller sent headers that are too long");
    }

    proptest! {
        #[test]
        fn any_bytes_are_passed_on_or_refused(bytes: Vec<u8>) {
            let mut corrected = Corrected::new();
            let _ = corrected.hear(&bytes);
        }

        #[test]
        fn any_headers_are_passed_on_or_refused(block in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut corrected = Corrected::new();
            corrected.hear(&[b'x'; PREFACE]).unwrap();
            let _ = heard(&mut corrected, &block);
        }
    }
}
