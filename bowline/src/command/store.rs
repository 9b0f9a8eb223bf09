//! `bowline store`: the records of a `bowline up` that does not run. No process answers for them then, so this opens them itself.

use bowline_store::RedbStore;
use std::path::Path;

use super::Console;
use crate::args::StoreCommand;
use crate::failure::{Exit, Failure};

pub(crate) async fn run(data: &Path, command: StoreCommand, console: &mut Console) -> Result<(), Failure> {
    let directory = data.join("store");
    let failed = |error: &dyn std::fmt::Display| Failure::failed(error.to_string());
    let (done, file, transfer) = match command {
        StoreCommand::Export { file } => {
            // To open one that is not there is to make it.
            if !directory.is_dir() {
                let message = format!("{} has no records: is --data right?", data.display());
                return Err(Failure { exit: Exit::NotFound, message });
            }
            let store = open(&directory).await?;
            let transfer = store.export(&file).await.map_err(|error| failed(&error))?;
            ("exported to", file, transfer)
        }
        StoreCommand::Import { file } => {
            let store = open(&directory).await?;
            let transfer = store.import(&file).await.map_err(|error| failed(&error))?;
            ("imported from", file, transfer)
        }
    };
    let told = serde_json::json!({ "file": file, "records": transfer.entries, "revision": transfer.revision.number() });
    console.show(&told, |_, _| {
        format!(
            "{} records {done} {} (revision {}).\n",
            transfer.entries,
            file.display(),
            transfer.revision.number()
        )
    })
}

async fn open(directory: &Path) -> Result<RedbStore, Failure> {
    let directory = directory.to_owned();
    let opened = tokio::task::spawn_blocking(move || RedbStore::open(&directory)).await;
    let opened = opened.map_err(|error| Failure::failed(error.to_string()))?;
    opened.map_err(|error| Failure::failed(error.to_string()))
}
