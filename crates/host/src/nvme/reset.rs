//! Making the connections of a subsystem anew, under whatever uses its disk.
//!
//! Linux 6.1 can take a connection for live that is not there any more: what is sent over it is sent again at once, for ever. A reset makes it notice.
//! On a connection that works it loses nothing: what was under way is sent again when the connection is back, a moment later. On one that does not
//! it fails, and the kernel tries and gives up as after any loss.

use super::{ControllerState, Nvme, NvmeError, WriteError, sysfs};
use bowline_failpoint::pass;
use std::time::Duration;

impl Nvme {
    /// After how long the kernel gives up a connection that it knows to be lost: who waits longer may wait for one that only counts as live.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.settings.give_up_after.into())
    }

    /// Resets every connection that was made as this host and counts as live, one after another, and says how many those are. The others are
    /// known to be lost, or are going.
    pub fn reset(&self, nqn: &str, host_nqn: &str) -> Result<usize, NvmeError> {
        let Some(subsystem) = self.subsystem(nqn)? else { return Ok(0) };
        let is_ours =
            |state: &ControllerState, host: &str| *state == ControllerState::Live && host == host_nqn;
        let controllers = subsystem.controllers.iter().filter(|one| is_ours(&one.state, &one.host_nqn));
        let (mut reset, mut failed) = (0, None);
        pass("host.nvme-reset.before");
        for controller in controllers {
            let file = controller.directory.join("reset_controller");
            match self.kernel.write(&file, "1", self.settings.disconnect_within) {
                Ok(_) => reset += 1,
                // The answer where the target was not there again at once.
                Err(error) if error.errno() == Some(libc::ENETRESET) => reset += 1,
                // It is being reset already, or goes.
                Err(error) if error.errno() == Some(libc::EBUSY) => {}
                Err(WriteError::Refused { error, .. }) if sysfs::is_gone(&error) => {}
                // One of them that keeps its writer must not keep the next from its reset.
                Err(error) => failed = Some(error),
            }
        }
        pass("host.nvme-reset.after");
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(reset),
        }
    }
}
