use super::*;
use proptest::prelude::*;

const SIZE: u64 = 64 << 20;
const TAIL_END: u64 = HEAD + TAIL;

/// A device that is blank but for these bytes.
fn device(size: u64, parts: &[(u64, &[u8])]) -> Sample {
    let (head, tail) = (size.min(HEAD), size.min(TAIL));
    let mut sample = [vec![0; head as usize], vec![0; tail as usize]];
    for (start, bytes) in [(0, 0_usize), (size - tail, 1)] {
        let into = &mut sample[bytes];
        for (at, part) in parts {
            for (index, byte) in part.iter().enumerate() {
                if let Some(place) =
                    (at + index as u64).checked_sub(start).and_then(|at| into.get_mut(at as usize))
                {
                    *place = *byte;
                }
            }
        }
    }
    let [head, tail] = sample;
    let page = |at: u64| {
        let mut page = vec![0; PAGE as usize];
        for (from, part) in parts {
            for (index, byte) in part.iter().enumerate() {
                let place = (from + index as u64).checked_sub(at).and_then(|at| page.get_mut(at as usize));
                if let Some(place) = place {
                    *place = *byte;
                }
            }
        }
        page.iter().any(|byte| *byte != 0).then_some((at, page))
    };
    let pages = pages(size).into_iter().filter_map(page).collect();
    Sample::new(size, head, tail).with_pages(pages)
}

#[test]
fn what_is_not_ours_is_recognised_and_never_blank() {
    let lvm: Vec<u8> = [&b"LABELONE"[..], &[0; 16], b"LVM2 001"].concat();
    let mbr: Vec<u8> = [&[0x80, 0, 0, 0, 0x83][..], &[0; 59], &[0x55, 0xAA]].concat();
    let uberblock = 0x00BA_B10C_u64.to_be_bytes();
    let raid = b"\xFC\x4E\x2B\xA9";
    let rows: &[(&str, u64, &[u8])] = &[
        ("a swap area", 4086, b"SWAPSPACE2"),
        ("a swap area", 65_526, b"SWAPSPACE2"),
        ("an LVM physical volume", 512, &lvm),
        ("a LUKS encrypted volume", 0, b"LUKS\xBA\xBE\x00\x02"),
        ("a LUKS encrypted volume", 16_384, b"SKUL\xBA\xBE"),
        ("a LUKS encrypted volume", 2 << 20, b"SKUL\xBA\xBE"),
        ("a member of a Linux RAID", 0, raid),
        ("a member of a Linux RAID", 4096, raid),
        ("a member of a Linux RAID", SIZE - 8192, raid),
        ("a member of a Linux RAID", SIZE - 65_536, raid),
        ("a GPT partition table", 512, b"EFI PART"),
        ("a GPT partition table", SIZE - 512, b"EFI PART"),
        ("an MBR partition table", 446, &mbr),
        ("an NTFS filesystem", 3, b"NTFS    "),
        ("an f2fs filesystem", 1024, b"\x10\x20\xF5\xF2"),
        ("a ZFS pool member", (128 << 10) + 5 * 1024, &uberblock),
        ("a ZFS pool member", SIZE - (128 << 10), &uberblock),
        ("a FAT filesystem", 82, b"FAT32   "),
        ("an ISO 9660 filesystem", 32_769, b"CD001"),
    ];
    for (name, at, bytes) in rows {
        let state = examine(&device(SIZE, &[(*at, bytes)]));
        assert_eq!(state, State::Unclear(Unclear::SomethingElse(name)), "{name} at {at}");
    }
}

#[test]
fn only_zeros_are_blank() {
    assert_eq!(examine(&device(SIZE, &[])), State::Blank);
    assert_eq!(examine(&device(512, &[])), State::Blank);
    assert_eq!(examine(&device(0, &[])), State::Unclear(Unclear::Empty));
    let [near, far] = [4 << 20, SIZE / 21 * 20 / PAGE * PAGE + 5];
    for at in [0, 511, 70_000, HEAD - 1, near, far, SIZE - TAIL, SIZE - 1] {
        let state = examine(&device(SIZE, &[(at, &[1])]));
        assert_eq!(state, State::Unclear(Unclear::Unknown { at }), "{at}");
    }
}

#[test]
fn the_superblock_of_a_disks_first_partition_is_seen_whatever_filesystem_it_has() {
    let partition = 1 << 20;
    let rows: [(u64, &[u8]); 3] = [(0, b"XFSB"), (1024 + 56, b"\x53\xEF"), ((64 << 10) + 64, b"_BHRfS_M")];
    for (offset, magic) in rows {
        let at = partition + offset;
        let state = examine(&device(SIZE, &[(at, magic)]));
        assert_eq!(state, State::Unclear(Unclear::Unknown { at }), "{at}");
    }
}

#[test]
fn pages_are_looked_at_all_over_a_device_and_never_beyond_it() {
    for size in
        [0, 512, 1 << 20, HEAD + TAIL, HEAD + TAIL + PAGE, 5 << 20, SIZE, 1 << 30, (1 << 40) + 512, 1 << 62]
    {
        let pages = pages(size);
        assert!(pages.iter().all(|at| *at >= HEAD && at + PAGE <= size - TAIL && at % PAGE == 0), "{size}");
        assert!(size < SIZE || pages.len() > 30, "{size}: {}", pages.len());
        // Nobody's half of a large device goes unseen.
        let widest = pages.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
        assert!(widest <= size / 10, "{size}: {widest}");
    }
}

#[test]
fn half_made_filesystems_are_not_formatted() {
    let mut xfs = [0; 512];
    xfs[..4].copy_from_slice(b"XFSB");
    xfs[126] = 1;
    for (at, bytes, fs) in [(0, &xfs[..], FsType::Xfs), (65_600, b"!BHRfS_M", FsType::Btrfs)] {
        let state = examine(&device(SIZE, &[(at, bytes)]));
        assert_eq!(state, State::Unclear(Unclear::Flawed { fs, flaw: Flaw::HalfMade }));
    }
}

#[test]
fn a_magic_alone_is_not_a_filesystem() {
    for (at, magic) in [(0, &b"XFSB"[..]), (65_600, b"_BHRfS_M"), (1080, b"\x53\xEF")] {
        let state = examine(&device(SIZE, &[(at, magic)]));
        assert!(matches!(state, State::Unclear(_)), "{state:?}");
    }
}

#[test]
fn uuids_and_types_are_read_as_they_are_written() {
    let text = "0189abcd-ef01-2345-6789-abcdef012345";
    let uuid: FsUuid = text.parse().unwrap();
    assert_eq!(uuid.to_string(), text);
    assert_eq!(text.to_uppercase().parse(), Ok(uuid));
    for bad in [
        "",
        "0189abcd",
        &text[1..],
        "0189abcdef0123456789abcdef012345",
        "+189abcd-ef01-2345-6789-abcdef012345",
    ] {
        assert_eq!(bad.parse::<FsUuid>(), Err(NotAUuid), "{bad}");
    }
    for fs in FsType::ALL {
        assert_eq!(fs.name().parse(), Ok(fs));
    }
    assert!("ext3".parse::<FsType>().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_byte_anywhere_in_the_sample_is_overlooked(at in 0..2 * (HEAD + TAIL), byte in 1_u8..) {
        let pages = pages(SIZE);
        let at = match at {
            0..HEAD => at,
            HEAD..TAIL_END => SIZE - TAIL + (at - HEAD),
            more => pages[more as usize % pages.len()] + more % PAGE,
        };
        prop_assert!(matches!(examine(&device(SIZE, &[(at, &[byte])])), State::Unclear(_)));
    }

    #[test]
    fn random_superblocks_never_panic(bytes in prop::collection::vec(any::<u8>(), 4096), which in 0..3, size in 0..SIZE) {
        let mut bytes = bytes;
        let at = match which {
            0 => { bytes[..4].copy_from_slice(b"XFSB"); bytes[126] = 0; 0 }
            1 => { bytes[56..58].copy_from_slice(&[0x53, 0xEF]); 1024 }
            _ => { bytes[64..72].copy_from_slice(b"_BHRfS_M"); 65_536 }
        };
        let _ = examine(&device(size, &[(at, &bytes)]));
    }
}
