//! Export to one file, and import from it.
//!
//! The file is JSON lines: a header, one line per record by kind and name, and an end that counts and sums up
//! all that comes before it.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::redb::{ReadTransaction, ReadableDatabase};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::place::write_whole;
use super::writer::{Import, Request};
use super::{RedbStore, schema};
use crate::{Entry, Key, Kind, Revision, StoreError};

const FORMAT: u32 = 1;
const PAGE: usize = 256;

/// What was exported or imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// How many records.
    pub entries: u64,
    /// The store's revision that they are of.
    pub revision: Revision,
}

/// Why an export or an import did not happen. There is then no new file, or the store is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The file cannot be read or written.
    #[error("{} cannot be read or written: {source}", path.display())]
    Io {
        /// The export.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not a whole export.
    #[error("{} is not a whole export ({reason}); nothing was imported: use another one", path.display())]
    Damaged {
        /// The export.
        path: PathBuf,
        /// What was seen.
        reason: String,
    },
    /// A later version of Bowline wrote the file.
    #[error(
        "{} has export format {found}, and this Bowline knows formats up to {known}: it was written by a newer Bowline; use that one",
        path.display()
    )]
    Newer {
        /// The export.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The latest format known here.
        known: u32,
    },
    /// The store has been written to.
    #[error("the store at {place} is not new; nothing was imported: import into an empty directory")]
    NotEmpty {
        /// The store.
        place: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Serialize, Deserialize)]
struct Header {
    bowline_export: u32,
    store: String,
    revision: u64,
    taken: Timestamp,
}

/// All that is read of a header before its format is known.
#[derive(Deserialize)]
struct Format {
    bowline_export: u32,
}

#[derive(Serialize, Deserialize)]
struct Line {
    kind: String,
    name: String,
    revision: u64,
    #[serde(flatten)]
    value: Value,
}

/// Records are JSON, so an export can be read; but a store keeps any bytes.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Value {
    Text(String),
    Hex(String),
}

#[derive(Serialize, Deserialize)]
struct End {
    entries: u64,
    blake3: String,
}

impl RedbStore {
    /// Writes everything, as it is at one moment, to a file. Other reads and writes go on meanwhile. The file
    /// appears under its name when it is whole and durable.
    ///
    /// # Errors
    ///
    /// When the store cannot be read or the file not be written.
    pub async fn export(&self, to: &Path) -> Result<Transfer, TransferError> {
        let shared = Arc::clone(&self.shared);
        let path = to.to_owned();
        let task = tokio::task::spawn_blocking(move || {
            let begin =
                |database: &::redb::Database| Ok((schema::identity(database)?, database.begin_read()?));
            let (id, txn) = shared.with_database(begin)?;
            write_whole(&path, |file| write_export(file, &txn, id)).map_err(|fault| match fault {
                Fault::File(source) => TransferError::Io { path, source },
                Fault::Store(error) => TransferError::Store(shared.place.fault(error)),
            })
        });
        task.await.map_err(|error| self.shared.place.unavailable(&error))?
    }

    /// Reads an export into this store, which must never have been written to. All of it or nothing; the
    /// records keep their revisions, and later ones go on from there.
    ///
    /// # Errors
    ///
    /// When the file is not a whole export, or the store is not new.
    pub async fn import(&self, from: &Path) -> Result<Transfer, TransferError> {
        let path = from.to_owned();
        let task = tokio::task::spawn_blocking(move || {
            let bytes = fs::read(&path).map_err(|source| TransferError::Io { path: path.clone(), source })?;
            read_export(&path, &bytes)
        });
        let (entries, revision) = task.await.map_err(|error| self.shared.place.unavailable(&error))??;
        let transfer = Transfer { entries: entries.len() as u64, revision };
        let (reply, answer) = oneshot::channel();
        self.send(Request::Import(Import { entries, revision, reply })).await?;
        if answer.await.map_err(|_| self.stopped())?? {
            return Ok(transfer);
        }
        Err(TransferError::NotEmpty { place: self.shared.place.database().display().to_string() })
    }
}

/// Which side of an export failed.
enum Fault {
    File(io::Error),
    Store(::redb::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::File(error)
    }
}

impl From<::redb::Error> for Fault {
    fn from(error: ::redb::Error) -> Fault {
        Fault::Store(error)
    }
}

fn write_export(file: &mut File, txn: &ReadTransaction, store: String) -> Result<Transfer, Fault> {
    let revision = schema::revision(txn)?;
    let mut out = BufWriter::new(file);
    let mut sum = blake3::Hasher::new();
    let mut line = |line: Vec<u8>| {
        sum.update(&line);
        out.write_all(&line)
    };
    let header =
        Header { bowline_export: FORMAT, store, revision: revision.number(), taken: Timestamp::now() };
    line(json_line(&header)?)?;
    let mut entries = 0;
    for kind in Kind::ALL {
        let mut after = None;
        loop {
            let page = schema::list(txn, *kind, after.as_deref(), PAGE)?;
            entries += page.entries.len() as u64;
            for entry in page.entries {
                line(json_line(&Line::from(entry))?)?;
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    let end = End { entries, blake3: sum.finalize().to_hex().to_string() };
    out.write_all(&json_line(&end)?)?;
    out.flush()?;
    Ok(Transfer { entries, revision })
}

fn json_line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

fn read_export(path: &Path, bytes: &[u8]) -> Result<(Vec<Entry>, Revision), TransferError> {
    let damaged = |reason: &str| TransferError::Damaged { path: path.to_owned(), reason: reason.to_owned() };
    let unreadable = |error: serde_json::Error| damaged(&error.to_string());

    let first = bytes.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
    let format: Format = serde_json::from_slice(first).map_err(|_| damaged("it has no header"))?;
    if format.bowline_export > FORMAT {
        return Err(TransferError::Newer {
            path: path.to_owned(),
            found: format.bowline_export,
            known: FORMAT,
        });
    }
    let cut_off = || damaged("it has no end: it was cut off");
    let whole = bytes.strip_suffix(b"\n").ok_or_else(cut_off)?;
    let body = whole.iter().rposition(|byte| *byte == b'\n').ok_or_else(cut_off)? + 1;
    let (body, end) = whole.split_at(body);
    let end: End = serde_json::from_slice(end).map_err(|_| cut_off())?;
    if blake3::hash(body).to_hex().as_str() != end.blake3 {
        return Err(damaged("its checksum does not match"));
    }

    let header: Header = serde_json::from_slice(first).map_err(unreadable)?;
    let mut entries = Vec::new();
    for line in body.split_inclusive(|byte| *byte == b'\n').skip(1) {
        let line: Line = serde_json::from_slice(line).map_err(unreadable)?;
        entries.push(line.into_entry().map_err(|reason| damaged(&reason))?);
    }
    if entries.len() as u64 != end.entries {
        return Err(damaged("it has more or fewer records than it says"));
    }
    if entries.iter().any(|entry| entry.revision.number() > header.revision) {
        return Err(damaged("a record is newer than the export"));
    }
    Ok((entries, Revision::new(header.revision)))
}

impl From<Entry> for Line {
    fn from(entry: Entry) -> Line {
        let value = match String::from_utf8(entry.value) {
            Ok(text) => Value::Text(text),
            Err(bytes) => Value::Hex(bytes.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()),
        };
        let Key { kind, name } = entry.key;
        Line { kind: kind.as_str().to_owned(), name, revision: entry.revision.number(), value }
    }
}

impl Line {
    fn into_entry(self) -> Result<Entry, String> {
        let kind = Kind::parse(&self.kind).ok_or_else(|| format!("there is no kind {:?}", self.kind))?;
        let value = match self.value {
            Value::Text(text) => text.into_bytes(),
            Value::Hex(digits) => {
                from_hex(&digits).ok_or_else(|| format!("{} has no hex digits", self.name))?
            }
        };
        Ok(Entry { key: Key::new(kind, self.name), value, revision: Revision::new(self.revision) })
    }
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| if let [high, low] = pair { Some(digit(*high)? << 4 | digit(*low)?) } else { None })
        .collect()
}
