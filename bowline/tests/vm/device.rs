//! A MikroTik device as the target. It is simulated, but its SSH is real, and so are its exports: the target's kernel has them.

use crate::rounds::{self, Much};
use crate::{BOWLINE, sanity};
use bowline_testkit::vm::Site;
use std::path::Path;

/// Both in the same machines, of which there are few.
#[tokio::test(flavor = "multi_thread")]
async fn the_fence_of_a_device_holds_and_csi_sanity_passes() {
    let Some(site) = Site::with_device(sanity::plan(), Path::new(BOWLINE)) else { return };
    // The controller dies, and the device does not: it would forget its disks.
    let mut site = rounds::run(site, "fence of a simulated RouterOS device", Much::of(1)).await;
    // Another installation on the same device, with its own controller.
    site.introduce_device("a", sanity::ALONE);
    sanity::passes(&mut site, "", "with a simulated RouterOS device, over SSH and NVMe/TCP");
}
