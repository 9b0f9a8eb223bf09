//! What the lab and a machine say to each other: many commands at once over one serial port.

use std::io::{self, Read, Write};

/// No frame is longer: whoever has more to say sends several.
pub const LONGEST: usize = 64 << 10;

/// What a frame is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From the machine, once: it is up.
    Hello,
    /// To the machine: run this command; its words are separated by zero bytes.
    Run,
    /// To the machine: something for the command to read.
    Input,
    /// To the machine: there is nothing more to read.
    InputEnd,
    /// To the machine: send the command and all it started a signal, such as `KILL`.
    Signal,
    /// From the machine: the command wrote this.
    Output,
    /// From the machine: the command complained.
    Complaint,
    /// From the machine: the command ended, and so did its output. One byte: how.
    Ended,
}

const KINDS: [Kind; 8] = [
    Kind::Hello,
    Kind::Run,
    Kind::Input,
    Kind::InputEnd,
    Kind::Signal,
    Kind::Output,
    Kind::Complaint,
    Kind::Ended,
];

/// Something said about one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Which command.
    pub command: u32,
    /// What about it.
    pub kind: Kind,
    /// The words themselves.
    pub bytes: Vec<u8>,
}

impl Frame {
    /// Something said about a command.
    pub fn new(command: u32, kind: Kind, bytes: impl Into<Vec<u8>>) -> Self {
        Self { command, kind, bytes: bytes.into() }
    }

    /// Says it, in one write: several threads say things to the same port.
    ///
    /// # Errors
    /// If the port does not take it, or it is too long.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let long = || io::Error::new(io::ErrorKind::InvalidInput, "a frame is too long");
        let length = u32::try_from(self.bytes.len()).ok().filter(|length| *length as usize <= LONGEST);
        let mut message = Vec::with_capacity(self.bytes.len() + 9);
        message.extend_from_slice(&self.command.to_be_bytes());
        message.push(KINDS.iter().position(|kind| *kind == self.kind).map_or(u8::MAX, |at| at as u8));
        message.extend_from_slice(&length.ok_or_else(long)?.to_be_bytes());
        message.extend_from_slice(&self.bytes);
        to.write_all(&message)
    }

    /// Hears the next one.
    ///
    /// # Errors
    /// If the port ends, or what comes is no frame.
    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head)?;
        let [a, b, c, d, kind, e, f, g, h] = head;
        let odd = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("not a frame: {what}"));
        let kind = *KINDS.get(usize::from(kind)).ok_or_else(|| odd("unknown kind"))?;
        let length = u32::from_be_bytes([e, f, g, h]) as usize;
        if length > LONGEST {
            return Err(odd("too long"));
        }
        let mut bytes = vec![0; length];
        from.read_exact(&mut bytes)?;
        Ok(Self { command: u32::from_be_bytes([a, b, c, d]), kind, bytes })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed check is a panic")]
    use super::*;

    #[test]
    fn what_is_said_is_heard() {
        for kind in KINDS {
            for bytes in [vec![], vec![7; 3], vec![9; LONGEST]] {
                let said = Frame::new(70_000, kind, bytes);
                let mut wire = vec![];
                said.write(&mut wire).unwrap();
                assert_eq!(Frame::read(&mut wire.as_slice()).unwrap(), said);
                wire.pop();
                assert!(Frame::read(&mut wire.as_slice()).is_err(), "half a frame");
            }
        }
        assert!(Frame::new(1, Kind::Input, vec![0; LONGEST + 1]).write(&mut vec![]).is_err());
        for odd in [[0, 0, 0, 1, 8, 0, 0, 0, 0], [0, 0, 0, 1, 1, 255, 0, 0, 0]] {
            assert_eq!(Frame::read(&mut odd.as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
