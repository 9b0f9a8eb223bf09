//! The node's way to targets over NVMe/TCP: how patient it is, and the child that writes to the kernel.

use bowline_host::Host;
use bowline_host::helper::Helper;
use bowline_host::nvme::{Nvme, Settings};
use bowline_node::{Devices, NvmeDevices};
use clap::Args;
use std::sync::Arc;

use crate::failure::Failure;
use crate::span::Span;

/// What a node can be told about NVMe/TCP.
#[derive(Clone, Debug, Default, Args)]
pub struct NvmeArgs {
    /// How long after the loss of its target a volume's I/O waits before it fails (15s if not given). A node that was
    /// shut out gets its errors after this time.
    #[arg(long, env = "BOWLINE_FAIL_IO_AFTER", value_name = "TIME")]
    pub fail_io_after: Option<Span>,

    /// How long after that loss the device goes (1m if not given).
    #[arg(long, env = "BOWLINE_GIVE_UP_AFTER", value_name = "TIME")]
    pub give_up_after: Option<Span>,
}

impl NvmeArgs {
    /// With the others at their defaults.
    pub fn settings(&self) -> Result<Settings, Failure> {
        let default = Settings::default();
        let fail_io_after = self.fail_io_after.map_or(default.fail_io_after, |span| span.0);
        let give_up_after =
            self.give_up_after.map_or(default.give_up_after.max(fail_io_after), |span| span.0);
        // The kernel fails I/O at the latest when it gives up.
        if fail_io_after == 0 || give_up_after < fail_io_after {
            return Err(Failure::usage(format!(
                "--fail-io-after {fail_io_after}s must be 1s or more, and --give-up-after {give_up_after}s not less than it"
            )));
        }
        Ok(Settings { fail_io_after, give_up_after, ..default })
    }
}

/// The devices of every target that exports over NVMe/TCP.
pub(crate) fn devices(host: &Arc<Host>, settings: Settings) -> Arc<dyn Devices> {
    // This very program, also after its file was replaced.
    let helper = Helper::new("/proc/self/exe", [crate::beside::KERNEL_WRITE]);
    Arc::new(NvmeDevices::new(Arc::new(Nvme::new(Arc::clone(host), Arc::new(helper), settings))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_fails_before_the_device_goes() {
        for (fail_io_after, give_up_after, expected) in [
            (None, None, Some((15, 60))),
            (Some(5), None, Some((5, 60))),
            (Some(600), None, Some((600, 600))),
            (Some(30), Some(30), Some((30, 30))),
            (None, Some(10), None),
            (Some(0), None, None),
        ] {
            let (fail_io_after, give_up_after) = (fail_io_after.map(Span), give_up_after.map(Span));
            let settings = NvmeArgs { fail_io_after, give_up_after }.settings().ok();
            assert_eq!(settings.map(|settings| (settings.fail_io_after, settings.give_up_after)), expected);
        }
    }
}
