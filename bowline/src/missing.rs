//! What an agent could not show to nodes, or not everywhere: told at `/readyz`, in the log and to the controller, and tried again until it is shown.

use bowline_core::VolumeId;
use bowline_target::agent::ExportsShown;
use bowline_target::file::FileTarget;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

/// How often it is tried.
const AGAIN: Duration = Duration::from_secs(10);
/// How many volumes a sentence names.
const NAMED: usize = 3;

/// Whether everything is shown everywhere, or what is not. `lacking` are the ways that the agent has not had since its start.
pub(crate) fn ready(missing: &BTreeMap<VolumeId, String>, lacking: &[String]) -> Result<(), String> {
    let named: Vec<_> = missing.iter().take(NAMED).map(|(volume, why)| format!("{volume} ({why})")).collect();
    let more = match missing.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let volumes = (!named.is_empty()).then(|| {
        let named = named.join(", ");
        format!("not shown to everybody who is let in, and tried again every {AGAIN:?}: {named}{more}")
    });
    let all: Vec<_> = volumes.into_iter().chain(lacking.iter().cloned()).collect();
    if all.is_empty() { Ok(()) } else { Err(all.join("; ")) }
}

/// The same, for the controller.
pub(crate) fn told(missing: &BTreeMap<VolumeId, String>, lacking: &[String]) -> ExportsShown {
    match ready(missing, lacking) {
        Ok(()) => ExportsShown::All,
        Err(why) => ExportsShown::Missing { volumes: missing.len() as u64, why },
    }
}

/// Never comes back: what is let in later may not be shown everywhere, either. Whoever asks is served meanwhile: volumes that are shown go on, and a
/// node can be shut out.
pub(crate) async fn show(
    target: &FileTarget,
    lacking: &[String],
    progress: &watch::Sender<Result<(), String>>,
) {
    let mut state = ready(&target.missing(), lacking);
    loop {
        match &state {
            Err(error) => tracing::error!(error, "volumes are missing on their nodes, or a way to them"),
            Ok(()) => tracing::info!("everything is shown"),
        }
        let _ = progress.send_replace(state.clone());
        loop {
            tokio::time::sleep(AGAIN).await;
            let now = ready(&target.show_missing().await, lacking);
            if now != state {
                state = now;
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_core::{Epoch, Mode, NodeId, Share, TargetId};
    use bowline_host::Host;
    use bowline_target::file::{Policy, Settings};
    use bowline_target::{Grant, NewVolume, Progress, Provision, Target, nvmet};
    use bowline_testkit::SimNvmet;
    use std::path::Path;
    use std::sync::Arc;

    fn open(directory: &Path, tree: Arc<SimNvmet>) -> FileTarget {
        let settings = Settings {
            id: TargetId::new("nvme-1").unwrap(),
            directory: directory.to_owned(),
            host_name: "here".to_owned(),
            policy: Policy { overcommit: 100, reserve: 0 },
        };
        let addresses = ["10.0.0.1:4420", "10.0.0.2:4420"].map(|address| address.parse().unwrap()).into();
        let nvmet =
            nvmet::Settings { tree, addresses, lacks_addresses: false, patience: Duration::from_secs(60) };
        FileTarget::open_exported(settings, nvmet, Host::default()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_whose_address_comes_late_says_so_and_shows_its_volumes_then() {
        let place = tempfile::tempdir().unwrap();
        let kernel = |name: &str| Arc::new(SimNvmet::new(place.path().join(name)));
        let directory = place.path().join("volumes");
        let target = open(&directory, kernel("before"));
        let volume = VolumeId::new("v").unwrap();
        let order = NewVolume { volume: volume.clone(), name: "v".to_owned(), size: 1 << 20, source: None };
        target.create(&order, &Progress::default()).await.unwrap();
        let mode = Mode { write: true, frontend: true, share: Share::Writers };
        let grant =
            Grant { volume, node: NodeId::new("a").unwrap(), epoch: Epoch::new(1), mode, beside: None };
        target.allow(&grant).await.unwrap();
        drop(target);
        let rebooted = kernel("after-reboot");
        let has_addresses = |has| ["10.0.0.1", "10.0.0.2"].map(|address| rebooted.has_address(address, has));
        has_addresses(false);
        let target = open(&directory, Arc::clone(&rebooted));
        let (progress, mut seen) = watch::channel(Ok(()));
        let showing = show(&target, &[], &progress);
        let watching = async {
            let told = seen.wait_for(Result::is_err).await.unwrap().clone().unwrap_err();
            assert!(
                told.starts_with("not shown to everybody who is let in, and tried again every 10s: v (")
                    && told.contains("ports/4420/subsystems/"),
                "{told}"
            );
            assert!(rebooted.admitted().is_empty());
            let shown = ExportsShown::Missing { volumes: 1, why: told };
            assert_eq!(super::told(&target.missing(), &[]), shown, "the controller hears the same");
            has_addresses(true);
            seen.wait_for(Result::is_ok).await.unwrap();
            assert_eq!(rebooted.admitted().len(), 1);
            assert_eq!(super::told(&target.missing(), &[]), ExportsShown::All);
            // What is let in later may lack a way, too.
            rebooted.has_address("10.0.0.2", false);
            target.allow(&Grant { epoch: Epoch::new(2), ..grant.clone() }).await.unwrap();
            let told = seen.wait_for(Result::is_err).await.unwrap().clone().unwrap_err();
            assert!(told.contains("ports/4421/subsystems/"), "{told}");
        };
        tokio::select! {
            () = showing => panic!("it looks on"),
            () = watching => {}
        }
    }

    #[test]
    fn of_many_volumes_a_few_are_named() {
        let missing = |count: u32| {
            let id = |number| VolumeId::new(format!("v{number}")).unwrap();
            ready(&(0..count).map(|number| (id(number), "no".to_owned())).collect(), &[])
        };
        assert_eq!(missing(0), Ok(()));
        assert!(missing(3).unwrap_err().ends_with("v0 (no), v1 (no), v2 (no)"));
        assert!(missing(5).unwrap_err().ends_with("v2 (no) and 2 more"));
        let lacking = ["no address".to_owned()];
        let missing = [(VolumeId::new("v").unwrap(), "no".to_owned())].into();
        assert!(ready(&missing, &lacking).unwrap_err().ends_with("v (no); no address"));
        let none = ExportsShown::Missing { volumes: 0, why: "no address".to_owned() };
        assert_eq!(told(&BTreeMap::new(), &lacking), none);
    }
}
