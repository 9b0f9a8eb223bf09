//! The tables, and what is in them.

use ::redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::place::Place;
use crate::{Entry, Key, Kind, Page, Revision, StoreError};

/// A way from one format to the next.
pub(super) type Step = fn(&WriteTransaction) -> Result<(), ::redb::Error>;

/// `STEPS[n]` leads from format `n + 1` to `n + 2`. A store of any older format goes through all that it
/// lacks in one transaction.
pub(super) const STEPS: &[Step] = &[add_catalog];

/// Format 1 had ledgers only.
fn add_catalog(txn: &WriteTransaction) -> Result<(), ::redb::Error> {
    for kind in ["volume", "snapshot", "group", "node"] {
        txn.open_table(Records::new(kind))?;
    }
    Ok(())
}

type Records = TableDefinition<'static, &'static str, (u64, &'static [u8])>;

const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("bowline.numbers");
const FORMAT: &str = "format";
const REVISION: &str = "revision";

const NAMES: TableDefinition<'_, &str, &str> = TableDefinition::new("bowline.names");
const ID: &str = "id";

/// Name to revision and value.
pub(super) fn records(kind: Kind) -> Records {
    TableDefinition::new(kind.as_str())
}

pub(super) fn create(database: &Database, id: &str) -> Result<(), ::redb::Error> {
    let txn = database.begin_write()?;
    {
        let mut numbers = txn.open_table(NUMBERS)?;
        numbers.insert(FORMAT, latest(STEPS))?;
        numbers.insert(REVISION, 0)?;
        txn.open_table(NAMES)?.insert(ID, id)?;
        for kind in Kind::ALL {
            txn.open_table(records(*kind))?;
        }
    }
    Ok(txn.commit()?)
}

pub(super) fn migrate(database: &Database, steps: &[Step], place: &Place) -> Result<(), StoreError> {
    let known = latest(steps);
    let read = || read_number(&database.begin_read()?, FORMAT);
    let found = read().map_err(|error| place.open_fault(error))?;
    if found > known {
        return Err(StoreError::Newer { place: place.name(), found, known });
    }
    let missing = usize::try_from(found).ok().and_then(|done| steps.get(done.checked_sub(1)?..));
    let missing = missing.ok_or_else(|| place.corrupt(&format!("there is no format {found}")))?;
    if missing.is_empty() {
        return Ok(());
    }
    tracing::info!(path = place.name(), found, known, "upgrading the store's format");
    let upgrade = || -> Result<(), ::redb::Error> {
        let txn = database.begin_write()?;
        missing.iter().try_for_each(|step| step(&txn))?;
        txn.open_table(NUMBERS)?.insert(FORMAT, known)?;
        Ok(txn.commit()?)
    };
    upgrade().map_err(|error| {
        let failed =
            format!("the upgrade from format {found} to {known} failed, and the store is as it was: {error}");
        place.unavailable(&failed)
    })
}

fn latest(steps: &[Step]) -> u64 {
    steps.len() as u64 + 1
}

pub(super) fn identity(database: &Database) -> Result<String, ::redb::Error> {
    let names = database.begin_read()?.open_table(NAMES)?;
    let id = names.get(ID)?.map(|id| id.value().to_owned());
    id.ok_or_else(|| ::redb::Error::Corrupted("it has no id".to_owned()))
}

fn read_number(txn: &ReadTransaction, name: &str) -> Result<u64, ::redb::Error> {
    let number = txn.open_table(NUMBERS)?.get(name)?.map(|number| number.value());
    number.ok_or_else(|| ::redb::Error::Corrupted(format!("it has no {name}")))
}

pub(super) fn revision(txn: &ReadTransaction) -> Result<Revision, ::redb::Error> {
    read_number(txn, REVISION).map(Revision::new)
}

pub(super) fn revision_to_write(txn: &WriteTransaction) -> Result<Revision, ::redb::Error> {
    let number = txn.open_table(NUMBERS)?.get(REVISION)?.map(|number| number.value());
    number.map(Revision::new).ok_or_else(|| ::redb::Error::Corrupted("it has no revision".to_owned()))
}

#[cfg(test)]
pub(super) fn set_format(txn: &WriteTransaction, format: u64) -> Result<(), ::redb::Error> {
    txn.open_table(NUMBERS)?.insert(FORMAT, format)?;
    Ok(())
}

pub(super) fn set_revision(txn: &WriteTransaction, revision: Revision) -> Result<(), ::redb::Error> {
    txn.open_table(NUMBERS)?.insert(REVISION, revision.number())?;
    Ok(())
}

pub(super) fn get(txn: &ReadTransaction, key: &Key) -> Result<Option<Entry>, ::redb::Error> {
    let table = txn.open_table(records(key.kind))?;
    let found = table.get(key.name.as_str())?;
    Ok(found.map(|found| entry(key.clone(), found.value())))
}

pub(super) fn list(
    txn: &ReadTransaction,
    kind: Kind,
    after: Option<&str>,
    limit: usize,
) -> Result<Page, ::redb::Error> {
    use std::ops::Bound::{Excluded, Unbounded};
    let table = txn.open_table(records(kind))?;
    let mut rest = table.range::<&str>((after.map_or(Unbounded, Excluded), Unbounded))?;
    let mut entries = Vec::new();
    let mut more = false;
    for found in rest.by_ref() {
        let (name, found) = found?;
        if entries.len() == limit.max(1) {
            more = true;
            break;
        }
        entries.push(entry(Key::new(kind, name.value()), found.value()));
    }
    let next = entries.last().filter(|_| more).map(|last| last.key.name.clone());
    Ok(Page { entries, next, revision: revision(txn)? })
}

fn entry(key: Key, (revision, value): (u64, &[u8])) -> Entry {
    Entry { key, value: value.to_owned(), revision: Revision::new(revision) }
}
