//! What real kernels showed, in six states and two layouts, against what is made of it.

use crate::{machine, nvme};
use bowline_host::nvme::{ControllerState, Kernel, Nvme, Subsystem, WriteError};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

struct Untouched;

impl Kernel for Untouched {
    fn write(&self, file: &Path, _: &str, _: Duration) -> Result<String, WriteError> {
        panic!("{} was written to", file.display())
    }

    fn answers(&self, address: SocketAddr, _: Duration) -> io::Result<()> {
        panic!("{address} was asked")
    }
}

/// The other way round than the resolver goes: from each block device up to whose it is. NQN and UUID, and the names of
/// the disks that have them.
fn disks(text: &str) -> BTreeMap<(String, String), Vec<String>> {
    let value = |path: String| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{path} = ")));
        line.unwrap_or_else(|| panic!("{path}")).to_owned()
    };
    let mut disks = BTreeMap::<_, Vec<_>>::new();
    for line in text.lines().filter(|line| line.starts_with("sys/dev/block/")) {
        let directory = line.split_once(" -> ../../").unwrap().1;
        let (above, name) = directory.rsplit_once('/').unwrap();
        let nqn = value(format!("sys/{above}/subsysnqn"));
        disks.entry((nqn, value(format!("sys/{directory}/uuid")))).or_default().push(name.to_owned());
    }
    disks
}

fn states(subsystems: &[Subsystem]) -> Vec<ControllerState> {
    subsystems.iter().flat_map(|one| &one.controllers).map(|one| one.state.clone()).collect()
}

/// What must be true of a state, whatever the kernel and the layout.
fn check(state: &str, nvme: &Nvme, disks: &BTreeMap<(String, String), Vec<String>>) {
    let all = nvme.subsystems(|_| true).unwrap();
    let without_disk: Vec<_> = all.iter().filter(|one| one.namespaces.is_empty()).collect();
    let is_live = |state: &ControllerState| *state == ControllerState::Live;
    match state {
        "one" => assert_eq!((all.len(), states(&all).len(), disks.len()), (1, 1, 1)),
        "paths" => assert_eq!((all.len(), states(&all).len(), disks.len()), (1, 2, 1)),
        "crossed" => assert_eq!((all.len(), states(&all).len(), disks.len()), (3, 3, 3)),
        "orphan" => {
            assert_eq!((without_disk.len(), without_disk[0].controllers.len()), (1, 1));
            assert!(states(&all).iter().all(is_live));
        }
        "connecting" => assert!(!states(&all).is_empty() && !states(&all).iter().any(is_live)),
        "lost" => {
            assert_eq!((all.len(), without_disk.len(), disks.len()), (1, 1, 0));
            assert_eq!(without_disk[0].controllers, [], "nothing leads there, and somebody has its disk");
        }
        other => panic!("{other}: a state of which nothing is known"),
    }
}

#[test]
fn recorded_trees_are_understood() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvme/trees");
    let mut seen = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let Some((layout, state)) = name.strip_prefix("linux-").and_then(|name| name.rsplit_once('-')) else {
            continue;
        };
        let text = fs::read_to_string(&path).unwrap();
        let Some(tree) = machine(&text) else { return };
        let nvme = nvme(&tree, Arc::new(Untouched));
        let disks = disks(&text);
        println!("{name}");
        for _ in 0..2 {
            for ((nqn, uuid), names) in &disks {
                let node = nvme.resolve(nqn, uuid).unwrap().unwrap_or_else(|| panic!("{name}: {nqn}"));
                let found = node.path.file_name().unwrap().to_str().unwrap().to_owned();
                assert!(names.contains(&found), "{name}: {nqn} is at {names:?}, and {found} was found");
            }
        }
        assert_eq!(nvme.is_multipath(), layout.ends_with("multipath"), "{name}");
        check(state, &nvme, &disks);
        seen += 1;
    }
    assert!(seen > 0, "there are none");
}
