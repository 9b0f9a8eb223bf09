//! What a configuration file and flags make of each other, and in which words mistakes are told.

use super::*;
use clap::Parser;

fn up(typed: &[&str]) -> (PathBuf, UpArgs) {
    let cli = crate::args::Cli::try_parse_from([&["bowline", "up"], typed].concat()).unwrap();
    let crate::args::Command::Up(up) = cli.command else { panic!("not up") };
    (cli.data, up)
}

const FULL: &str = r#"
csi = "unix:///run/x/csi.sock"
http = "127.0.0.1:1"
node = "from-file"
peers = ["a", "b"]
target = "file"
max-volumes = 16
overcommit = 2.5
reserve = "10Gi"
path-root = "/var/lib/kubelet"
"#;

#[test]
fn flags_come_before_the_file_and_the_file_before_what_is_usual() {
    let file = FileConfig::parse(Path::new("f"), FULL).unwrap();
    let (data, args) =
        up(&["--node", "typed", "--max-volumes", "3", "--http", "off", "--peer", "c", "--peer", "typed"]);
    let config = Config::merge(&data, &args, file).unwrap();
    assert_eq!((config.node.as_str(), config.max_volumes, config.http), ("typed", 3, None));
    assert_eq!(config.peers, [NodeId::new("c").unwrap()], "a node is not its own peer");
    assert_eq!((config.overcommit.percent(), config.reserve), (250, Size(10 << 30)));
    assert_eq!(config.csi.path(), Path::new("/run/x/csi.sock"));
    assert_eq!(config.path_root, Path::new("/var/lib/kubelet"));
    let (data, args) = up(&["--node", "n"]);
    let config = Config::merge(&data, &args, FileConfig::default()).unwrap();
    assert_eq!(config.csi.path(), data.join("csi.sock"));
    assert_eq!((config.max_volumes, config.overcommit.percent(), config.reserve), (128, 100, Size(64 << 20)));
    assert_eq!(config.http, Some("127.0.0.1:8460".parse().unwrap()));
    assert_eq!((config.path_root.as_path(), config.peers.len()), (Path::new("/"), 0));
}

#[test]
fn a_shelf_names_its_target_and_its_directory_and_no_target_has_two() {
    let node = |typed: &[&str]| {
        let typed = [&["bowline", "node", "--node", "n"], typed].concat();
        let cli = crate::args::Cli::try_parse_from(typed).map_err(|error| error.to_string())?;
        let crate::args::Command::Node(args) = cli.command else { panic!("not node") };
        Config::load_node(&cli.data, args).map_err(|error| error.to_string())
    };
    let config = node(&["--shelf", "file-a=/a", "--shelf", "file-b=/b"]).unwrap();
    let shelves: Vec<_> =
        config.shelves.iter().map(|shelf| (shelf.target.as_str(), &shelf.directory)).collect();
    assert_eq!(shelves, [("file-a", &PathBuf::from("/a")), ("file-b", &PathBuf::from("/b"))]);
    assert_eq!(node(&[]).unwrap().shelves, []);
    for (typed, told) in [
        (&["--shelf", "/a"][..], "not of the form TARGET=DIR"),
        (&["--shelf", "a/b=/a"], "target id"),
        (&["--shelf", "a=b"], "no absolute path"),
        (&["--shelf", "a=/a", "--shelf", "a=/b"], "target a has two directories"),
    ] {
        let error = node(typed).unwrap_err();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn a_flag_that_was_given_again_ended_the_process_and_of_lists_nothing_is_lost() {
    let parse = |typed: &[&str]| {
        let cli = crate::args::Cli::try_parse_from([&["bowline"], typed].concat());
        cli.unwrap_or_else(|error| panic!("{error}"))
    };
    let cli = parse(&[
        "node",
        "--node=n",
        "--max-volumes=128",
        "--shelf=a=/a",
        "--data=/x",
        "--shelf=b=/b,c=/c",
        "--max-volumes=7",
        "--data=/y",
    ]);
    assert_eq!(cli.data, Path::new("/y"));
    let crate::args::Command::Node(args) = cli.command else { panic!("not node") };
    assert_eq!((args.max_volumes, args.shelf.len()), (Some(7), 3));
    let crate::args::Command::Controller(args) =
        parse(&["controller", "--pod-name=p", "--attacher=builtin", "--attacher=sidecar"]).command
    else {
        panic!("not controller")
    };
    assert_eq!(args.attacher, crate::controller::AttacherKind::Sidecar);
    let crate::args::Command::Target(args) = parse(&[
        "target",
        "--id=t",
        "--directory=/d",
        "--listen=/s",
        "--nvme-port=1",
        "--nvme-listen=10.0.0.1",
        "--topology=a=b",
        "--nvme-port=2",
        "--nvme-listen=10.0.0.2",
        "--topology=c=d",
    ])
    .command
    else {
        panic!("not target")
    };
    assert_eq!((args.nvme_port, args.nvme_listen.len(), args.topology.len()), (2, 2, 2));
}

#[test]
fn an_agent_elsewhere_needs_certificates_and_a_name_of_its_own() {
    for (typed, told) in [
        (&["--agent", "a=h:1", "--tls", "/tls"][..], None),
        (&["--agent", "a=unix:///a.sock"], None),
        (&["--agent", "a=h:1"], Some("h:1 needs --tls")),
        (&["--agent", "a=unix:///a.sock", "--agent", "a=unix:///b.sock"], Some("target a has two agents")),
        (&["--agent", "file=unix:///a.sock"], Some("file is the target of this machine")),
    ] {
        let (data, args) = up(&[&["--node", "n"], typed].concat());
        let loaded = Config::load(&data, &args).map_err(|error| error.to_string());
        match (&loaded, told) {
            (Ok(config), None) => assert_eq!(config.agents.len(), 1),
            (Err(error), Some(told)) => assert!(error.contains(told), "{error}"),
            _ => panic!("{typed:?}: {loaded:?}"),
        }
    }
}

fn device(more: &str) -> String {
    format!(
        "[rds.box]\naddress = \"10.0.0.9\"\nuser = \"bowline\"\nkey-file = \"/k\"\npool = \"pool\"\ndirectory = \"/pool/bowline\"\n\
         exports = [\"10.0.0.9:4420\"]\ninstallation = \"lab-1\"\n{more}\n"
    )
}

#[test]
fn a_device_has_a_name_of_its_own() {
    let (data, args) = up(&["--node", "n", "--agent", "a=unix:///a.sock"]);
    let load = |text: &str| {
        let file = FileConfig::parse(Path::new("f"), text).unwrap();
        Config::merge(&data, &args, file).map_err(|error| error.to_string())
    };
    let config = load(&device("")).unwrap();
    let [(name, device_config)] = &config.rds.into_iter().collect::<Vec<_>>()[..] else { panic!("one") };
    assert_eq!((name.as_str(), device_config.address.as_str()), ("box", "10.0.0.9:22"));
    for taken in ["file", "a"] {
        let error = load(&device("").replace("rds.box", &format!("rds.{taken}"))).unwrap_err();
        assert!(
            error.contains(&format!("[rds.{taken}]")) && error.contains("call the device something else"),
            "{error}"
        );
    }
}

#[test]
fn what_is_wrong_is_told_with_file_line_and_key() {
    for (text, words) in [
        ("node = \"a\"\ncolour = 1\n", &["bowline.toml:2: ", "colour", "unknown field"][..]),
        ("\n\nmax-volumes = -1\n", &[":3: max-volumes: "]),
        ("max-volumes = \"many\"\n", &[":1: max-volumes: invalid type"]),
        ("overcommit = 0.5\n", &[":1: overcommit: 0.5 is not between 1 and 1000"]),
        ("reserve = \"ten\"\n", &[":1: reserve: "]),
        ("csi = \"tcp://x\"\n", &[":1: csi: ", "is no unix socket"]),
        ("http = \"here\"\n", &[":1: http: \"here\" is no address"]),
        ("path-root = \"x\"\n", &[":1: path-root: \"x\" is no absolute path"]),
        ("target = \"disk\"\n", &[":1: target: \"disk\" is no target"]),
        ("agents = [\"a=h:1\", \"b\"]\n", &[":1: agents[1]: \"b\" is not of the form"]),
        ("peers = [\"a\", \"b c\"]\n", &[":1: peers[1]: node id"]),
        ("node = \"a\"\nnode = \"b\"\n", &[":2: ", "duplicate"]),
        ("node = \"a\"\n= 3\n", &[":2: "]),
        ("[rds.box]\nuser = \"x\"\n", &[":1: rds.box: missing field `address`"]),
        (&device("host-key = \"abc\""), &["rds.box.host-key: a host key is written as"]),
        (&device("password-file = \"/p\""), &["rds.box: give key-file or password-file, and not both"]),
        (
            &device("installation = \"A\"").replace("installation = \"lab-1\"\n", ""),
            &["rds.box: installation must be 1 to 32"],
        ),
        (
            &device("exports = []").replace("exports = [\"10.0.0.9:4420\"]\n", ""),
            &["rds.box: exports must be at least one"],
        ),
        (
            &device("take-over = \"/pool/bowline\""),
            &["rds.box: take-over must be another directory than Bowline's own"],
        ),
        (&device("colour = 1"), &["rds.box.colour: unknown field"]),
        ("orphans = \"keep\"\n", &[":1: orphans: \"keep\" is not known here; write off, report or delete"]),
        ("orphan-grace = \"soon\"\n", &[":1: orphan-grace: \"soon\" is no span of time"]),
    ] {
        let told = FileConfig::parse(Path::new("/data/bowline.toml"), text).unwrap_err().to_string();
        for word in words {
            assert!(told.contains(word), "{word:?} is not in: {told}");
        }
        assert!(!told.contains('\n'), "{told}");
    }
}

#[test]
fn a_grace_of_nothing_is_refused_wherever_its_halves_were_said() {
    for (typed, text) in [
        (&["--orphans", "delete", "--orphan-grace", "0s"][..], ""),
        (&["--orphans", "delete"], "orphan-grace = \"0h0m\""),
        (&["--orphan-grace", "0d"], "orphans = \"delete\""),
        (&[], "orphans = \"delete\"\norphan-grace = \"0s\""),
    ] {
        let (data, args) = up(&[&["--node", "n"], typed].concat());
        let file = FileConfig::parse(Path::new("f"), text).unwrap();
        let error = Config::merge(&data, &args, file).unwrap_err().to_string();
        assert!(error.starts_with("--orphan-grace cannot be used"), "{typed:?} {text:?}: {error}");
    }
    let (data, args) = up(&["--node", "n", "--orphan-grace", "1s"]);
    let file = FileConfig::parse(Path::new("f"), "orphans = \"delete\"\norphan-grace = \"0s\"").unwrap();
    assert!(Config::merge(&data, &args, file).is_ok(), "what was typed comes before the file");
}

#[test]
fn a_file_that_is_not_there_is_no_configuration_and_one_that_cannot_be_read_is_an_error() {
    let place = tempfile::tempdir().unwrap();
    let (_, args) = up(&["--node", "n"]);
    assert!(Config::load(place.path(), &args).is_ok());
    std::fs::create_dir(place.path().join(FILE)).unwrap();
    let told = Config::load(place.path(), &args).unwrap_err().to_string();
    assert!(told.contains("bowline.toml cannot be read"), "{told}");
}
