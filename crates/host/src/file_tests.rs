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
    let mut copied = |_, bytes| {
        told += bytes;
        Ok(())
    };
    copy_sparse(&from, &to, 0..64 << 20, &mut copied).unwrap();
    assert_eq!(told, data_bytes(&from, 64 << 20).unwrap());
    assert!(fs::read(at(&dir, "from")).unwrap() == fs::read(at(&dir, "to")).unwrap());
    assert!(allocated(&to.metadata().unwrap()) < 1 << 20, "the holes were copied");
}

#[test]
fn a_copy_ends_at_its_length_also_in_the_middle_of_data() {
    let dir = tempfile::tempdir().unwrap();
    let from = create_new(&at(&dir, "from")).unwrap();
    from.write_all_at(&[7; 20_000], 0).unwrap();
    let to = create_new(&at(&dir, "to")).unwrap();
    copy_sparse(&from, &to, 0..10_000, &mut |_, _| Ok(())).unwrap();
    assert_eq!(fs::read(at(&dir, "to")).unwrap(), [7; 10_000]);
}

#[test]
fn a_copy_that_goes_on_carries_the_rest_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let from = create_new(&at(&dir, "from")).unwrap();
    from.set_len(9 << 20).unwrap();
    for (mib, byte) in [(0, 1), (1, 2), (4, 3), (7, 4)] {
        from.write_all_at(&[byte; 1 << 20], mib << 20).unwrap();
    }
    for begin in [0, 5000, 1 << 20, 3 << 20, (4 << 20) + 4096, 8 << 20, 9 << 20] {
        let to = create_new(&at(&dir, &format!("to-{begin}"))).unwrap();
        to.set_len(9 << 20).unwrap();
        let (mut told, mut last) = (0, begin);
        let mut copied = |end: u64, bytes| {
            assert!(end > last && end - bytes >= last, "{begin}: {bytes} up to {end}");
            last = end;
            told += bytes;
            Ok(())
        };
        copy_sparse(&from, &to, begin..9 << 20, &mut copied).unwrap();
        let all = data_bytes(&from, 9 << 20).unwrap();
        assert_eq!((all, told), (4 << 20, all - data_bytes(&from, begin).unwrap()), "{begin}");
        let (was, is) =
            (fs::read(at(&dir, "from")).unwrap(), fs::read(at(&dir, &format!("to-{begin}"))).unwrap());
        let begin = usize::try_from(begin).unwrap();
        assert!(is[..begin].iter().all(|byte| *byte == 0) && is[begin..] == was[begin..], "{begin}");
    }
}

#[test]
fn a_copy_ends_when_whoever_hears_of_it_fails() {
    let dir = tempfile::tempdir().unwrap();
    let from = create_new(&at(&dir, "from")).unwrap();
    from.write_all_at(&[7; 3 << 20], 0).unwrap();
    let to = create_new(&at(&dir, "to")).unwrap();
    let mut heard = 0;
    let mut copied = |_, _| {
        heard += 1;
        Err(io::Error::other("no"))
    };
    assert!(copy_sparse(&from, &to, 0..3 << 20, &mut copied).is_err());
    assert_eq!(heard, 1);
}

#[test]
fn a_mark_is_replaced_found_again_and_taken_away() {
    let dir = tempfile::tempdir().unwrap();
    let file = create_new(&at(&dir, "file")).unwrap();
    assert_eq!(mark(&file).unwrap(), None);
    for text in ["a long one, the first", "short"] {
        set_mark(&file, text.as_bytes()).unwrap();
        assert_eq!(mark(&open_file(&at(&dir, "file"), false).unwrap()).unwrap(), Some(text.into()));
    }
    assert_eq!(label(&file).unwrap(), None, "it is no label");
    for _ in 0..2 {
        remove_mark(&file).unwrap();
        assert_eq!(mark(&file).unwrap(), None);
    }
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
