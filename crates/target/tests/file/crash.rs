//! The process ends at every point of every deed. Then it starts again, the deed is asked for again, and everything is
//! as if nothing had happened: nothing half made, nothing lost, nothing left over, nothing frozen.

use crate::lab::{
    EMPTY, GENEROUS, Lab, MIB, Raw, cut, grant, lab, listed, open, order, revocation, say, snapshot, volume,
};
use bowline_target::contract::provision::Bytes;
use bowline_target::file::FileTarget;
use bowline_target::{Item, Progress, Provision, Source, Target, TargetError};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const DEED: &str = "BOWLINE_FILE_DEED";
const DIRECTORY: &str = "BOWLINE_FILE_DIRECTORY";

/// What the process was doing when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Create,
    Clone,
    Restore,
    Delete,
    Snapshot,
    DeleteSnapshot,
    Grow,
    Allow,
    Revoke,
}

const DEEDS: &[Deed] = &[
    Deed::Create,
    Deed::Clone,
    Deed::Restore,
    Deed::Delete,
    Deed::Snapshot,
    Deed::DeleteSnapshot,
    Deed::Grow,
    Deed::Allow,
    Deed::Revoke,
];

/// Something went otherwise than asked, whichever half of the port it was.
#[derive(Debug)]
struct Failed {
    #[allow(dead_code, reason = "it is shown")]
    error: String,
}

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Self {
        Self { error: error.to_string() }
    }
}

impl Deed {
    fn named(name: &str) -> Self {
        *DEEDS.iter().find(|deed| format!("{deed:?}") == name).unwrap()
    }

    async fn ask(self, target: &FileTarget) -> Result<(), Failed> {
        let progress = Progress::default();
        match self {
            Self::Create => drop(target.create(&order("new", MIB, None), &progress).await?),
            Self::Clone => {
                let source = Some(Source::Volume(volume("a")));
                target.create(&order("new", 24 * MIB, source), &progress).await?;
            }
            Self::Restore => {
                let source = Some(Source::Snapshot(snapshot("old")));
                target.create(&order("new", 24 * MIB, source), &progress).await?;
            }
            Self::Delete => target.delete(&volume("b")).await?,
            Self::Snapshot => drop(target.snapshot(&[cut("s2", "a"), cut("s1", "b")], &progress).await?),
            Self::DeleteSnapshot => target.delete_snapshot(&snapshot("old")).await?,
            Self::Grow => drop(target.grow(&volume("b"), 20 * MIB).await?),
            Self::Allow => target.allow(&grant("b", "n", 3)).await?,
            Self::Revoke => match target.revoke(&revocation("a", "a", 1)).await {
                // It is mounted, so it drains: that is what is stored and told.
                Ok(_) | Err(TargetError::InUse { .. }) => {}
                Err(other) => return Err(other.into()),
            },
        }
        Ok(())
    }
}

/// The process that ends. As a test of its own it does nothing.
#[test]
fn child() {
    let (Ok(deed), Ok(directory)) = (std::env::var(DEED), std::env::var(DIRECTORY)) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let target = open(Path::new(&directory), GENEROUS).unwrap();
    runtime.block_on(Deed::named(&deed).ask(&target)).unwrap();
    say("deed done");
}

fn start(deed: Deed, directory: &Path, points: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--nocapture"])
        .env(DEED, format!("{deed:?}"))
        .env(DIRECTORY, directory)
        .env("BOWLINE_FAILPOINTS", points)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A directory with two volumes, one of them mounted, and a snapshot.
struct Stage {
    directory: PathBuf,
    points: PathBuf,
    mounted: (bowline_host::loopdev::LoopDevice, PathBuf),
}

impl Stage {
    fn set(lab: &Lab, name: &str) -> Self {
        let directory = lab.path(&format!("on-tmpfs/{name}"));
        let points = lab.directory(&format!("points-{name}"));
        let target = lab.open(&directory);
        lab.create(&target, &order("a", 16 * MIB, None)).unwrap();
        lab.create(&target, &order("b", MIB, None)).unwrap();
        Raw(&target).write(&volume("b"), MIB - 4, b"tail");
        let mounted = lab.mounted(&target, &directory, "a", true);
        fs::write(mounted.1.join("file"), "written before").unwrap();
        lab.snapshot(&target, &[cut("old", "a")]).unwrap();
        Self { directory, points, mounted }
    }

    fn strike(self, lab: &Lab) {
        let target = lab.open(&self.directory);
        lab.unmounted(&target, "a", &self.mounted);
        for epoch in [3, 9] {
            lab.runtime.block_on(target.revoke(&revocation("b", "n", epoch))).unwrap();
        }
        for item in lab.runtime.block_on(target.items(None, 99)).unwrap() {
            match item {
                Item::Volume(id) => lab.runtime.block_on(target.delete(&id)).unwrap(),
                Item::Snapshot(id) => lab.runtime.block_on(target.delete_snapshot(&id)).unwrap(),
            }
        }
        assert_eq!(lab.runtime.block_on(target.capacity()).unwrap().promised, 0);
        drop(target);
        assert_eq!(listed(&self.directory), EMPTY, "something leaked");
        fs::remove_dir_all(&self.directory).unwrap();
        fs::remove_dir_all(&self.points).unwrap();
    }
}

/// Nothing half made is shown, before the deed is asked for again.
fn nothing_half_made(lab: &Lab, target: &FileTarget, deed: Deed) {
    let stored = |id: &str| lab.runtime.block_on(target.volume(&volume(id))).unwrap();
    let kept = |id: &str| lab.runtime.block_on(target.stored_snapshot(&snapshot(id))).unwrap();
    for id in ["a", "b", "new"] {
        assert_eq!(stored(id).and_then(|stored| stored.fault), None, "{id}");
    }
    assert!(stored("a").is_some());
    for id in ["old", "s1", "s2"] {
        assert_eq!(kept(id).and_then(|stored| stored.fault), None, "{id}");
    }
    assert_eq!(kept("s1").is_some(), kept("s2").is_some(), "all or none");
    let names = listed(&lab_directory(target));
    // But for a copy that can go on: see `copies`.
    let goes_on = |name: &str| deed == Deed::Restore && name == "vol-new.part";
    let half = names
        .iter()
        .filter(|name| !goes_on(name))
        .filter(|name| name.ends_with(".part") || name.ends_with("-draft") || name.starts_with("cut"));
    assert_eq!(half.collect::<Vec<_>>(), [""; 0], "the start clears it away");
    if deed != Deed::Delete {
        assert_eq!(Raw(target).read(&volume("b"), MIB - 4, 4), b"tail");
    }
}

fn lab_directory(target: &FileTarget) -> PathBuf {
    use bowline_target::BackingFiles;
    target.backing(&volume("a")).unwrap().unwrap().parent().unwrap().to_owned()
}

/// What must be so when the deed has been asked for again.
fn check(lab: &Lab, target: &FileTarget, stage: &Stage, deed: Deed) {
    let stored = |id: &str| lab.runtime.block_on(target.volume(&volume(id))).unwrap();
    match deed {
        Deed::Create => assert!(Raw(target).read(&volume("new"), 0, 1 << 20).iter().all(|byte| *byte == 0)),
        Deed::Clone | Deed::Restore => same_file(lab, target, &stage.directory, "new"),
        Deed::Delete => assert_eq!(stored("b"), None),
        Deed::Snapshot => {
            lab.create(target, &order("from-s2", 16 * MIB, Some(Source::Snapshot(snapshot("s2"))))).unwrap();
            same_file(lab, target, &stage.directory, "from-s2");
            lab.create(target, &order("from-s1", MIB, Some(Source::Snapshot(snapshot("s1"))))).unwrap();
            assert_eq!(Raw(target).read(&volume("from-s1"), MIB - 4, 4), b"tail");
        }
        Deed::DeleteSnapshot => {
            assert_eq!(lab.runtime.block_on(target.stored_snapshot(&snapshot("old"))).unwrap(), None);
        }
        Deed::Grow => assert_eq!(stored("b").unwrap().size, 20 * MIB),
        Deed::Allow => {
            let device = lab.attach(target, "b", "n", 3).unwrap();
            lab.detach(&device);
        }
        Deed::Revoke => {
            assert!(lab.attach(target, "a", "a", 1).is_err(), "it is shut out");
            let page = lab.runtime.block_on(target.exports(None, 9)).unwrap();
            assert!(page.listings.iter().any(|listing| listing.volume == volume("a")), "and still there");
        }
    }
}

/// A copy of the mounted volume has its file.
fn same_file(lab: &Lab, target: &FileTarget, directory: &Path, id: &str) {
    let place = lab.mounted(target, directory, id, false);
    assert_eq!(fs::read_to_string(place.1.join("file")).unwrap(), "written before");
    lab.unmounted(target, id, &place);
}

/// Runs a deed to its end and says where it could have been stopped.
fn points_of(lab: &Lab, deed: Deed) -> Vec<String> {
    let stage = Stage::set(lab, &format!("{deed:?}-whole"));
    let output = start(deed, &stage.directory, &stage.points).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("deed done"), "{deed:?}: {text}");
    let log = fs::read_to_string(stage.points.join("log")).unwrap();
    stage.strike(lab);
    log.lines().map(str::to_owned).collect()
}

fn ended_at(lab: &Lab, deed: Deed, index: usize, point: &str) {
    let stage = Stage::set(lab, &format!("{deed:?}-{index}"));
    fs::write(stage.points.join("arm"), index.to_string()).unwrap();
    let mut child = start(deed, &stage.directory, &stage.points);
    while !stage.points.join("stopped").exists() {
        assert!(child.try_wait().unwrap().is_none(), "{deed:?} was not stopped at {point}");
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let stopped = fs::read_to_string(stage.points.join("stopped")).unwrap_or_default();
    assert!(stopped.is_empty() || stopped == point, "{stopped} is not {point}");

    let target = lab.open(&stage.directory);
    // A write to a frozen filesystem would never come back.
    let frozen = Command::new("fsfreeze").arg("-u").arg(&stage.mounted.1).output().unwrap().status.success();
    assert!(!frozen, "{deed:?} at {point} left it frozen");
    fs::write(stage.mounted.1.join("after"), "nothing is frozen").unwrap();
    nothing_half_made(lab, &target, deed);
    lab.runtime.block_on(deed.ask(&target)).unwrap_or_else(|error| panic!("{deed:?} at {point}: {error:?}"));
    check(lab, &target, &stage, deed);
    drop(target);
    stage.strike(lab);
}

fn sweep(name: &str, deeds: &[Deed]) {
    lab(name, &["mkfs.ext4"], |lab| {
        lab.scratch("tmpfs", 256);
        for deed in deeds {
            let points = points_of(lab, *deed);
            assert!(points.len() >= 4, "{deed:?} passes only {points:?}");
            for (index, point) in points.iter().enumerate() {
                ended_at(lab, *deed, index, point);
            }
            say(&format!("{deed:?}: ended at each of {} points", points.len()));
        }
    });
}

#[test]
fn making_survives_every_end() {
    sweep("crash::making_survives_every_end", &[Deed::Create, Deed::Grow]);
}

#[test]
fn copying_survives_every_end() {
    sweep("crash::copying_survives_every_end", &[Deed::Clone, Deed::Restore]);
}

#[test]
fn deleting_survives_every_end() {
    sweep("crash::deleting_survives_every_end", &[Deed::Delete, Deed::DeleteSnapshot]);
}

#[test]
fn snapshots_survive_every_end() {
    sweep("crash::snapshots_survive_every_end", &[Deed::Snapshot]);
}

#[test]
fn grants_survive_every_end() {
    sweep("crash::grants_survive_every_end", &[Deed::Allow, Deed::Revoke]);
}
