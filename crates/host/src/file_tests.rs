use super::*;

fn at(dir: &tempfile::TempDir, name: &str) -> PathBuf {
    dir.path().join(name)
}

#[test]
fn a_sparse_copy_has_the_same_bytes_and_the_same_holes() {
    let dir = tempfile::tempdir().unwrap();
    let from = create_new(&at(&dir, "from")).unwrap();
    from.set_len(64 << 20).unwrap();
    for (offset, byte) in [(0, 1), ((8 << 20) + 4096, 2), ((64 << 20) - 4096, 3)] {
        from.write_all_at(&[byte; 4096], offset).unwrap();
    }
    let to = create_new(&at(&dir, "to")).unwrap();
    to.set_len(64 << 20).unwrap();
    let mut told = 0;
    copy_sparse(&from, &to, 64 << 20, &mut |bytes| told += bytes).unwrap();
    assert_eq!(told, data_bytes(&from).unwrap());
    assert!(fs::read(at(&dir, "from")).unwrap() == fs::read(at(&dir, "to")).unwrap());
    assert!(allocated(&to.metadata().unwrap()) < 1 << 20, "the holes were copied");
}

#[test]
fn a_copy_ends_at_its_length_also_in_the_middle_of_data() {
    let dir = tempfile::tempdir().unwrap();
    let from = create_new(&at(&dir, "from")).unwrap();
    from.write_all_at(&[7; 20_000], 0).unwrap();
    let to = create_new(&at(&dir, "to")).unwrap();
    copy_sparse(&from, &to, 10_000, &mut |_| {}).unwrap();
    assert_eq!(fs::read(at(&dir, "to")).unwrap(), [7; 10_000]);
}

#[test]
fn a_punched_hole_reads_as_zeros_and_gives_room_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = create_new(&at(&dir, "file")).unwrap();
    file.write_all_at(&[9; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let before = allocated(&file.metadata().unwrap());
    punch_hole(&file, 0, 512 << 10).unwrap();
    assert!(allocated(&file.metadata().unwrap()) <= before - (512 << 10));
    let bytes = fs::read(at(&dir, "file")).unwrap();
    assert_eq!((bytes.len(), bytes[0], bytes[(512 << 10) - 1], bytes[512 << 10]), (1 << 20, 0, 0, 9));
}

#[test]
fn a_whole_write_replaces_and_leaves_no_draft() {
    let dir = tempfile::tempdir().unwrap();
    let (path, draft) = (at(&dir, "record"), at(&dir, "draft"));
    fs::write(&draft, "of a crash").unwrap();
    write_whole(&path, &draft, b"one").unwrap();
    write_whole(&path, &draft, b"two").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two");
    assert!(!draft.exists());
}

#[test]
fn a_label_goes_with_its_file_when_the_file_is_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let file = create_new(&at(&dir, "a")).unwrap();
    assert_eq!(label(&file).unwrap(), None);
    if set_label(&file, "volume a").unwrap() {
        fs::rename(at(&dir, "a"), at(&dir, "b")).unwrap();
        assert_eq!(label(&open_file(&at(&dir, "b"), false).unwrap()).unwrap().as_deref(), Some("volume a"));
    }
}

#[test]
fn a_lock_taken_on_a_file_that_was_removed_meanwhile_is_taken_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = at(&dir, "lock");
    let first = PathLock::wait(&path, Sharing::Alone, true).unwrap().unwrap();
    assert!(PathLock::take(&path).unwrap().is_err(), "held");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| PathLock::wait(&path, Sharing::Shared, true).unwrap().unwrap());
        first.remove().unwrap();
        let second = waiting.join().unwrap();
        assert!(is_at(&second.file, &path).unwrap(), "it locks what others will lock");
        let third = PathLock::wait(&path, Sharing::Shared, false).unwrap();
        assert!(third.is_some(), "shared is shared");
        assert!(PathLock::take(&path).unwrap().is_err());
    });
    remove(&path).unwrap();
    assert!(PathLock::wait(&path, Sharing::Shared, false).unwrap().is_none());
}

#[test]
fn the_longest_file_is_a_multiple_and_can_be_made() {
    let dir = tempfile::tempdir().unwrap();
    let longest = longest(dir.path(), 4096).unwrap();
    assert!(longest >= 1 << 40 && longest.is_multiple_of(4096), "{longest}");
    create_new(&at(&dir, "long")).unwrap().set_len(longest).unwrap();
}
