//! A second process of this program, for what may wait in the kernel for ever. It is started when it is first needed and kept: to start it takes
//! longer than most of what it does, and somebody waits for each of them.
//!
//! A step that waits in the kernel cannot be interrupted. A thread that does it could not be left behind when this process ends; a process can.
//!
//! **Guarantees.** Who asks waits as long as he says and no longer. In a process where a step was given up nothing new is begun, and it is killed
//! when nobody waits for it any more: what can be interrupted is. It ends when this process does.
//!
//! **Caveats.** A step that was given up may still happen.

use crate::command::no_starts;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Why a step has no answer.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// There is no process to do it; nothing was begun.
    #[error("the process for writes to the kernel cannot be started: {0}")]
    Start(#[source] io::Error),
    /// It cannot be said to another process; nothing was begun.
    #[error("{0:?} cannot be said to the process for writes to the kernel")]
    Unsayable(String),
    /// The process does not take anything any more; nothing was begun.
    #[error("the process for writes to the kernel takes nothing more")]
    Deaf,
    /// It was begun, and nobody waited any longer.
    #[error("no answer within {} s", .0.as_secs_f32())]
    TimedOut(Duration),
    /// The process ended before it answered.
    #[error("the process for writes to the kernel ended before it answered")]
    Ended,
}

/// Has another process do steps, several at once.
#[derive(Debug)]
pub struct Helper {
    program: PathBuf,
    args: Vec<OsString>,
    running: Mutex<Option<Arc<Running>>>,
}

/// Who waits for an answer, by number; nobody when the process has ended.
type Waiting = Mutex<Option<HashMap<u64, Sender<String>>>>;

/// The process. Killed when nobody has to do with it any more.
#[derive(Debug)]
struct Running {
    child: Option<Child>,
    /// Its ear, and the number of the last step.
    ear: Mutex<(ChildStdin, u64)>,
    waiting: Arc<Waiting>,
}

/// What a pipe takes as a whole or not at all (pipe(7)).
const LONGEST: usize = 4096;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Helper {
    /// With this program, which has to end in [`serve`] when it is given these words.
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let args = args.into_iter().map(Into::into).collect();
        Self { program: program.into(), args, running: Mutex::default() }
    }

    /// Has a step done, and waits for what is said of it: for ever, if no limit is given.
    pub fn ask(&self, words: &[&str], limit: Option<Duration>) -> Result<String, HelperError> {
        let running = self.running()?;
        let (running, answer) = match running.begin(words) {
            Ok(answer) => (running, answer),
            // It has ended since, or does not read: there is another one to be had.
            Err(HelperError::Deaf | HelperError::Ended) => {
                self.retire(&running);
                let another = self.running()?;
                let answer = another.begin(words)?;
                (another, answer)
            }
            Err(error) => return Err(error),
        };
        let said = match limit {
            Some(limit) => answer.recv_timeout(limit).map_err(|error| match error {
                RecvTimeoutError::Timeout => HelperError::TimedOut(limit),
                RecvTimeoutError::Disconnected => HelperError::Ended,
            }),
            None => answer.recv().map_err(|_| HelperError::Ended),
        };
        said.inspect_err(|_| self.retire(&running))
    }

    fn running(&self) -> Result<Arc<Running>, HelperError> {
        let mut running = lock(&self.running);
        if let Some(running) = running.as_ref() {
            return Ok(Arc::clone(running));
        }
        let started = Arc::new(self.start().map_err(HelperError::Start)?);
        Ok(Arc::clone(running.insert(started)))
    }

    /// Nothing new is begun in that one.
    fn retire(&self, old: &Arc<Running>) {
        let mut running = lock(&self.running);
        if running.as_ref().is_some_and(|running| Arc::ptr_eq(running, old)) {
            *running = None;
        }
    }

    fn start(&self) -> io::Result<Running> {
        let starting = no_starts();
        let mut child = Command::new(&self.program)
            .args(&self.args)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // One that waits in the kernel must not keep open what this process writes to.
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        drop(starting);
        let (ear, mouth) = (child.stdin.take(), child.stdout.take());
        let waiting = Arc::new(Waiting::new(Some(HashMap::new())));
        let none = || io::Error::other("it has no pipes");
        // A process that does not read must not keep anybody waiting.
        let ear = ear.ok_or_else(none)?;
        rustix::io::ioctl_fionbio(&ear, true)?;
        let running =
            Running { child: Some(child), ear: Mutex::new((ear, 0)), waiting: Arc::clone(&waiting) };
        let mouth = mouth.ok_or_else(none)?;
        std::thread::Builder::new().name("helper".to_owned()).spawn(move || listen(mouth, &waiting))?;
        Ok(running)
    }
}

/// Hands on what the process says, until it ends.
fn listen(mouth: ChildStdout, waiting: &Waiting) {
    for line in BufReader::new(mouth).lines().map_while(Result::ok) {
        let Some((number, said)) = line.split_once('\t') else { continue };
        let asked = number.parse().ok().and_then(|number: u64| lock(waiting).as_mut()?.remove(&number));
        // Whoever asked may have given up.
        drop(asked.map(|asked| asked.send(said.to_owned())));
    }
    *lock(waiting) = None;
}

impl Running {
    fn begin(&self, words: &[&str]) -> Result<Receiver<String>, HelperError> {
        let (answered, answer) = mpsc::channel();
        let mut ear = lock(&self.ear);
        ear.1 += 1;
        let number = ear.1;
        let mut line = number.to_string();
        for word in words {
            let _ = write!(line, "\t{word}");
        }
        line.push('\n');
        if let Some(word) = words.iter().find(|word| word.contains(['\t', '\n']) || line.len() > LONGEST) {
            return Err(HelperError::Unsayable(word.chars().take(200).collect()));
        }
        lock(&self.waiting).as_mut().ok_or(HelperError::Ended)?.insert(number, answered);
        let said = ear.0.write(line.as_bytes());
        if said.is_ok_and(|said| said == line.len()) {
            return Ok(answer);
        }
        drop(lock(&self.waiting).as_mut().map(|waiting| waiting.remove(&number)));
        Err(HelperError::Deaf)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // It may have ended by itself.
        let _ = child.kill();
        if !matches!(child.try_wait(), Ok(Some(_))) {
            // It may wait in the kernel for long.
            drop(std::thread::Builder::new().name("reap".to_owned()).spawn(move || child.wait()));
        }
    }
}

/// Does steps in this process, which was started for that, until nobody has any more to ask: each in a thread of its own, because none may keep another
/// waiting. What `work` says of a step is one line.
pub fn serve(work: fn(&[&str]) -> String) {
    serve_on(io::stdin().lock(), &Arc::new(Mutex::new(io::stdout())), work);
}

fn serve_on(
    input: impl BufRead,
    output: &Arc<Mutex<impl Write + Send + 'static>>,
    work: fn(&[&str]) -> String,
) {
    for line in input.lines().map_while(Result::ok) {
        let output = Arc::clone(output);
        // Without a thread there is no answer, and so this process is of no use any more.
        let begun = std::thread::Builder::new().spawn(move || {
            let mut words = line.split('\t');
            let number = words.next().unwrap_or_default();
            let words: Vec<_> = words.collect();
            // An answer all the same: somebody may wait for it for ever.
            let said = catch_unwind(|| work(&words)).unwrap_or_else(|_| "it failed unexpectedly".to_owned());
            let said = said.replace('\n', " ");
            let mut output = lock(&output);
            // Who asked is gone, and this process soon, too.
            let _ = output.write_all(format!("{number}\t{said}\n").as_bytes()).and_then(|()| output.flush());
        });
        if begun.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const SOON: Option<Duration> = Some(Duration::from_secs(30));

    /// Says of each step what the script makes of its words.
    fn helper(script: &str) -> Helper {
        let read = "IFS=\"$(printf '\\t')\"; while read number one two; do";
        Helper::new("/bin/sh", ["-c", &format!("{read} {script} done")])
    }

    #[test]
    fn one_process_does_all_steps_and_the_next_if_it_ended_meanwhile() {
        let helper =
            helper(r#"printf '%s\t%s %s %s\n' "$number" $$ "$one" "$two"; [ "$one" = end ] && exit;"#);
        let pid = |one: &str| {
            let said = helper.ask(&[one, "two words"], SOON).unwrap();
            let (pid, words) = said.split_once(' ').unwrap();
            assert_eq!(words, format!("{one} two words"));
            pid.to_owned()
        };
        let first = pid("a");
        assert_eq!(pid("end"), first);
        let waiting = Arc::clone(&lock(&helper.running).as_ref().unwrap().waiting);
        let began = Instant::now();
        while lock(&waiting).is_some() {
            assert!(began.elapsed() < Duration::from_secs(30), "its end is noticed");
            std::thread::yield_now();
        }
        assert_ne!(pid("b"), first);
    }

    #[test]
    fn a_step_that_hangs_is_given_up_and_the_next_is_done_by_another_process() {
        let helper = helper(r#"[ "$one" = hang ] && exec sleep 60; printf '%s\tdone %s\n' "$number" $$;"#);
        let before = helper.ask(&["a", "-"], SOON).unwrap();
        let limit = Duration::from_millis(50);
        let hung = helper.ask(&["hang", "-"], Some(limit)).unwrap_err();
        assert!(matches!(hung, HelperError::TimedOut(_)), "{hung}");
        let after = helper.ask(&["b", "-"], SOON).unwrap();
        assert!(after.starts_with("done ") && after != before, "{before}, {after}");
    }

    #[test]
    fn who_waits_hears_of_the_end() {
        let ended = helper("exit;").ask(&["a", "-"], None).unwrap_err();
        assert!(matches!(ended, HelperError::Ended), "{ended}");
        let noise = helper("echo hello; exit;").ask(&["a", "-"], None).unwrap_err();
        assert!(matches!(noise, HelperError::Ended), "{noise}");
        let missing = Helper::new("/nonexistent", ["x"]).ask(&["a"], SOON).unwrap_err();
        assert!(matches!(missing, HelperError::Start(_)), "{missing}");
    }

    #[test]
    fn what_would_be_another_step_is_not_said() {
        let helper = helper("printf '%s\\tdone\\n' \"$number\";");
        for bad in ["a\tb", "a\n2\tb", &"x".repeat(LONGEST)] {
            let told = helper.ask(&[bad], SOON).unwrap_err();
            assert!(matches!(told, HelperError::Unsayable(_)), "{told}");
        }
        assert_eq!(helper.ask(&["a"], SOON).unwrap(), "done");
    }

    #[test]
    fn a_process_that_does_not_read_keeps_nobody_waiting() {
        let helper = Helper::new("/bin/sleep", ["60"]);
        let running = helper.running().unwrap();
        let long = "x".repeat(4000);
        let told = (0..100).find_map(|_| running.begin(&[&long]).err());
        assert!(matches!(told, Some(HelperError::Deaf)), "{told:?}");
    }

    #[test]
    fn each_step_has_an_answer_in_one_line() {
        let output = Arc::new(Mutex::new(Vec::new()));
        let work = |words: &[&str]| {
            assert_ne!(words, ["panic"], "on purpose");
            format!("{}\n", words.join("+"))
        };
        serve_on(&b"1\ta\tb c\n2\n3\tpanic\n"[..], &output, work);
        let began = Instant::now();
        let lines = || {
            let mut lines: Vec<_> =
                String::from_utf8(lock(&output).clone()).unwrap().lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        while lines().len() < 3 {
            assert!(began.elapsed() < Duration::from_secs(30), "{:?}", lines());
            std::thread::yield_now();
        }
        assert_eq!(lines(), ["1\ta+b c ", "2\t ", "3\tit failed unexpectedly"]);
    }
}
