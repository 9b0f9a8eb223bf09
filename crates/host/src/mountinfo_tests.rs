use super::*;
use proptest::prelude::*;

const RECORDED: &[(&str, &[u8], usize)] = &[
    ("a small machine", include_bytes!("../tests/mountinfo/machine.txt"), 20),
    ("a node with pods", include_bytes!("../tests/mountinfo/node.txt"), 11),
    ("odd names", include_bytes!("../tests/mountinfo/odd.txt"), 7),
];

fn table(name: &str) -> MountTable {
    let (_, bytes, _) = RECORDED.iter().find(|(recorded, ..)| *recorded == name).unwrap();
    MountTable::parse(bytes).unwrap()
}

fn device(text: &str) -> DeviceNumber {
    text.parse().unwrap()
}

fn render(mount: &Mount) -> Vec<u8> {
    let words = |options: &Options| options.iter().collect::<Vec<_>>().join(OsStr::new(",")).into_vec();
    let tags: String = mount.tags.iter().map(|tag| format!("{} ", render_tag(tag))).collect();
    let Mount { id, parent, device, .. } = mount;
    let mut line =
        format!("{id} {parent} {device} {} {} ", escape(&mount.root), escape(mount.at.as_os_str()));
    let end = format!(" - {} {} ", escape(&mount.fs_type), escape(&mount.source));
    line = format!("{line}{}", String::from_utf8(words(&mount.options)).unwrap());
    let tags = if tags.is_empty() { String::new() } else { format!(" {}", tags.trim_end()) };
    let super_options = String::from_utf8(words(&mount.super_options)).unwrap();
    format!("{line}{tags}{end}{super_options}\n").into_bytes()
}

fn render_tag(tag: &Propagation) -> String {
    match tag {
        Propagation::Shared(group) => format!("shared:{group}"),
        Propagation::Master(group) => format!("master:{group}"),
        Propagation::PropagateFrom(group) => format!("propagate_from:{group}"),
        Propagation::Unbindable => "unbindable".to_owned(),
        Propagation::Unknown(text) => text.to_str().unwrap().to_owned(),
    }
}

#[test]
fn recorded_tables_are_read_whole_and_written_back() {
    for (name, bytes, expected) in RECORDED {
        let table = MountTable::parse(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(table.iter().count(), *expected, "{name}");
        let rendered: Vec<u8> = table.iter().flat_map(render).collect();
        assert_eq!(MountTable::parse(&rendered).unwrap(), table, "{name}");
    }
}

#[test]
fn layers_are_found_with_the_visible_one_last() {
    let table = table("a node with pods");
    let staging = Path::new("/var/lib/kubelet/plugins/staging/vol-1/globalmount");
    let layers: Vec<_> = table.at(staging).map(|mount| mount.id).collect();
    assert_eq!(layers, [610, 640]);
    assert_eq!(table.top(staging).map(|mount| mount.id), Some(640));
    assert!(table.is_mount_point(staging));
    assert!(!table.is_mount_point(staging.parent().unwrap()), "only the very path");
    assert!(!table.is_mount_point(Path::new("/var/lib/kubelet/plugins/staging/vol-1/globalmount/sub")));
}

#[test]
fn mounts_of_a_device_are_found_by_number_and_for_btrfs_by_its_node() {
    let table = table("a node with pods");
    let node = |path: &Path| (path == Path::new("/dev/loop5")).then(|| device("7:5"));
    let at = |number| table.of_device(device(number), node).map(|mount| mount.id).collect::<Vec<_>>();
    assert_eq!(at("7:3"), [610, 620, 640]);
    assert_eq!(at("7:5"), [630], "btrfs shows 0:61");
    assert_eq!(at("7:6"), []);
}

#[test]
fn a_path_inside_a_mount_is_traced_to_its_file() {
    let table = table("a node with pods");
    let (mount, root) = table.covering(Path::new("/var/lib/kubelet/pods/p1/volumes/data/a/b")).unwrap();
    assert_eq!((mount.id, root), (620, PathBuf::from("/sub/a/b")));
    let (mount, root) = table.covering(Path::new("/etc/passwd")).unwrap();
    assert_eq!((mount.id, root), (30, PathBuf::from("/etc/passwd")));
}

#[test]
fn odd_names_and_tags_are_kept() {
    let table = table("odd names");
    let mounts: Vec<_> = table.iter().collect();
    assert_eq!(mounts[0].at, Path::new("/mnt/a b\tc\nd\\e"));
    assert_eq!(
        mounts[0].tags,
        [Propagation::Shared(4), Propagation::Master(9), Propagation::PropagateFrom(2)]
    );
    assert_eq!(mounts[1].source, "", "an empty source");
    assert_eq!(mounts[2].root, "mnt:[4026531841]", "a namespace kept by a mount");
    assert_eq!(mounts[3].tags, [Propagation::Unbindable, Propagation::Unknown("newfangled:7".into())]);
    assert_eq!(mounts[4].at.as_os_str().as_bytes(), b"/mnt/\xFF\xFE", "not UTF-8");
    assert_eq!(mounts[5].root, "/gone//deleted");
    assert!(mounts[6].super_has("commit=5") && mounts[6].is_read_only());
}

#[test]
fn a_bad_line_is_named() {
    let good = "30 1 8:1 / / rw - ext4 /dev/sda1 rw\n";
    for (bad, fault) in [
        ("x 1 8:1 / / rw - ext4 a rw", Fault::Unreadable("the mount id")),
        ("31 -1 8:1 / / rw - ext4 a rw", Fault::Unreadable("the parent id")),
        ("31 1 8.1 / / rw - ext4 a rw", Fault::Unreadable("the device number")),
        ("31 1 8:1 /\\04 / rw - ext4 a rw", Fault::Escape("the root")),
        ("31 1 8:1 / /\\999 rw - ext4 a rw", Fault::Escape("the mount point")),
        ("31 1 8:1 / / rw - ext4 a\\777 rw", Fault::Escape("the source")),
        ("31 1 8:1 / / rw shared:x - ext4 a rw", Fault::Unreadable("a tag")),
        ("31 1 8:1 / / rw shared:1", Fault::Missing("the separator")),
        ("31 1 8:1 / / rw - ext4", Fault::Missing("the source")),
        ("31 1 8:1 / / rw - ext4 a", Fault::Missing("the filesystem's options")),
        ("31 1 8:1 / / rw - ext4 a rw more", Fault::TooLong),
        ("31", Fault::Missing("the parent id")),
    ] {
        let parsed = MountTable::parse(format!("{good}{bad}\n{good}").as_bytes());
        assert_eq!(parsed, Err(ParseError { line: 2, what: fault }), "{bad}");
    }
}

#[test]
fn the_kernels_own_table_is_read() {
    let table = MountTable::read(Path::new("/proc/self/mountinfo")).unwrap();
    assert!(table.is_mount_point(Path::new("/")));
    assert!(table.covering(Path::new("/proc/self/status")).is_some_and(|(mount, _)| mount.fs_type == "proc"));
}

fn name() -> impl Strategy<Value = OsString> {
    prop::collection::vec(prop_oneof![Just(b' '), Just(b'\\'), Just(b'\n'), 1_u8..=255], 0..12)
        .prop_map(OsString::from_vec)
}

fn some_options() -> impl Strategy<Value = Options> {
    prop::collection::vec("[a-z=0-9/.]{1,8}", 1..4).prop_map(|words| Options(words.join(",").into()))
}

fn tag_of() -> impl Strategy<Value = Propagation> {
    prop_oneof![
        any::<u64>().prop_map(Propagation::Shared),
        any::<u64>().prop_map(Propagation::Master),
        any::<u64>().prop_map(Propagation::PropagateFrom),
        Just(Propagation::Unbindable),
        "[a-z]{1,5}:[0-9]{1,3}x".prop_map(|text| Propagation::Unknown(text.into())),
    ]
}

prop_compose! {
    fn mount()(
        (id, parent, major, minor) in any::<(u64, u64, u32, u32)>(),
        (root, at, source) in (name(), name(), name()),
        fs_type in "[a-z.]{1,8}",
        (options, super_options) in (some_options(), some_options()),
        tags in prop::collection::vec(tag_of(), 0..4),
    ) -> Mount {
        let (device, fs_type) = (DeviceNumber { major, minor }, fs_type.into());
        Mount { id, parent, device, root, at: at.into(), options, tags, fs_type, source, super_options }
    }
}

proptest! {
    #[test]
    fn what_is_rendered_is_parsed_back(mounts in prop::collection::vec(mount(), 0..6)) {
        let rendered: Vec<u8> = mounts.iter().flat_map(render).collect();
        prop_assert_eq!(MountTable::parse(&rendered), Ok(MountTable { mounts }));
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = MountTable::parse(&bytes);
    }

    #[test]
    fn damaged_tables_never_panic(at in 0_usize..2000, byte in any::<u8>()) {
        let mut bytes = RECORDED[1].1.to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = MountTable::parse(&bytes);
    }
}
