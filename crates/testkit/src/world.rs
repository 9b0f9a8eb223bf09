//! A real `bowline up` (or `bowline node`), started, ended and started again as an operator or a power cut would.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take before the test says what it waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// One directory in which everything of a test lies: data, sockets, staging and pods' directories.
pub struct World {
    /// The directory.
    pub dir: TempDir,
    binary: PathBuf,
}

impl World {
    /// An empty world for a built `bowline`.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        let dir = tempfile::Builder::new().prefix("bowline-world-").tempdir().unwrap();
        let world = Self { dir, binary: binary.into() };
        for name in ["data", "stage", "pods", "failpoints"] {
            fs::create_dir(world.path(name)).unwrap();
        }
        world
    }

    /// A world whose volumes lie on a filesystem of its own.
    pub fn on_filesystem(binary: impl Into<PathBuf>, mkfs: &str, size: u64) -> Self {
        let world = Self::new(binary);
        let image = world.path("disk.img");
        fs::File::create(&image).unwrap().set_len(size).unwrap();
        run(mkfs, ["-q".as_ref(), image.as_os_str()]);
        let data = world.path("data");
        run("mount", ["-o".as_ref(), "loop".as_ref(), image.as_os_str(), data.as_os_str()]);
        world
    }

    /// A path in this world.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts `bowline up` and waits until it says that it is ready.
    pub fn up(&self, more: &[&str]) -> Daemon {
        self.start("up", "worker-1", &[&["--http", "127.0.0.1:0", "--peer", "worker-2"], more].concat())
    }

    /// Starts a second node on the same machine.
    pub fn node(&self, name: &str) -> Daemon {
        self.start("node", name, &[])
    }

    /// Starts a node beside a kubelet with this directory; CSI listens in there.
    pub fn beside_kubelet(&self, name: &str, kubelet: &Path, env: &[(&str, &str)], more: &[&str]) -> Daemon {
        let socket = kubelet.join("plugins/bowline.storage/csi.sock");
        let kubelet = kubelet.to_str().unwrap();
        self.start_at("node", name, socket, env, &[&["--kubelet", kubelet], more].concat())
    }

    fn start(&self, command: &str, node: &str, more: &[&str]) -> Daemon {
        let socket = self.path(&format!("{node}.sock"));
        let csi = format!("unix://{}", socket.display());
        self.start_at(command, node, socket, &[], &[&["--csi", &csi], more].concat())
    }

    fn start_at(
        &self,
        command: &str,
        node: &str,
        socket: PathBuf,
        env: &[(&str, &str)],
        more: &[&str],
    ) -> Daemon {
        let ready = self.path(&format!("{node}.ready"));
        let _ = fs::remove_file(&ready);
        let notify = UnixDatagram::bind(&ready).unwrap();
        notify.set_read_timeout(Some(PATIENCE)).unwrap();
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.path(&format!("{node}.log"))).unwrap();
        let child = Command::new(&self.binary)
            .arg(command)
            .args(["--data".as_ref(), self.path("data").as_os_str()])
            .args(["--node", node])
            .args(more)
            .env("NOTIFY_SOCKET", &ready)
            .env("BOWLINE_FAILPOINTS", self.path("failpoints"))
            .env("RUST_LOG", "info")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut daemon = Daemon { child: Some(child), socket, node: node.to_owned() };
        let mut message = [0; 256];
        loop {
            let said = notify
                .recv(&mut message)
                .map(|bytes| String::from_utf8_lossy(&message[..bytes]).into_owned());
            match said {
                Ok(said) if said.contains("READY=1") => return daemon,
                Ok(_) => {}
                Err(error) => {
                    let ended = daemon.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
                    panic!("{node} is not ready ({error}, ended: {ended:?}):\n{}", self.log(node));
                }
            }
        }
    }

    /// What a process of this world wrote.
    pub fn log(&self, node: &str) -> String {
        let text = fs::read_to_string(self.path(&format!("{node}.log"))).unwrap_or_default();
        let start = text.len().saturating_sub(8000);
        text[text.ceil_char_boundary(start)..].to_owned()
    }

    /// Nothing of this world is mounted or attached: to be called when everything was taken down.
    pub fn assert_nothing_left(&self) {
        let inside = self.dir.path().to_str().unwrap();
        assert_eq!(
            mounts_below(inside).iter().filter(|at| **at != format!("{inside}/data")).collect::<Vec<_>>(),
            [""; 0]
        );
        assert_eq!(loops_below(&format!("{inside}/data/")), [""; 0]);
        for place in ["stage", "pods"] {
            let left: Vec<_> =
                fs::read_dir(self.path(place)).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(left.is_empty(), "left in {place}: {left:?}");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let inside = self.dir.path().to_str().unwrap().to_owned();
        // The deepest first, and again for what was mounted over.
        for _ in 0..3 {
            let mut mounts = mounts_below(&inside);
            mounts.sort_by_key(|at| std::cmp::Reverse(at.len()));
            for at in mounts {
                let _ = Command::new("umount").arg(&at).stderr(Stdio::null()).status();
            }
            for (device, _) in loops(&inside) {
                let _ = Command::new("losetup").args(["-d", &device]).stderr(Stdio::null()).status();
            }
        }
    }
}

/// A process that is ended with this value.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running process of Bowline.
pub struct Daemon {
    child: Option<Child>,
    /// Where it listens for CSI calls.
    pub socket: PathBuf,
    /// The node it is.
    pub node: String,
}

impl Daemon {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// The end that nobody is told of.
    pub fn kill(mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The end that it is asked for.
    pub fn stop(mut self) {
        let mut child = self.child.take().unwrap();
        run("kill", ["-TERM", &child.id().to_string()]);
        let status = child.wait().unwrap();
        assert!(status.success(), "{} ended with {status}", self.node);
    }

    /// The same for a caller that is still connected and has to hear of the end meanwhile.
    pub async fn stop_while_connected(self) {
        tokio::task::spawn_blocking(|| self.stop()).await.unwrap();
    }

    /// Its resident memory in bytes.
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits for something outside this process.
pub fn wait_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Runs a program that must succeed.
pub fn run<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).args(arguments).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Where something is mounted below a directory.
pub fn mounts_below(inside: &str) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let places = table.lines().filter_map(|line| line.split(' ').nth(4));
    places.filter(|at| at.starts_with(inside)).map(str::to_owned).collect()
}

/// Loop devices whose file lies below a directory, with that file.
fn loops(inside: &str) -> Vec<(String, String)> {
    let Ok(blocks) = fs::read_dir("/sys/block") else { return vec![] };
    let names = blocks.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let backed = names.filter_map(|name| {
        let file = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
        Some((format!("/dev/{name}"), file.trim().to_owned()))
    });
    backed.filter(|(_, file)| file.starts_with(inside)).collect()
}

/// The same, in words.
pub fn loops_below(inside: &str) -> Vec<String> {
    loops(inside).into_iter().map(|(device, file)| format!("{device} {file}")).collect()
}
