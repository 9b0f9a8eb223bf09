//! Lists, a page at a time: as many as the caller wants, never more than fit into one message.

use bowline_core::Slot;
use bowline_csi::code::{CreateSnapshotError, DeleteSnapshotError, GetSnapshotError, ListError};
use bowline_csi::controller::{ListVolumeHealth, ListVolumes};
use bowline_csi::snapshot::{CreateSnapshot, DeleteSnapshot, GetSnapshot, ListSnapshots};
use bowline_csi::{Page, wire};
use prost::Message;
use std::time::Duration;

use super::volumes::health_of;
use super::{ControllerService, answer, parameters};
use crate::catalog::{Listed, place};
use crate::record::{Volume, VolumeState};
use crate::shelf::PAGE;
use crate::token::{self, List};

/// Callers accept 4 MiB; this leaves room for the token and the framing.
const MESSAGE_BYTES: usize = (4 << 20) - (64 << 10);

/// A page that fills up.
struct Filling<T> {
    entries: Vec<T>,
    bytes: usize,
    most: usize,
    last: Option<String>,
}

impl<T: Message> Filling<T> {
    fn new(page: &Page) -> Self {
        let most =
            page.max_entries.map_or(usize::MAX, |most| usize::try_from(most.get()).unwrap_or(usize::MAX));
        Self { entries: Vec::new(), bytes: 0, most, last: None }
    }

    /// Whether there was room for it. `slot` is where the list goes on after it.
    fn take(&mut self, entry: Option<T>, list: List, id: &str) -> bool {
        if let Some(entry) = entry {
            // Its own length comes before it.
            let bytes = entry.encoded_len() + 8;
            if self.entries.len() >= self.most || self.bytes + bytes > MESSAGE_BYTES {
                return false;
            }
            self.bytes += bytes;
            self.entries.push(entry);
        }
        self.last = Slot::of_id(id).map(|slot| token::write(list, &slot));
        true
    }
}

/// The token that a request gives, checked.
fn start(page: &Page, list: List) -> Result<Option<String>, ListError> {
    let Some(given) = &page.starting_token else { return Ok(None) };
    match token::parse(list, given) {
        Some(slot) => Ok(Some(token::write(list, &slot))),
        None => Err(token::unknown()),
    }
}

impl ControllerService {
    pub(crate) async fn list(
        &self,
        request: wire::ListVolumesRequest,
    ) -> Result<wire::ListVolumesResponse, ListError> {
        use wire::list_volumes_response::{Entry, VolumeStatus};
        let request = ListVolumes::try_from(request)?;
        let mut filling = Filling::new(&request.page);
        let mut after = start(&request.page, List::Volumes)?;
        loop {
            let Listed { entries, next } = self.catalog.volumes(after.as_deref(), PAGE).await?;
            for volume in entries {
                let entry = if is_told(&volume) {
                    let published_node_ids = answer::published(&self.catalog, &volume.id).await?;
                    let status = Some(VolumeStatus { published_node_ids });
                    Some(Entry { volume: Some(answer::volume(&self.catalog, &volume)), status })
                } else {
                    None
                };
                if !filling.take(entry, List::Volumes, volume.id.as_str()) {
                    let next_token = filling.last.unwrap_or_default();
                    return Ok(wire::ListVolumesResponse { entries: filling.entries, next_token });
                }
            }
            after = next;
            if after.is_none() {
                return Ok(wire::ListVolumesResponse { entries: filling.entries, next_token: String::new() });
            }
        }
    }

    pub(crate) async fn list_health(
        &self,
        request: wire::ControllerListVolumeHealthRequest,
    ) -> Result<wire::ControllerListVolumeHealthResponse, ListError> {
        let request = ListVolumeHealth::try_from(request)?;
        let mut filling = Filling::new(&request.page);
        let mut after = start(&request.page, List::Volumes)?;
        loop {
            let Listed { entries, next } = self.catalog.volumes(after.as_deref(), PAGE).await?;
            for volume in entries {
                let entry = if is_told(&volume) { self.health_entry(&volume).await? } else { None };
                if !filling.take(entry, List::Volumes, volume.id.as_str()) {
                    let next_token = filling.last.unwrap_or_default();
                    return Ok(wire::ControllerListVolumeHealthResponse {
                        entries: filling.entries,
                        next_token,
                    });
                }
            }
            after = next;
            if after.is_none() {
                let (entries, next_token) = (filling.entries, String::new());
                return Ok(wire::ControllerListVolumeHealthResponse { entries, next_token });
            }
        }
    }

    async fn health_entry(&self, volume: &Volume) -> Result<Option<wire::VolumeHealth>, ListError> {
        use crate::failure::Why;
        match self.catalog.inner().fault(&volume.id).await {
            Ok(fault) => Ok(Some(health_of(&volume.id, fault))),
            // Deleted while the list was read.
            Err(failure) if failure.why == Why::Unknown => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }

    pub(crate) async fn take_snapshot(
        &self,
        request: wire::CreateSnapshotRequest,
        wait: Duration,
    ) -> Result<wire::CreateSnapshotResponse, CreateSnapshotError> {
        let request = CreateSnapshot::try_from(request)?;
        parameters::of_snapshots(&request.parameters)?;
        let volume = self.catalog.inner().volume(&request.source).await;
        // A name that is taken is told even if the volume it was for is gone, so only what is known is checked.
        if let Ok(volume) = &volume
            && let Ok(target) = self.catalog.inner().target(&volume.target)
            && !place::is_reachable(target.as_ref(), &request.accessibility)
        {
            let sentence =
                format!("target {} cannot be reached from where the snapshot has to be", target.id());
            return Err(CreateSnapshotError::NoRoom(sentence));
        }
        let snapshot = self.catalog.create_snapshot(request.name, &request.source, wait).await?;
        let mut told = answer::snapshot(&self.catalog, &snapshot);
        if let Some(told) = told.as_mut().filter(|_| !request.accessibility.requisite.is_empty()) {
            // Who said from where knows that it is so, and the field is optional. csi-sanity 5.6.0 compares it with the
            // caches of its own message too, so that whatever is told is wrong to it.
            told.accessible_topology.clear();
        }
        Ok(wire::CreateSnapshotResponse { snapshot: told })
    }

    pub(crate) async fn remove_snapshot(
        &self,
        request: wire::DeleteSnapshotRequest,
        wait: Duration,
    ) -> Result<wire::DeleteSnapshotResponse, DeleteSnapshotError> {
        let request = DeleteSnapshot::try_from(request)?;
        self.catalog.delete_snapshot(&request.snapshot, wait).await?;
        Ok(wire::DeleteSnapshotResponse {})
    }

    pub(crate) async fn one_snapshot(
        &self,
        request: wire::GetSnapshotRequest,
    ) -> Result<wire::GetSnapshotResponse, GetSnapshotError> {
        let request = GetSnapshot::try_from(request)?;
        let snapshot = self.catalog.snapshot(&request.snapshot).await?;
        match answer::snapshot(&self.catalog, &snapshot) {
            Some(snapshot) => Ok(wire::GetSnapshotResponse { snapshot: Some(snapshot) }),
            None => Err(GetSnapshotError::UnknownSnapshot(format!("snapshot {} is not ready", snapshot.id))),
        }
    }

    pub(crate) async fn snapshots(
        &self,
        request: wire::ListSnapshotsRequest,
    ) -> Result<wire::ListSnapshotsResponse, ListError> {
        use wire::list_snapshots_response::Entry;
        let request = ListSnapshots::try_from(request)?;
        let mut after = start(&request.page, List::Snapshots)?;
        let mut filling = Filling::new(&request.page);
        if let Some(id) = &request.snapshot {
            let found = match self.catalog.snapshot(id).await {
                Ok(found) => Some(found),
                Err(GetSnapshotError::UnknownSnapshot(_)) => None,
                Err(error) => return Err(ListError::Unreachable(error.to_string())),
            };
            let found = found.filter(|one| request.source.as_ref().is_none_or(|of| one.volume == *of));
            let entries = found.and_then(|one| answer::snapshot(&self.catalog, &one));
            let entries = entries.into_iter().map(|one| Entry { snapshot: Some(one) }).collect();
            return Ok(wire::ListSnapshotsResponse { entries, next_token: String::new() });
        }
        loop {
            let Listed { entries, next } =
                self.catalog.snapshots(request.source.as_ref(), after.as_deref(), PAGE).await?;
            for one in entries {
                let entry = answer::snapshot(&self.catalog, &one).map(|told| Entry { snapshot: Some(told) });
                if !filling.take(entry, List::Snapshots, one.id.as_str()) {
                    let next_token = filling.last.unwrap_or_default();
                    return Ok(wire::ListSnapshotsResponse { entries: filling.entries, next_token });
                }
            }
            after = next;
            if after.is_none() {
                return Ok(wire::ListSnapshotsResponse {
                    entries: filling.entries,
                    next_token: String::new(),
                });
            }
        }
    }
}

/// Whether somebody was told of it: one that is being made is nobody's yet.
fn is_told(volume: &Volume) -> bool {
    match volume.state {
        VolumeState::Creating => false,
        VolumeState::Ready | VolumeState::Growing { .. } | VolumeState::Deleting => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_fits_into_one_message_and_goes_on_after_its_last_entry() {
        let id = |number: u32| Slot::of_name(&number.to_string()).id(number);
        let mut filling = Filling::new(&Page::default());
        let published_node_ids = vec!["n".repeat(256); 400];
        let entry = |number| wire::list_volumes_response::Entry {
            volume: Some(wire::Volume { volume_id: id(number), ..Default::default() }),
            status: Some(wire::list_volumes_response::VolumeStatus {
                published_node_ids: published_node_ids.clone(),
            }),
        };
        let taken =
            (0..).take_while(|number| filling.take(Some(entry(*number)), List::Volumes, &id(*number)));
        let taken = u32::try_from(taken.count()).unwrap();
        assert!(taken > 20, "{taken}");
        let next_token = filling.last.unwrap();
        assert_eq!(next_token, token::write(List::Volumes, &Slot::of_name(&(taken - 1).to_string())));
        let page = wire::ListVolumesResponse { entries: filling.entries, next_token };
        assert!(page.encoded_len() <= 4 << 20 && page.encoded_len() > 3 << 20, "{}", page.encoded_len());
    }
}
