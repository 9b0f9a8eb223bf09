//! What a MikroTik device is told, and how long that takes, on a simulated one with the latencies that were recorded of a real one, over SSH.

use anyhow::{Context, Result};
use bowline_core::{Epoch, Mode, NodeId, Share, TargetId, VolumeId};
use bowline_target::rds::ssh::{Credentials, SshConsole, SshSettings};
use bowline_target::rds::{Console, RdsTarget, Settings};
use bowline_target::{Grant, NewVolume, Progress, Provision, Revocation, Target};
use bowline_testkit::routeros::{Firmware, Latency, Login, POOL, RouterOs, SshServer};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

use super::{Row, median, ratio, shown};

const ROUNDS: u64 = 5;
const AT_ONCE: usize = 8;
const PASSWORD: &str = "for a bench";

struct Rack {
    device: RouterOs,
    _server: SshServer,
    _directory: tempfile::TempDir,
    console: SshConsole,
    target: RdsTarget,
}

pub(crate) fn rows() -> Result<Vec<Row>> {
    let runtime = Runtime::new()?;
    runtime.block_on(runtime.spawn(async {
        let rack = Rack::new().await?;
        let mut rows = rack.one_after_another().await?;
        rows.push(rack.at_once().await?);
        Ok(rows)
    }))?
}

fn volume(number: usize) -> Result<VolumeId> {
    VolumeId::new(format!("pvc-{number}")).context("an id")
}

impl Rack {
    async fn new() -> Result<Self> {
        let device = RouterOs::new(Firmware { latency: Latency::RECORDED, ..Firmware::default() });
        let login =
            Login { user: "bowline".to_owned(), password: Some(PASSWORD.to_owned()), keys: Vec::new() };
        let server = SshServer::start(device.clone(), login).await;
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("password");
        std::fs::write(&file, PASSWORD)?;
        let host_key = server.host_key().fingerprint().parse()?;
        let settings = SshSettings::new("bowline", Credentials::Password(file), Some(host_key));
        let console = SshConsole::new(&server.address().to_string(), settings);
        let settings = Settings {
            id: TargetId::new("rds")?,
            installation: "bench".to_owned(),
            pool: POOL.to_owned(),
            directory: format!("/{POOL}/bowline"),
            addresses: vec!["192.0.2.1:4420".parse()?],
            take_over: None,
            trust_readers: false,
        };
        let target = RdsTarget::connect(Arc::new(console.clone()), settings).await?;
        Ok(Self { device, _server: server, _directory: directory, console, target })
    }

    async fn allow(&self, volume: &VolumeId, epoch: u64) -> Result<()> {
        let mode = Mode { write: true, frontend: true, share: Share::Nobody };
        let (node, epoch) = (NodeId::new("worker-1")?, Epoch::new(epoch));
        Ok(self.target.allow(&Grant { volume: volume.clone(), node, epoch, mode, beside: None }).await?)
    }

    async fn revoke(&self, volume: &VolumeId, epoch: u64) -> Result<()> {
        let (node, epoch) = (NodeId::new("worker-1")?, Epoch::new(epoch));
        self.target.revoke(&Revocation { volume: volume.clone(), node, epoch, fence: false }).await?;
        Ok(())
    }

    async fn create(&self, volume: &VolumeId) -> Result<()> {
        let order =
            NewVolume { volume: volume.clone(), name: volume.to_string(), size: 1 << 30, source: None };
        self.target.create(&order, &Progress::default()).await?;
        Ok(())
    }

    /// How long it took, and how many commands.
    async fn timed(&self, work: impl Future<Output = Result<()>>) -> Result<(Duration, usize)> {
        let (before, began) = (self.device.carried_out().len(), Instant::now());
        work.await?;
        Ok((began.elapsed(), self.device.carried_out().len() - before))
    }

    /// The same command lines again, sent by hand over the same link: they find nothing, or fail, and take their time all the same.
    async fn by_hand(&self, lines: &[String]) -> Result<Duration> {
        let began = Instant::now();
        for line in lines {
            self.console.run(line).await?;
        }
        Ok(began.elapsed())
    }

    async fn one_after_another(&self) -> Result<Vec<Row>> {
        let volume = volume(0)?;
        let mut rows: Vec<(&str, Vec<Duration>, Vec<Duration>, usize)> =
            ["let in", "shut out", "make 1 GiB", "delete"].map(|what| (what, vec![], vec![], 0)).into();
        for epoch in 1..=ROUNDS {
            for step in [2, 0, 1, 3] {
                let before = self.device.carried_out().len();
                let (time, commands) = match step {
                    0 => self.timed(self.allow(&volume, epoch)).await?,
                    1 => self.timed(self.revoke(&volume, epoch)).await?,
                    2 => self.timed(self.create(&volume)).await?,
                    _ => {
                        let deleted = async { Ok(self.target.delete(&volume).await?) };
                        self.timed(deleted).await?
                    }
                };
                let lines = self.device.carried_out().split_off(before);
                // Not what would make it again, or take it away before its time.
                let again: Vec<String> = lines.iter().map(|line| line.replace("pvc-0", "pvc-none")).collect();
                let beside = self.by_hand(&again).await?;
                self.device.enter("/disk remove [find slot=\"pvc-none\"]");
                for (name, _) in self.device.files().into_iter().filter(|(name, _)| name.contains("pvc-none"))
                {
                    self.device.enter(&format!("/file remove [find name=\"{name}\"]"));
                }
                let row = rows.get_mut(step).context("four rows")?;
                row.1.push(time);
                row.2.push(beside);
                row.3 = commands;
            }
        }
        let shown = |(what, times, beside, commands): (&str, Vec<Duration>, Vec<Duration>, usize)| {
            let (time, beside) = (median(times), median(beside));
            Row {
                what: format!("a MikroTik device: {what} ({commands} commands)"),
                measured: shown(time),
                beside: format!("the same commands by hand: {}", shown(beside)),
                ratio: Some(ratio(time, beside)),
                goal: Some(1.1),
            }
        };
        Ok(rows.into_iter().map(shown).collect())
    }

    async fn at_once(&self) -> Result<Row> {
        let volumes = (1..=AT_ONCE).map(volume).collect::<Result<Vec<_>>>()?;
        for volume in &volumes {
            self.create(volume).await?;
        }
        let began = Instant::now();
        futures::future::try_join_all(volumes.iter().map(|volume| self.allow(volume, 1))).await?;
        let all = began.elapsed();
        let began = Instant::now();
        for volume in &volumes {
            self.revoke(volume, 1).await?;
            self.allow(volume, 2).await?;
        }
        let each = began.elapsed() / u32::try_from(AT_ONCE)?;
        let per_second = AT_ONCE as f64 / all.as_secs_f64();
        Ok(Row {
            what: format!("a MikroTik device: {AT_ONCE} volumes let in at once ({per_second:.1} per second)"),
            measured: shown(all),
            beside: format!("one shut out and let in: {}", shown(each)),
            ratio: Some(ratio(all, each)),
            goal: None,
        })
    }
}
