//! Connections that break: after so many bytes, at a command, all at once, or by falling silent.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the device.
    In,
    /// From the device to the client.
    Out,
}

/// What was carried over all wires of a server, and when the next one breaks.
#[derive(Debug, Default)]
pub(super) struct Meter {
    carried: [u64; 2],
    left: [Option<u64>; 2],
}

impl Meter {
    pub(super) fn carried(&self, way: Way) -> u64 {
        self.carried[way as usize]
    }

    pub(super) fn cut_after(&mut self, way: Way, bytes: u64) {
        self.left[way as usize] = Some(bytes);
    }

    pub(super) fn mend(&mut self) {
        self.left = [None, None];
    }

    /// How many bytes may still go this way: none if the wire is to be cut here.
    fn may(&self, way: Way, wanted: usize) -> usize {
        match self.left {
            [Some(0), _] | [_, Some(0)] => 0,
            left => left[way as usize].map_or(wanted, |left| wanted.min(usize::try_from(left).unwrap())),
        }
    }

    fn went(&mut self, way: Way, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap();
        self.carried[way as usize] += bytes;
        if let Some(left) = &mut self.left[way as usize] {
            *left -= bytes;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Good,
    /// Both ends notice.
    Cut,
    /// Nothing arrives any more, and nobody is told.
    Silent,
}

/// What is known of one wire, from outside too.
pub(super) struct Line {
    condition: Mutex<(Condition, Option<Waker>)>,
    meter: Arc<Mutex<Meter>>,
}

impl Line {
    pub(super) fn new(meter: Arc<Mutex<Meter>>) -> Self {
        Self { condition: Mutex::new((Condition::Good, None)), meter }
    }

    pub(super) fn cut(&self) {
        self.turn(Condition::Cut);
    }

    pub(super) fn fall_silent(&self) {
        self.turn(Condition::Silent);
    }

    /// This is the wire that was to break; others do not.
    fn break_here(&self) {
        self.meter.lock().unwrap().mend();
        self.cut();
    }

    fn turn(&self, condition: Condition) {
        let mut now = self.condition.lock().unwrap();
        now.0 = condition;
        if let Some(waker) = now.1.take() {
            waker.wake();
        }
    }

    /// The condition now; whoever waits for bytes is woken when it changes.
    fn condition(&self, waits: Option<&Context<'_>>) -> Condition {
        let mut now = self.condition.lock().unwrap();
        if let Some(context) = waits {
            now.1 = Some(context.waker().clone());
        }
        now.0
    }
}

/// The device's end of a connection.
pub(super) struct Wire<S> {
    pub(super) stream: S,
    pub(super) line: Arc<Line>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.line.condition(Some(context)) {
            Condition::Cut => return Poll::Ready(Ok(())),
            Condition::Silent => return Poll::Pending,
            Condition::Good => {}
        }
        let may = self.line.meter.lock().unwrap().may(Way::In, buffer.remaining().min(16 << 10));
        if may == 0 {
            self.line.break_here();
            return Poll::Ready(Ok(()));
        }
        let mut bytes = vec![0; may];
        let mut read = ReadBuf::new(&mut bytes);
        std::task::ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
        buffer.put_slice(read.filled());
        self.line.meter.lock().unwrap().went(Way::In, read.filled().len());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.line.condition(None) {
            Condition::Cut => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Condition::Silent => return Poll::Ready(Ok(bytes.len())),
            Condition::Good => {}
        }
        let may = self.line.meter.lock().unwrap().may(Way::Out, bytes.len());
        if may == 0 {
            self.line.break_here();
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let written = std::task::ready!(Pin::new(&mut self.stream).poll_write(context, &bytes[..may]))?;
        self.line.meter.lock().unwrap().went(Way::Out, written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
