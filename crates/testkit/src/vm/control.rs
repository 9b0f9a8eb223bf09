//! A lab that people use from other terminals: whoever connects to its socket says one thing and hears how it went.

use super::VmLab;
use bowline_vmtool::frame::{Frame, Kind};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// Does what people ask until the process ends.
pub fn serve(lab: VmLab, socket: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let lab = Arc::new(lab);
    for person in listener.incoming() {
        let (person, lab) = (person?, Arc::clone(&lab));
        thread::spawn(move || {
            // Somebody who went away hears nothing.
            let _ = answer(&lab, person);
        });
    }
    Ok(())
}

fn answer(lab: &VmLab, mut person: UnixStream) -> io::Result<()> {
    let order = Frame::read(&mut person)?;
    let order = String::from_utf8_lossy(&order.bytes).into_owned();
    let words: Vec<&str> = order.split('\0').collect();
    if let ["run", name, command @ ..] = words.as_slice() {
        return match lab.machines.contains_key(*name) {
            true => pass_on(lab, name, command, person),
            false => refuse(&mut person, &format!("there is no machine {name}")),
        };
    }
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(lab, &words)));
    match done {
        Ok(Ok(())) => Frame::new(0, Kind::Ended, [0]).write(&mut person),
        Ok(Err(why)) => refuse(&mut person, &why),
        Err(_) => refuse(&mut person, "it did not work: the lab's own output says why"),
    }
}

fn act(lab: &VmLab, words: &[&str]) -> Result<(), String> {
    let known = |name: &str| lab.machines.get(name).ok_or_else(|| format!("there is no machine {name}"));
    match words {
        ["cut", a, b] => known(a).and(known(b)).map(|_| lab.cut(a, b)),
        ["mend", a, b] => known(a).and(known(b)).map(|_| lab.mend(a, b)),
        ["suspend", name] => known(name).map(super::Vm::suspend),
        ["resume", name] => known(name).map(super::Vm::resume),
        ["power-cut", name] => known(name).map(super::Vm::power_cut),
        ["boot", name] => known(name).map(super::Vm::boot),
        _ => Err(format!("nobody knows what this means: {}", words.join(" "))),
    }
}

fn refuse(person: &mut UnixStream, why: &str) -> io::Result<()> {
    Frame::new(0, Kind::Complaint, format!("{why}\n")).write(person)?;
    Frame::new(0, Kind::Ended, [2]).write(person)
}

/// Runs a command for somebody: what they type goes in, what it writes comes out.
fn pass_on(lab: &VmLab, name: &str, command: &[&str], mut person: UnixStream) -> io::Result<()> {
    let running = lab.vm(name).start(command);
    let handle = running.handle();
    let mut typed = person.try_clone()?;
    thread::spawn(move || {
        while let Ok(frame) = Frame::read(&mut typed) {
            match frame.kind {
                Kind::Input => handle.write(&frame.bytes),
                Kind::InputEnd => handle.close(),
                _ => {}
            }
        }
        // They went away, and their command goes with them.
        handle.signal("KILL");
    });
    for frame in running.frames() {
        let is_over = frame.kind == Kind::Ended;
        frame.write(&mut person)?;
        if is_over {
            return Ok(());
        }
    }
    refuse(&mut person, "the machine ended")
}

/// Says something to a lab that [`serve`]s: what comes back goes to the given places. How it ended.
pub fn ask(
    socket: &Path,
    words: &[&str],
    mut input: impl io::Read + Send + 'static,
    out: &mut impl io::Write,
    err: &mut impl io::Write,
) -> io::Result<u8> {
    let mut lab = UnixStream::connect(socket)?;
    Frame::new(0, Kind::Run, words.join("\0")).write(&mut lab)?;
    let mut typed = lab.try_clone()?;
    thread::spawn(move || {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(length @ 1..) = input.read(&mut buffer) {
            if Frame::new(0, Kind::Input, &buffer[..length]).write(&mut typed).is_err() {
                return;
            }
        }
        let _ = Frame::new(0, Kind::InputEnd, []).write(&mut typed);
    });
    loop {
        let frame = Frame::read(&mut lab)?;
        match frame.kind {
            Kind::Output => out.write_all(&frame.bytes).and_then(|()| out.flush())?,
            Kind::Complaint => err.write_all(&frame.bytes)?,
            Kind::Ended => return Ok(frame.bytes.first().copied().unwrap_or(255)),
            _ => {}
        }
    }
}
