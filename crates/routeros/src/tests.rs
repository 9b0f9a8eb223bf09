use super::*;

fn ok(device: &RouterOs, line: &str) -> String {
    let Printed { out, err, status } = device.enter(line);
    assert_eq!((status, err.as_str()), (Some(0), ""), "{line}: {out}");
    out
}

fn refused(device: &RouterOs, line: &str) -> String {
    let Printed { out, status, .. } = device.enter(line);
    assert_eq!(status, Some(1), "{line}: {out}");
    out.trim_end().to_owned()
}

const ADD: &str = "/disk add type=file file-path=/storage-pool/test.img file-size=50G slot=pvc-test-123 \
                   nvme-tcp-server-allow-host-name=nqn.host nvme-tcp-export=yes";

#[test]
fn a_disk_is_printed_as_it_was_recorded() {
    let device = RouterOs::new(Firmware { line_end: "\n", width: 80, ..Firmware::default() });
    ok(&device, ADD);
    assert_eq!(
        ok(&device, "/disk print detail where slot=pvc-test-123"),
        r#"Flags: B - BLOCK-DEVICE; t - NVME-TCP-EXPORT
 1 Bt type=file slot="pvc-test-123" slot-default="" parent="" fs=-
               model="/storage-pool/test.img" size=53 687 091 200
               mount-filesystem=yes mount-read-only=no compress=no
               sector-size=512 raid-master=none nvme-tcp-export=yes
               nvme-tcp-server-port=4420
               nvme-tcp-server-nqn="nqn.2000-02.com.mikrotik:pvc-test-123"
               nvme-tcp-server-allow-host-name="nqn.host" iscsi-export=no
               nfs-sharing=no smb-sharing=no media-sharing=no
               media-interface=none swap=no file-path=/storage-pool/test.img
               file-size=50.0GiB file-offset=0

"#
    );
    assert_eq!(
        ok(&device, r#"/file print detail where name~"test""#),
        " 0  name=storage-pool/test.img type=.img file size=50.0GiB\n               last-modified=2025-11-11 14:00:01\n\n"
    );
}

#[test]
fn capacity_is_that_of_the_pool() {
    let device = RouterOs::new(Firmware { line_end: "\n", width: 300, ..Firmware::default() });
    device.leave_free(POOL, 5_963_595_964_416);
    let said = ok(&device, r#"/disk print detail where mount-point="storage-pool""#);
    assert!(said.contains("size=7 949 127 950 336 free=5 963 595 964 416 use=25%"), "{said}");
    ok(&device, "/disk add type=file file-path=/storage-pool/a.img file-size=1G slot=a");
    let said = ok(&device, "/disk print detail where slot=storage-pool");
    assert!(said.contains("free=5 962 522 222 592 "), "{said}");
}

#[test]
fn a_header_is_there_even_if_nothing_else_is() {
    let device = RouterOs::new(Firmware::default());
    let said = ok(&device, "/disk print detail where slot=nobody");
    assert!(said.starts_with("Flags: ") && said.lines().count() == 1, "{said}");
    device.set_firmware(|firmware| firmware.flags = false);
    assert_eq!(ok(&device, "/disk print detail where slot=nobody"), "");
}

#[test]
fn lines_are_broken_where_the_terminal_ends() {
    let device = RouterOs::new(Firmware { line_end: "\n", ..Firmware::default() });
    ok(&device, ADD);
    for (wrap, width) in [(Wrap::Properties, 40), (Wrap::Words, 40), (Wrap::Columns, 80), (Wrap::Columns, 37)]
    {
        device.set_firmware(|firmware| (firmware.wrap, firmware.width) = (wrap, width));
        let said = ok(&device, "/disk print detail where slot=pvc-test-123");
        let lines: Vec<&str> = said.lines().skip(1).filter(|line| !line.is_empty()).collect();
        assert!(lines.iter().all(|line| line.trim_end().len() <= width), "{said}");
        assert!(lines[1..].iter().all(|line| line.starts_with(&" ".repeat(15))), "{said}");
        let joined: String =
            lines.iter().map(|line| line.strip_prefix(&" ".repeat(15)).unwrap_or(line)).collect();
        assert!(
            joined.contains(r#""nqn.2000-02.com.mikrotik:pvc-test-123""#),
            "a value is cut, not changed: {said}"
        );
    }
}

#[test]
fn errors_are_those_that_were_recorded() {
    let device = RouterOs::new(Firmware::default());
    device.leave_free(POOL, 60 << 30);
    ok(&device, ADD);
    for (line, said) in [
        (ADD, "failure: already have such entry"),
        (
            "/disk add type=file file-path=/storage-pool/test.img file-size=1G slot=b",
            "failure: file already exists",
        ),
        (
            "/disk add type=file file-path=/storage-pool/b.img file-size=11G slot=b",
            "failure: not enough space",
        ),
        ("/disk add type=file file-path=/nowhere/b.img file-size=1G slot=b", "failure: invalid parameter"),
        (
            "/disk add type=file file-path=/storage-pool/../b.img file-size=1G slot=b",
            "failure: invalid parameter",
        ),
        (
            "/disk add type=file file-path=/storage-pool/b.img file-size=1.5G slot=b",
            "failure: invalid parameter",
        ),
        (
            "/disk add type=file file-path=/storage-pool/b.img file-size=0 slot=b",
            "failure: invalid parameter",
        ),
        ("/disk add type=file file-path=/storage-pool/b.img slot=b", "failure: invalid parameter"),
        (
            "/disk add type=file copy-from=[find slot=x] file-path=/storage-pool/b.img slot=b",
            "failure: no such item",
        ),
        ("/disk add type=file colour=red", "expected end of command (line 1 column 21)"),
        ("/disk set [find slot=pvc-test-123] file-size=61G", "failure: not enough space"),
        ("/disk set [find slot=pvc-test-123] file-size=1G", "failure: invalid parameter"),
        ("/disk remove [find slot=nobody]", "failure: no such item"),
        ("/file remove [find name=\"storage-pool/x.img\"]", "failure: no such item"),
        ("/file remove [find name=\"storage-pool/test.img\"]", "failure: disk is in use"),
        ("/disk remove [find slot=storage-pool]", "failure: disk is in use"),
    ] {
        assert_eq!(refused(&device, line), said, "{line}");
    }
    assert_eq!((device.slots().len(), device.files().len()), (1, 1));
}

#[test]
fn a_disk_and_its_file_are_removed_one_after_the_other() {
    let device = RouterOs::new(Firmware::default());
    ok(&device, ADD);
    assert!(device.connect("nqn.host", "nqn.2000-02.com.mikrotik:pvc-test-123"));
    assert_eq!(refused(&device, "/disk remove [find slot=pvc-test-123]"), "failure: disk is in use");
    ok(&device, "/disk set [find slot=pvc-test-123] nvme-tcp-export=no");
    ok(&device, "/disk remove [find slot=pvc-test-123]");
    assert_eq!(device.files(), [("storage-pool/test.img".to_owned(), 50 << 30)]);
    ok(&device, "/file remove [find name=\"storage-pool/test.img\"]");
    assert!(device.files().is_empty());
}

#[test]
fn a_late_command_matches_nothing() {
    let device = RouterOs::new(Firmware::default());
    ok(&device, ADD);
    let late = r#"/disk set [find slot=pvc-test-123 nvme-tcp-server-nqn="nqn.x:e6"] nvme-tcp-export=no"#;
    ok(&device, late);
    assert_eq!(device.doors().len(), 1, "it changed nothing, and says nothing");
    device.set_firmware(|firmware| firmware.set_of_nothing = Nothing::NoSuchItem);
    assert_eq!(refused(&device, late), "failure: no such item");
    ok(
        &device,
        r#"/disk set [find slot=pvc-test-123 and nvme-tcp-server-nqn~":pvc-test-123\$"] nvme-tcp-export=no"#,
    );
    assert!(device.doors().is_empty());
}

#[test]
fn an_export_that_is_open_to_everybody_is_noted() {
    let device = RouterOs::new(Firmware::default());
    ok(&device, "/disk add type=file file-path=/storage-pool/a.img file-size=1G slot=a nvme-tcp-export=yes");
    ok(&device, "/disk set [find slot=a] nvme-tcp-server-allow-host-name=nqn.host");
    assert_eq!(device.breaches(), ["a is exported as nqn.2000-02.com.mikrotik:a to everybody"]);
    assert_eq!(device.doors()[0].host.as_deref(), Some("nqn.host"));
    ok(&device, "/disk add type=file copy-from=[find slot=a] file-path=/storage-pool/b.img slot=b");
    assert_eq!(device.breaches()[1], "a and b are both exported as nqn.2000-02.com.mikrotik:a");
    assert!(!device.connect("nqn.other", "nqn.2000-02.com.mikrotik:a"));

    let old = RouterOs::new(Firmware { knows_allow_list: false, ..Firmware::default() });
    let said = refused(&old, ADD);
    assert_eq!(said, "expected end of command (line 1 column 86)");
    ok(&old, "/disk add type=file file-path=/storage-pool/a.img file-size=1G slot=a nvme-tcp-export=yes");
    assert_eq!(old.breaches(), [""; 0], "it has no better");
    assert!(!ok(&old, "/disk print detail").contains("allow-host"));
}

#[test]
fn settings_take_effect_one_after_the_other_in_either_order() {
    let host = |door: &Door| door.host.clone().unwrap_or_default();
    for (backwards, hosts) in [(false, vec!["nqn.b"]), (true, vec!["nqn.a", "nqn.b"])] {
        let device = RouterOs::new(Firmware { backwards, ..Firmware::default() });
        ok(
            &device,
            "/disk add type=file file-path=/storage-pool/a.img file-size=1M slot=a nvme-tcp-server-allow-host-name=nqn.a",
        );
        ok(&device, "/disk set [find slot=a] nvme-tcp-server-allow-host-name=nqn.b nvme-tcp-export=yes");
        assert_eq!(device.all_doors().iter().map(host).collect::<Vec<_>>(), hosts, "backwards: {backwards}");
    }
}

#[test]
fn half_of_a_command_is_one_setting_a_file_without_its_disk_or_a_copy_without_its_bytes() {
    let set = "/disk set [find slot=a] nvme-tcp-server-nqn=nqn.half nvme-tcp-export=yes";
    for (backwards, doors) in [(false, 0), (true, 1)] {
        let device = RouterOs::new(Firmware { backwards, ..Firmware::default() });
        ok(&device, "/disk add type=file file-path=/storage-pool/a.img file-size=1M slot=a");
        device.write("storage-pool/a.img", 0, b"bytes");
        device.enter_half("/disk add type=file file-path=/storage-pool/b.img file-size=1M slot=b");
        assert_eq!((device.slots().len(), device.files().len()), (1, 2));
        device.enter_half(
            "/disk add type=file copy-from=[find slot=a] file-path=/storage-pool/c.img slot=c nvme-tcp-export=no",
        );
        assert_eq!(
            (device.slots(), device.read("storage-pool/c.img", 0, 5)),
            (vec!["a".into(), "c".into()], vec![0; 5])
        );
        device.enter_half(set);
        let is_named =
            ok(&device, "/disk print detail where nvme-tcp-server-nqn=nqn.half").contains("slot=\"a\"");
        assert_eq!((device.doors().len(), is_named), (doors, !backwards));
        device.enter_half("/disk add slot=");
    }
}

#[test]
fn a_disk_becomes_smaller_only_where_the_firmware_lets_it() {
    let device = RouterOs::new(Firmware { shrinks: true, ..Firmware::default() });
    ok(&device, "/disk add type=file file-path=/storage-pool/a.img file-size=2M slot=a");
    device.write("storage-pool/a.img", 1 << 20, b"lost");
    for size in ["1M", "2M"] {
        ok(&device, &format!("/disk set [find slot=a] file-size={size}"));
    }
    assert_eq!(device.read("storage-pool/a.img", 1 << 20, 4), [0; 4]);
}

#[test]
fn a_pool_that_is_lost_leaves_its_disks_and_no_room() {
    let device = RouterOs::new(Firmware::default());
    ok(&device, ADD);
    device.lose_pool(POOL);
    let said = ok(&device, "/disk print detail");
    assert!(said.contains("slot=\"pvc-test-123\"") && !said.contains("mount-point"), "{said}");
    assert_eq!(
        refused(&device, "/disk set [find slot=pvc-test-123] file-size=51G"),
        "failure: not enough space"
    );
}

#[test]
fn a_copy_has_the_bytes_of_its_source() {
    let directory = tempfile::tempdir().unwrap();
    for device in
        [RouterOs::new(Firmware::default()), RouterOs::in_directory(Firmware::default(), directory.path())]
    {
        ok(&device, "/disk add type=file file-path=/storage-pool/x/a.img file-size=8M slot=a");
        device.write("storage-pool/x/a.img", 0, b"before");
        ok(
            &device,
            "/disk add type=file copy-from=[find slot=a] file-path=/storage-pool/x/b.img slot=b file-size=9M nvme-tcp-export=no",
        );
        device.write("storage-pool/x/a.img", 0, b"after!");
        assert_eq!(device.read("storage-pool/x/b.img", 0, 6), b"before");
        assert_eq!(device.read("storage-pool/x/a.img", 0, 6), b"after!");
        ok(&device, "/disk set [find slot=b] file-size=10M");
        assert_eq!(device.files()[1].1, 10 << 20);
    }
    assert_eq!(directory.path().join("storage-pool/x/b.img").metadata().unwrap().len(), 10 << 20);
}

#[test]
fn errors_go_where_the_firmware_puts_them() {
    for (firmware, said) in [
        (Firmware::default(), ("failure: no such item\r\n", "", Some(1))),
        (
            Firmware { errors_on_stdout: false, ..Firmware::default() },
            ("", "failure: no such item\r\n", Some(1)),
        ),
        (Firmware { says_failure: false, ..Firmware::default() }, ("no such item\r\n", "", Some(1))),
        (Firmware { exit_status: false, ..Firmware::default() }, ("failure: no such item\r\n", "", None)),
        (Firmware { status_of_errors: 0, ..Firmware::default() }, ("failure: no such item\r\n", "", Some(0))),
    ] {
        let Printed { out, err, status } = RouterOs::new(firmware).enter("/disk remove [find slot=a]");
        assert_eq!((out.as_str(), err.as_str(), status), said);
    }
}

#[tokio::test(start_paused = true)]
async fn commands_take_as_long_as_on_a_real_device() {
    let device = RouterOs::new(Firmware { latency: Latency::RECORDED, ..Firmware::default() });
    let mut took = Vec::new();
    for line in [
        "/disk add type=file file-path=/storage-pool/a.img file-size=1G slot=a",
        "/disk add type=file file-path=/storage-pool/b.img file-size=100G slot=b",
        "/disk add type=file copy-from=[find slot=b] file-path=/storage-pool/c.img slot=c",
        "/disk print detail",
        "/disk remove [find slot=a]",
    ] {
        let begun = tokio::time::Instant::now();
        device.run(line).await.unwrap();
        took.push(begun.elapsed().as_millis());
    }
    let ranges = [500..=1000, 2000..=5000, 2000..=5000, 50..=100, 500..=1000];
    assert!(took.iter().zip(&ranges).all(|(took, range)| range.contains(took)), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_command_is_carried_out_though_nobody_waits_for_it_any_more() {
    let device = RouterOs::new(Firmware { latency: Latency::RECORDED, ..Firmware::default() });
    let gone = tokio::time::timeout(Duration::from_millis(1), device.run(ADD)).await;
    assert!(gone.is_err() && device.slots().is_empty());
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(device.slots(), ["pvc-test-123"]);
}
