//! Somebody who has another volume of the same target, on node b, and nothing to do with what happens to others.

use bowline_csi::wire;
use bowline_testkit::driver::{BLOCK, MIB};
use bowline_testkit::vm::{Site, Vm, Writer, bring};
use std::collections::BTreeSet;

const BLOCKS: u64 = 64;
/// No other writer has it.
const EPOCH: u64 = 1_000_000;

/// A writer that ends with its first error.
pub(crate) struct Bystander {
    volume: wire::Volume,
    writer: Writer,
    controller: String,
    sockets: BTreeSet<String>,
}

impl Bystander {
    /// While node b has no other volume.
    pub(crate) async fn new(site: &mut Site) -> Self {
        let volume = site.control.create("bystander", 16 * MIB, BLOCK).await.unwrap();
        let disk = bring(&mut site.control, &mut site.b, &volume, BLOCK).await.unwrap();
        let lab = std::sync::Arc::clone(&site.lab);
        let on_b = lab.vm("b");
        let (controller, sockets) = (controller(on_b, &volume), sockets(on_b));
        assert!(controller.ends_with("live") && !sockets.is_empty(), "{controller}, {sockets:?}");
        let mut writer = on_b.stamp(&disk, EPOCH, &format!("direct count={BLOCKS} pause-ms=50"));
        writer.more(1);
        Self { volume, writer, controller, sockets }
    }

    /// Panics unless it is told of another write, no error, and its connection is the one that it had.
    pub(crate) fn goes_on(&mut self, on_b: &Vm, about: &str) {
        self.writer.more(1);
        assert_eq!(self.writer.told().errors, [0; 0], "{about}: a volume that nobody asked for");
        assert_eq!(controller(on_b, &self.volume), self.controller, "{about}: another controller");
        assert!(sockets(on_b).is_superset(&self.sockets), "{about}: connected anew");
    }

    /// How many writes it was told of.
    pub(crate) async fn end(self, site: &mut Site) -> usize {
        let told = self.writer.stop();
        assert_eq!(told.errors, [0; 0]);
        let id = &self.volume.volume_id;
        told.assert_kept(EPOCH, &site.lab.vm("target").stamps(&site.file(id), BLOCKS));
        site.b.detach_all(&mut site.control, id, "pod").await.unwrap();
        told.count
    }
}

/// The controllers of a volume on a node, and how they are.
fn controller(node: &Vm, volume: &wire::Volume) -> String {
    let said = node.sh(&format!(
        "cd /sys/class/nvme; for c in *; do grep -qF ':{}:' $c/subsysnqn && echo $c $(cat $c/state); done || :",
        volume.volume_id
    ));
    said.trim().to_owned()
}

/// The node's ends of the connections to the target's port 4420 that stand: one that was lost and made again has another port.
fn sockets(node: &Vm) -> BTreeSet<String> {
    let said = node.sh("awk '$3 ~ /:1144$/ && $4 == \"01\" { print $2 }' /proc/net/tcp");
    said.lines().map(str::to_owned).collect()
}
