//! `bowline doctor`: what the process that runs says of its machine, or else what can be seen from here.

use bowline_host::Host;
use bowline_host::doctor::{Presence, probe_nvme_directory};
use bowline_web::wire::{Doctor, Finding, Orphan, Orphans};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::Console;
use crate::client::Client;
use crate::config::{FILE, FileConfig};
use crate::failure::Failure;
use crate::output::{Style, Tone, one_line};

/// Without what is needed for these, nothing works that is made of files.
const REQUIRED: &[&str] =
    &["mounting volumes", "every path of a request", "volumes of the file target", "ext4 volumes"];

/// `exported` is the directory that a `bowline target` beside it is told, if there is one.
pub(super) async fn run(
    client: &Client,
    data: Option<&Path>,
    exported: Option<&Path>,
    console: &mut Console,
) -> Result<(), Failure> {
    let asked = client.get::<Doctor>("/v1/doctor").await;
    let mut report = match asked {
        Ok(report) => report,
        Err(failure) if data.is_none() => {
            console.note(&format!("bowline: {}", failure.message));
            Doctor { version: String::new(), node: String::new(), findings: vec![], drift: None }
        }
        Err(failure) => {
            console.note(&format!("bowline: {}", failure.message));
            console.note("This is what can be seen from here, by this user:");
            let findings = tokio::task::spawn_blocking(|| probe(&Host::default())).await;
            let findings = findings.map_err(|error| Failure::failed(error.to_string()))?;
            let version = env!("CARGO_PKG_VERSION").to_owned();
            Doctor { version, node: String::new(), findings, drift: None }
        }
    };
    match data {
        Some(data) => report.findings.extend(local(data, &report.version)),
        None => report.findings.extend(super::checkup::look(client, &report).await?),
    }
    report.findings.extend(exported.into_iter().flat_map(probe_nvme_directory).map(told));
    console.show(&report, |style, _| show(&report, style))?;
    let lacking = report.findings.iter().filter(|finding| finding.required && !finding.present).count();
    let drifted = report.drift.as_ref().map_or(0, |drift| drift.missing.len());
    match (lacking, drifted) {
        (0, 0) => Ok(()),
        (0, drifted) => Err(Failure::failed(format!("in the records and not on its target: {drifted}"))),
        (lacking, _) => Err(Failure::failed(format!("needed and missing: {lacking}"))),
    }
}

/// The volumes on targets that no record knows of.
pub(super) async fn orphans(client: &Client, console: &mut Console) -> Result<(), Failure> {
    let found = client.get::<Orphans>("/v1/orphans").await?;
    console.show(&found, |_, _| show_orphans(&found))
}

fn show_orphans(found: &Orphans) -> String {
    if found.orphans.is_empty() {
        return "Every volume on every target has a record.\n".to_owned();
    }
    let mut out = String::new();
    for Orphan { target, volume, first_seen, ripe } in &found.orphans {
        let over = if *ripe { ", long enough to be deleted where --orphans delete is set" } else { "" };
        let _ = writeln!(
            out,
            "{} on {} has no record; seen since {}{over}",
            one_line(volume),
            one_line(target),
            one_line(first_seen)
        );
    }
    out
}

/// What this machine's kernel and programs can do, as the API tells it.
pub(crate) fn probe(host: &Host) -> Vec<Finding> {
    host.probe_machine().into_iter().map(told).collect()
}

fn told(finding: bowline_host::doctor::Finding) -> Finding {
    let (present, detail) = match finding.state {
        Presence::Present(how) => (true, how),
        Presence::Missing(why) => (false, why),
    };
    let required = REQUIRED.contains(&finding.needed_for);
    Finding { what: finding.what, needed_for: finding.needed_for.to_owned(), present, detail, required }
}

/// What can be seen from here only: the directory, the socket, the configuration and the version of this very program.
fn local(data: &Path, version: &str) -> Vec<Finding> {
    let found = |what: String, needed_for: &str, seen: Result<String, String>, required: bool| {
        let (present, detail) = match seen {
            Ok(how) => (true, how),
            Err(why) => (false, why),
        };
        Finding { what, needed_for: needed_for.to_owned(), present, detail, required }
    };
    let mode = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.permissions().mode() & 0o777);
    let mut findings = vec![];
    let directory = match mode(data) {
        Ok(mode) if mode & 0o022 == 0 => Ok(format!("mode {mode:03o}")),
        Ok(mode) => Err(format!("mode {mode:03o}: others can write to it; chmod go-w {}", data.display())),
        Err(error) => Err(error.to_string()),
    };
    findings.push(found(format!("the data directory {}", data.display()), "everything", directory, true));
    for (name, needed_for) in
        [("api.sock", "this command line"), ("csi.sock", "CSI"), ("api.token", "the API over TCP")]
    {
        let path = data.join(name);
        // CSI may listen elsewhere, and TCP may be off: what is not there is only told.
        let seen = match mode(&path) {
            Ok(0o600) => Ok("mode 600".to_owned()),
            Ok(mode) => Err(format!("mode {mode:03o}: it must be 600")),
            Err(error) => Err(error.to_string()),
        };
        let open = mode(&path).is_ok_and(|mode| mode != 0o600);
        findings.push(found(path.display().to_string(), needed_for, seen, open));
    }
    let config = data.join(FILE);
    if let Ok(text) = std::fs::read_to_string(&config) {
        let read = FileConfig::parse(&config, &text)
            .map(|_| "understood".to_owned())
            .map_err(|error| error.to_string());
        findings.push(found(config.display().to_string(), "the next start", read, true));
    }
    let ours = env!("CARGO_PKG_VERSION");
    let same = if ours == version {
        Ok(ours.to_owned())
    } else {
        Err(format!("this is {ours}, and {version} runs"))
    };
    findings.push(found("one version".to_owned(), "understanding each other", same, false));
    findings
}

fn show(report: &Doctor, style: Style) -> String {
    let mut out = String::new();
    for finding in &report.findings {
        let (word, tone) = match (finding.present, finding.required) {
            (true, _) => ("ok     ", Tone::Good),
            (false, true) => ("missing", Tone::Bad),
            (false, false) => ("absent ", Tone::Waiting),
        };
        let (what, detail) = (one_line(&finding.what), one_line(&finding.detail));
        let _ = write!(out, "{} {what} ({detail})", style.paint(tone, word));
        if !finding.present {
            let _ = write!(out, "; needed for {}", finding.needed_for);
        }
        out.push('\n');
    }
    let Some(drift) = &report.drift else { return out };
    if drift.unknown.is_empty() && drift.missing.is_empty() {
        let _ = writeln!(out, "{} records and storage agree", style.paint(Tone::Good, "ok     "));
    }
    for item in &drift.missing {
        let _ = writeln!(
            out,
            "{} {item} is in the records and not on its target",
            style.paint(Tone::Bad, "missing")
        );
    }
    for item in &drift.unknown {
        let _ = writeln!(
            out,
            "{} {item} is on a target and no record knows it; it is left alone",
            style.paint(Tone::Waiting, "unknown")
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_web::wire::Drift;

    #[test]
    fn what_was_found_is_shown_like_this() {
        let finding = |what: &str, present, required, detail: &str| Finding {
            what: what.to_owned(),
            needed_for: "something".to_owned(),
            present,
            detail: detail.to_owned(),
            required,
        };
        let report = Doctor {
            version: "1".to_owned(),
            node: "n".to_owned(),
            findings: vec![
                finding("loop devices", true, true, "/dev/loop-control"),
                finding("the right to mount", false, true, "this process has no CAP_SYS_ADMIN"),
                finding("FUSE", false, false, "the kernel does not offer it"),
            ],
            drift: Some(Drift {
                unknown: vec!["volume a".to_owned()],
                missing: vec!["snapshot b".to_owned()],
            }),
        };
        let calm = Doctor { findings: vec![], drift: Some(Drift::default()), ..report.clone() };
        insta::assert_snapshot!(format!("{}---\n{}", show(&report, Style::Plain), show(&calm, Style::Plain)));
    }

    #[test]
    fn orphans_are_listed_with_their_age() {
        let orphan = |volume: &str, ripe| Orphan {
            target: "box".to_owned(),
            volume: volume.to_owned(),
            first_seen: "2026-01-01T00:00:00Z".to_owned(),
            ripe,
        };
        let found = Orphans { orphans: vec![orphan("pvc-1", true), orphan("pvc-2", false)] };
        assert_eq!(
            show_orphans(&found),
            "pvc-1 on box has no record; seen since 2026-01-01T00:00:00Z, long enough to be deleted where --orphans delete is set\n\
             pvc-2 on box has no record; seen since 2026-01-01T00:00:00Z\n"
        );
        assert_eq!(show_orphans(&Orphans::default()), "Every volume on every target has a record.\n");
    }

    #[test]
    fn what_is_needed_is_named_as_the_machine_names_it() {
        let findings = probe(&Host::default());
        for needed in REQUIRED {
            assert!(
                findings.iter().any(|finding| finding.needed_for == *needed),
                "{needed} is looked for by nobody"
            );
        }
    }

    #[test]
    fn a_socket_that_others_can_use_is_found() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("api.sock"), "").unwrap();
        std::fs::set_permissions(place.path().join("api.sock"), std::fs::Permissions::from_mode(0o666))
            .unwrap();
        std::fs::write(place.path().join(FILE), "colour = 1").unwrap();
        let findings = local(place.path(), "0.0.0");
        let wrong: Vec<&str> = findings
            .iter()
            .filter(|finding| !finding.present)
            .map(|finding| finding.detail.as_str())
            .collect();
        assert!(wrong.iter().any(|detail| detail.contains("mode 666")), "{wrong:?}");
        assert!(wrong.iter().any(|detail| detail.contains("unknown field")), "{wrong:?}");
        assert!(wrong.iter().any(|detail| detail.contains("0.0.0 runs")), "{wrong:?}");
    }
}
