//! What every target on which volumes are made must do.

use super::{grant, open_epochs, revocation};
use crate::{Cut, Item, NewVolume, Progress, Provision, ProvisionError, Source};
use bowline_core::{SnapshotId, VolumeId};
use std::pin::pin;
use std::task::Poll;

/// How the suite gets at a volume's bytes: as whoever is let in would.
pub trait Bytes: Sync {
    /// Writes into a volume.
    fn write(&self, volume: &VolumeId, offset: u64, bytes: &[u8]);
    /// Reads from a volume.
    fn read(&self, volume: &VolumeId, offset: u64, length: usize) -> Vec<u8>;
}

/// Runs every check. Ids begin with `prefix`, which nothing on the target may do yet; about 16 volumes of twice the
/// smallest size must have room.
pub async fn run(target: &dyn Provision, bytes: &dyn Bytes, prefix: &str) {
    let suite = Suite { target, bytes, prefix, size: target.sizes().minimum };
    suite.a_volume_is_made_once_and_holds_zeros().await;
    suite.sizes_that_cannot_be_are_refused().await;
    suite.a_deleted_volume_is_gone_and_lets_nobody_in().await;
    suite.a_volume_grows_and_keeps_its_bytes().await;
    suite.a_clone_has_the_bytes_of_its_source().await;
    suite.a_snapshot_keeps_its_moment().await;
    suite.several_snapshots_are_taken_together_or_not_at_all().await;
    suite.room_is_promised_and_given_back().await;
    suite.items_are_listed_in_pages().await;
    suite.a_call_that_nobody_waits_for_is_completed().await;
    suite.many_at_once_do_not_disturb_each_other().await;
}

struct Suite<'a> {
    target: &'a dyn Provision,
    bytes: &'a dyn Bytes,
    prefix: &'a str,
    size: u64,
}

impl Suite<'_> {
    fn volume(&self, name: &str) -> VolumeId {
        VolumeId::new(format!("{}{name}", self.prefix)).unwrap()
    }

    fn snapshot(&self, name: &str) -> SnapshotId {
        SnapshotId::new(format!("{}{name}", self.prefix)).unwrap()
    }

    fn order(&self, name: &str, size: u64, source: Option<Source>) -> NewVolume {
        NewVolume { volume: self.volume(name), name: format!("the {name}"), size, source }
    }

    async fn create(&self, order: &NewVolume) -> Result<u64, ProvisionError> {
        self.target.create(order, &Progress::default()).await
    }

    async fn make(&self, name: &str) -> VolumeId {
        self.create(&self.order(name, self.size, None)).await.unwrap();
        self.volume(name)
    }

    fn cut(&self, snapshot: &str, volume: &str) -> Cut {
        Cut {
            snapshot: self.snapshot(snapshot),
            name: format!("the {snapshot}"),
            volume: self.volume(volume),
        }
    }

    async fn items(&self) -> Vec<Item> {
        let all = self.target.items(None, usize::MAX).await.unwrap();
        let ours = |item: &Item| match item {
            Item::Volume(id) => id.as_str().starts_with(self.prefix),
            Item::Snapshot(id) => id.as_str().starts_with(self.prefix),
        };
        all.into_iter().filter(ours).collect()
    }

    async fn nothing_is_left(&self) {
        assert_eq!(self.items().await, [], "something was left behind");
    }

    async fn a_volume_is_made_once_and_holds_zeros(&self) {
        let order = self.order("once", self.size, None);
        for _ in 0..2 {
            assert_eq!(self.create(&order).await, Ok(self.size));
        }
        let stored = self.target.volume(&order.volume).await.unwrap().unwrap();
        assert_eq!((stored.size, stored.fault), (self.size, None));
        assert_eq!(self.items().await, [Item::Volume(order.volume.clone())]);
        assert_eq!(open_epochs(self.target, &order.volume).await, [0; 0], "nobody is let in to a new volume");
        let length = usize::try_from(self.size).unwrap();
        assert!(self.bytes.read(&order.volume, 0, length).iter().all(|byte| *byte == 0));
        for other in [
            NewVolume { size: order.size + self.target.sizes().multiple, ..order.clone() },
            NewVolume { name: "another".to_owned(), ..order.clone() },
            NewVolume { source: Some(Source::Volume(self.volume("x"))), ..order.clone() },
        ] {
            let refused = self.create(&other).await;
            assert!(matches!(refused, Err(ProvisionError::Different { .. })), "{refused:?}");
        }
        self.target.delete(&order.volume).await.unwrap();
        self.nothing_is_left().await;
    }

    async fn sizes_that_cannot_be_are_refused(&self) {
        let sizes = self.target.sizes();
        let wrong = [0, sizes.minimum - sizes.multiple, sizes.minimum + 1];
        for size in wrong.into_iter().chain(sizes.maximum.checked_add(sizes.multiple)) {
            let refused = self.create(&self.order("wrong", size, None)).await;
            assert!(matches!(refused, Err(ProvisionError::Refused { .. })), "{size}: {refused:?}");
        }
        self.nothing_is_left().await;
    }

    async fn a_deleted_volume_is_gone_and_lets_nobody_in(&self) {
        let volume = self.make("deleted").await;
        self.target.allow(&grant(&volume, "a", 1)).await.unwrap();
        let refused = self.target.delete(&volume).await;
        assert!(matches!(refused, Err(ProvisionError::InUse { .. })), "somebody is let in: {refused:?}");
        self.target.revoke(&revocation(&volume, "a", 1)).await.unwrap();
        for _ in 0..2 {
            self.target.delete(&volume).await.unwrap();
        }
        assert_eq!(self.target.volume(&volume).await, Ok(None));
        assert!(self.target.allow(&grant(&volume, "a", 2)).await.is_err(), "it lets nobody in");
        self.target.revoke(&revocation(&volume, "a", 2)).await.expect("nobody is in");
        self.nothing_is_left().await;
    }

    async fn a_volume_grows_and_keeps_its_bytes(&self) {
        let volume = self.make("growing").await;
        self.bytes.write(&volume, 4096, b"kept");
        for (asked, expected) in [(2, 2), (2, 2), (1, 2)] {
            assert_eq!(self.target.grow(&volume, asked * self.size).await, Ok(expected * self.size));
        }
        assert_eq!(self.bytes.read(&volume, 4096, 4), b"kept");
        assert!(
            self.bytes.read(&volume, self.size, 4096).iter().all(|byte| *byte == 0),
            "the new part is zeros"
        );
        assert_eq!(self.target.volume(&volume).await.unwrap().unwrap().size, 2 * self.size);
        let again = self.create(&self.order("growing", self.size, None)).await;
        assert_eq!(again, Ok(2 * self.size), "the same order again, after it has grown");
        let unknown = self.target.grow(&self.volume("unknown"), self.size).await;
        assert!(matches!(unknown, Err(ProvisionError::Unknown { .. })), "{unknown:?}");
        let refused = self.target.grow(&volume, 2 * self.size + 1).await;
        assert!(matches!(refused, Err(ProvisionError::Refused { .. })), "{refused:?}");
        self.target.delete(&volume).await.unwrap();
        self.nothing_is_left().await;
    }

    async fn a_clone_has_the_bytes_of_its_source(&self) {
        let source = self.make("source").await;
        let end = self.size - 4;
        self.bytes.write(&source, 0, b"head");
        self.bytes.write(&source, end, b"tail");
        let from = Some(Source::Volume(source.clone()));
        for (name, size) in [("same", self.size), ("larger", 2 * self.size)] {
            let order = self.order(name, size, from.clone());
            for _ in 0..2 {
                assert_eq!(self.create(&order).await, Ok(size));
            }
            assert_eq!(self.bytes.read(&order.volume, 0, 4), b"head");
            assert_eq!(self.bytes.read(&order.volume, end, 4), b"tail");
        }
        let larger = self.volume("larger");
        assert!(self.bytes.read(&larger, self.size, 4096).iter().all(|byte| *byte == 0), "extended by zeros");
        self.bytes.write(&source, 0, b"SRC!");
        self.bytes.write(&larger, end, b"CLON");
        assert_eq!(self.bytes.read(&larger, 0, 4), b"head", "a write to the source is not seen in the clone");
        assert_eq!(self.bytes.read(&source, end, 4), b"tail", "and the other way round");
        let refused =
            self.create(&self.order("smaller", self.size, Some(Source::Volume(larger.clone())))).await;
        assert!(matches!(refused, Err(ProvisionError::Refused { .. })), "{refused:?}");
        for source in [Source::Volume(self.volume("no")), Source::Snapshot(self.snapshot("no"))] {
            let unknown = self.create(&self.order("orphan", self.size, Some(source))).await;
            assert!(matches!(unknown, Err(ProvisionError::Unknown { .. })), "{unknown:?}");
        }
        for volume in [&source, &self.volume("same"), &larger] {
            self.target.delete(volume).await.unwrap();
        }
        self.nothing_is_left().await;
    }

    async fn a_snapshot_keeps_its_moment(&self) {
        let volume = self.make("moment").await;
        self.bytes.write(&volume, 0, b"then");
        let cut = self.cut("then", "moment");
        let progress = Progress::default();
        let taken = self.target.snapshot(std::slice::from_ref(&cut), &progress).await.unwrap();
        assert_eq!(taken.len(), 1);
        assert_eq!((&taken[0].volume, taken[0].size, &taken[0].fault), (&volume, self.size, &None));
        self.bytes.write(&volume, 0, b"now!");
        let again = self.target.snapshot(std::slice::from_ref(&cut), &progress).await.unwrap();
        assert_eq!(again, taken, "asked again, the same moment");
        assert_eq!(self.target.stored_snapshot(&cut.snapshot).await.unwrap().as_ref(), taken.first());
        let other = self.make("other").await;
        for wrong in
            [Cut { volume: other.clone(), ..cut.clone() }, Cut { name: "another".to_owned(), ..cut.clone() }]
        {
            let refused = self.target.snapshot(&[wrong], &progress).await;
            assert!(matches!(refused, Err(ProvisionError::Different { .. })), "{refused:?}");
        }
        self.target.delete(&volume).await.expect("a volume can go before its snapshots");
        let restored = self.order("restored", self.size, Some(Source::Snapshot(cut.snapshot.clone())));
        assert_eq!(self.create(&restored).await, Ok(self.size));
        assert_eq!(self.bytes.read(&restored.volume, 0, 4), b"then");
        for _ in 0..2 {
            self.target.delete_snapshot(&cut.snapshot).await.unwrap();
        }
        assert_eq!(self.target.stored_snapshot(&cut.snapshot).await, Ok(None));
        assert_eq!(self.bytes.read(&restored.volume, 0, 4), b"then", "what was made from it stays");
        for volume in [&restored.volume, &other] {
            self.target.delete(volume).await.unwrap();
        }
        self.nothing_is_left().await;
    }

    async fn several_snapshots_are_taken_together_or_not_at_all(&self) {
        let volumes = [self.make("g1").await, self.make("g2").await];
        let cuts = [self.cut("s2", "g2"), self.cut("s1", "g1")];
        let progress = Progress::default();
        let missing = [cuts[0].clone(), self.cut("s3", "g3")];
        let refused = self.target.snapshot(&missing, &progress).await;
        assert!(matches!(refused, Err(ProvisionError::Unknown { .. })), "{refused:?}");
        assert_eq!(self.target.stored_snapshot(&cuts[0].snapshot).await, Ok(None), "none of them");
        let twice = self.target.snapshot(&[cuts[0].clone(), cuts[0].clone()], &progress).await;
        assert!(matches!(twice, Err(ProvisionError::Refused { .. })), "{twice:?}");
        let taken = self.target.snapshot(&cuts, &progress).await.unwrap();
        let of: Vec<_> = taken.iter().map(|taken| &taken.volume).collect();
        assert_eq!(of, [&volumes[1], &volumes[0]], "in the order they were asked for");
        assert_eq!(taken[0].taken_at, taken[1].taken_at, "one moment");
        assert_eq!(self.target.snapshot(&cuts, &progress).await.unwrap(), taken);
        let later = self.target.snapshot(&[cuts[0].clone(), self.cut("s4", "g1")], &progress).await;
        assert!(matches!(later, Err(ProvisionError::Different { .. })), "not one moment: {later:?}");
        assert_eq!(self.target.snapshot(&[], &progress).await, Ok(Vec::new()));
        for cut in &cuts {
            self.target.delete_snapshot(&cut.snapshot).await.unwrap();
        }
        for volume in &volumes {
            self.target.delete(volume).await.unwrap();
        }
        self.nothing_is_left().await;
    }

    async fn room_is_promised_and_given_back(&self) {
        let before = self.target.capacity().await.unwrap();
        let volume = self.make("roomy").await;
        let after = self.target.capacity().await.unwrap();
        assert_eq!(after.promised, before.promised + self.size);
        // Others on the same disk may have given some back meanwhile.
        let is_alone = after.free <= before.free;
        assert!(!is_alone || after.available <= before.available, "{before:?}, {after:?}");
        assert!(after.free <= after.total);
        let sizes = self.target.sizes();
        let too_much = (after.available / sizes.multiple + 64) * sizes.multiple;
        if after.available >= sizes.minimum && too_much <= sizes.maximum {
            let refused = self.create(&self.order("too-much", too_much, None)).await;
            assert!(matches!(refused, Err(ProvisionError::NoRoom { .. })), "{refused:?}");
            let refused = self.target.grow(&volume, too_much + self.size).await;
            assert!(matches!(refused, Err(ProvisionError::NoRoom { .. })), "{refused:?}");
        }
        assert_eq!(
            self.target.capacity().await.unwrap().promised,
            after.promised,
            "a refusal promises nothing"
        );
        self.target.delete(&volume).await.unwrap();
        assert_eq!(self.target.capacity().await.unwrap().promised, before.promised);
        self.nothing_is_left().await;
    }

    async fn items_are_listed_in_pages(&self) {
        let mut expected = Vec::new();
        for name in ["p1", "p2", "p3"] {
            expected.push(Item::Volume(self.make(name).await));
        }
        self.target.snapshot(&[self.cut("p0", "p1")], &Progress::default()).await.unwrap();
        expected.push(Item::Snapshot(self.snapshot("p0")));
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = self.target.items(after.as_ref(), 2).await.unwrap();
            assert!(page.len() <= 2);
            let Some(last) = page.last() else { break };
            after = Some(last.clone());
            listed.extend(page.into_iter().filter(|item| expected.contains(item)));
        }
        assert_eq!(listed, expected, "each once, in order");
        self.target.delete_snapshot(&self.snapshot("p0")).await.unwrap();
        for name in ["p1", "p2", "p3"] {
            self.target.delete(&self.volume(name)).await.unwrap();
        }
        self.nothing_is_left().await;
    }

    async fn a_call_that_nobody_waits_for_is_completed(&self) {
        let order = self.order("dropped", self.size, None);
        {
            let progress = Progress::default();
            let mut call = pin!(self.target.create(&order, &progress));
            // Begun, then dropped: as when a caller hangs up.
            std::future::poll_fn(|context| {
                let _ = call.as_mut().poll(context);
                Poll::Ready(())
            })
            .await;
        }
        assert_eq!(self.create(&order).await, Ok(self.size), "asked again, it is there or completed");
        self.target.delete(&order.volume).await.unwrap();
        self.nothing_is_left().await;
    }

    async fn many_at_once_do_not_disturb_each_other(&self) {
        let order = self.order("twin", self.size, None);
        let mut calls: Vec<_> = (0..4).map(|_| Box::pin(self.create(&order))).collect();
        let mut done = Vec::new();
        std::future::poll_fn(|context| {
            calls.retain_mut(|call| match call.as_mut().poll(context) {
                Poll::Ready(made) => {
                    done.push(made);
                    false
                }
                Poll::Pending => true,
            });
            if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        assert_eq!(done, vec![Ok(self.size); 4]);
        self.target.delete(&order.volume).await.unwrap();
        self.nothing_is_left().await;
    }
}
