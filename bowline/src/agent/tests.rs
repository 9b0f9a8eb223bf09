//! What `bowline target` is told, and in which words mistakes are told.

use super::*;
use clap::Parser;

fn load(typed: &[&str]) -> Result<TargetConfig, String> {
    let base = ["bowline", "target", "--id", "file-a", "--directory", "/v", "--host-name", "worker-1"];
    let cli = crate::args::Cli::try_parse_from([&base, typed].concat()).map_err(|error| error.to_string())?;
    let crate::args::Command::Target(args) = cli.command else { panic!("not target") };
    TargetConfig::load(args).map_err(|error| error.to_string())
}

#[test]
fn an_address_is_never_served_without_certificates() {
    let error = load(&["--listen", "0.0.0.0:9460"]).unwrap_err();
    assert!(error.contains("needs --tls"), "{error}");
    let config = load(&["--listen", "0.0.0.0:9460", "--tls", "/tls", "--topology", "zone=z1"]).unwrap();
    assert_eq!(config.topology, BTreeMap::from([("zone".to_owned(), "z1".to_owned())]));
    assert_eq!(config.http, Some("127.0.0.1:8462".parse().unwrap()));
    let config = load(&["--listen", "unix:///run/x.sock", "--http", "off"]).unwrap();
    assert_eq!((config.http, config.host_name.as_str()), (None, "worker-1"));
    assert_eq!(config.nvme, []);
    let exported =
        ["--listen", "/x.sock", "--export", "nvmet", "--nvme-listen", "10.0.0.1:4420,[fd00::1]:4420"];
    assert_eq!(load(&exported).unwrap().nvme.len(), 2);
    let bare = ["--listen", "/x.sock", "--export", "nvmet", "--nvme-listen", "10.0.0.1,fd00::1,[fd00::2]:9"];
    let at = |typed: &[&str]| load(typed).unwrap().nvme.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(at(&bare), ["10.0.0.1:4420", "[fd00::1]:4420", "[fd00::2]:9"]);
    let ported = [&bare[..], &["--nvme-port", "4430"]].concat();
    assert_eq!(at(&ported), ["10.0.0.1:4430", "[fd00::1]:4430", "[fd00::2]:9"]);
    let network = ["--listen", "/x.sock", "--export", "nvmet", "--nvme-listen", "10.1.0.0/24,fd00:1::/64"];
    assert_eq!(at(&network), ["10.1.0.0/24 with port 4420", "fd00:1::/64 with port 4420"]);
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_to_write() {
    for (typed, told) in [
        (&["--listen", "here"][..], "neither an address"),
        (&["--listen", "unix://x"], "no absolute path"),
        (&["--listen", "/x.sock", "--topology", "zone"], "KEY=VALUE"),
        (&["--listen", "/x.sock", "--topology", "zone=a b"], "can be no label"),
        (&["--listen", "/x.sock", "--topology", "z=a", "--topology", "z=b"], "names it twice"),
        (&["--listen", "/x.sock", "--topology", "topology.bowline.storage/host=x"], "--host-name does"),
        (&["--listen", "/x.sock", "--export", "nvmet"], "--export nvmet needs it"),
        (&["--listen", "/x.sock", "--nvme-listen", "10.0.0.1:4420"], "it is for --export nvmet"),
        (
            &["--listen", "/x.sock", "--export", "nvmet", "--nvme-listen", "0.0.0.0:4420"],
            "nowhere that a node",
        ),
        (
            &["--listen", "/x.sock", "--export", "nvmet", "--nvme-listen", "[fd00::1]:4420,[fd00::1]:4420"],
            "named twice",
        ),
        (&["--listen", "/x.sock", "--export", "nvmet", "--nvme-listen", "eth0"], "is no address"),
        (&["--listen", "/x.sock", "--export", "nvmet", "--nvme-listen", ""], "is no address"),
        (&["--listen", "/x.sock", "--nvme-listen", "10.1.0.0/24"], "it is for --export nvmet"),
        (
            &["--listen", "/x.sock", "--export", "nvmet", "--nvme-listen", "10.1.0.7/24"],
            "did you mean the network 10.1.0.0/24?",
        ),
        (&["--listen", "/x.sock", "--export", "nvmet", "--nvme-listen", "0.0.0.0/0"], "is every network"),
        (&["--listen", "/x.sock", "--export", "nvmet", "--nvme-listen", "::/0"], "is every network"),
        (&["--listen", "/x.sock", "--export", "nvmet", "--nvme-listen", "eth0/24"], "is no network"),
        (
            &["--listen", "/x.sock", "--export", "nvmet", "--nvme-listen", "10.1.0.0/24", "--nvme-port", "0"],
            "nowhere that a node",
        ),
        (
            &["--listen", "/x.sock", "--export", "nvmet", "--nvme-listen", "10.1.0.0/24,10.1.0.0/24"],
            "named twice",
        ),
        (&["--export", "loop"], "required arguments were not provided"),
    ] {
        let error = load(typed).unwrap_err();
        assert!(error.contains(told), "{error}");
    }
}
