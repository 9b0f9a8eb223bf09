//! Disks and files as the device lists them.

use super::command::{ALLOW_HOST, EXPORT, SERVER_NQN};
use super::fault::Fault;
use super::number::Size;
use super::print::{Entry, entries};

/// A disk, and only what is of interest here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What it is called.
    pub slot: String,
    entry: Entry,
}

impl Disk {
    fn must<T>(&self, key: &str, value: Option<T>) -> Result<T, Fault> {
        // Where keys are missing, a part of the output may be.
        value.ok_or_else(|| Fault::unparseable(&format!("the disk {} is shown without {key}", self.slot)))
    }

    /// Whether it is a file, and not a drive.
    pub fn is_file(&self) -> bool {
        self.entry.text("type").as_deref() == Some("file")
    }

    /// The name under which it is exported; empty if it has none.
    pub fn nqn(&self) -> String {
        self.entry.text(SERVER_NQN).unwrap_or_default()
    }

    /// Whether it is exported.
    pub fn export(&self) -> Result<bool, Fault> {
        self.must(EXPORT, self.entry.yes(EXPORT)?)
    }

    /// By which host; empty if by all, `None` if the firmware does not know of this.
    pub fn host(&self) -> Option<String> {
        self.entry.text(ALLOW_HOST)
    }

    /// How many bytes it has, to the last one.
    pub fn bytes(&self) -> Result<u64, Fault> {
        self.must("its size in bytes", self.entry.size("size")?.and_then(Size::exact))
    }

    /// How many bytes are free on it.
    pub fn free(&self) -> Result<u64, Fault> {
        self.must("its free bytes", self.entry.size("free")?.and_then(Size::exact))
    }

    /// Where its file lies.
    pub fn path(&self) -> Result<String, Fault> {
        self.must("file-path", self.entry.text("file-path"))
    }

    /// What it is mounted as.
    pub fn mount_point(&self) -> Option<String> {
        self.entry.text("mount-point")
    }
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFile {
    /// Its path, without a slash before it.
    pub name: String,
    /// How long it is; about, as a rule.
    pub size: Option<Size>,
}

/// The disks in an output of `/disk print detail`.
pub fn disks(text: &str) -> Result<Vec<Disk>, Fault> {
    let disk = |entry: Entry| {
        let nameless =
            || Fault::unparseable(&format!("the disk with index {} is shown without slot", entry.index));
        Ok(Disk { slot: entry.text("slot").ok_or_else(nameless)?, entry })
    };
    entries(text)?.into_iter().map(disk).collect()
}

/// The files in an output of `/file print detail`.
pub fn files(text: &str) -> Result<Vec<StoredFile>, Fault> {
    let file = |entry: Entry| {
        let nameless =
            || Fault::unparseable(&format!("the file with index {} is shown without name", entry.index));
        let name = entry.text("name").ok_or_else(nameless)?;
        let size = entry.size("file size")?.or(entry.size("size")?);
        Ok(StoredFile { name: name.trim_start_matches('/').to_owned(), size })
    };
    entries(text)?.into_iter().map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: &str = r#"Flags: B - BLOCK-DEVICE; M, F - FORMATTING
 0  type=file slot="pvc-test-123" slot-default="" parent="" fs=-
               model="/storage-pool/test.img"
               size=53 687 091 200 mount-filesystem=yes mount-read-only=no
               compress=no sector-size=512 raid-master=none
               nvme-tcp-export=yes nvme-tcp-server-port=4420
               nvme-tcp-server-nqn="nqn.2000-02.com.mikrotik:pvc-test-123"
               nvme-tcp-server-allow-host-name="" iscsi-export=no
               file-path=/storage-pool/test.img
               file-size=50.0GiB file-offset=0
"#;

    #[test]
    fn a_disk_is_read_as_a_device_printed_it() {
        for text in [SEEN.to_owned(), SEEN.replace('\n', "\r\n"), SEEN.split_once('\n').unwrap().1.to_owned()]
        {
            let all = disks(&text).unwrap();
            let [disk] = all.as_slice() else { panic!("{all:?}") };
            assert!(disk.is_file());
            assert_eq!(disk.slot, "pvc-test-123");
            assert_eq!(disk.bytes(), Ok(53_687_091_200));
            assert_eq!(disk.export(), Ok(true));
            assert_eq!(disk.host().as_deref(), Some(""));
            assert_eq!(disk.nqn(), "nqn.2000-02.com.mikrotik:pvc-test-123");
            assert_eq!(disk.path().as_deref(), Ok("/storage-pool/test.img"));
            assert_eq!(disk.mount_point(), None);
        }
    }

    #[test]
    fn what_is_cut_off_is_an_error_and_not_an_empty_list() {
        for at in 1..SEEN.len() {
            let cut = &SEEN[..at];
            let whole = disks(cut).and_then(|all| match all.as_slice() {
                [] => Ok(None),
                [disk, ..] => Ok(Some((disk.bytes()?, disk.export()?, disk.path()?, disk.nqn()))),
            });
            match whole {
                Err(Fault::Unparseable { .. }) => {}
                Ok(None) => assert!(at <= SEEN.find('\n').unwrap() + 1, "{cut}"),
                Ok(Some((bytes, export, path, nqn))) => {
                    assert_eq!(
                        (bytes, export, path.as_str()),
                        (53_687_091_200, true, "/storage-pool/test.img")
                    );
                    assert_eq!(nqn, "nqn.2000-02.com.mikrotik:pvc-test-123");
                }
                other => panic!("{other:?} of {cut}"),
            }
        }
    }

    #[test]
    fn a_list_without_a_match_is_empty() {
        for text in [
            "",
            "\r\n",
            "Flags: X - disabled, E - empty\n",
            "Flags: B - BLOCK-DEVICE;\r\nM - MOUNTED, F - x\r\n\r\n",
        ] {
            assert_eq!(disks(text), Ok(Vec::new()), "{text:?}");
        }
    }

    #[test]
    fn a_complaint_is_not_an_empty_list() {
        for (text, fault) in [
            ("failure: no such item\n", Fault::NoSuchItem),
            ("no such item", Fault::NoSuchItem),
            ("Flags: X - disabled\r\nfailure: disk is in use\r\n", Fault::InUse),
            (" 0 slot=a\nnot enough space\n", Fault::NoSpace),
        ] {
            assert_eq!(disks(text), Err(fault), "{text:?}");
        }
        for text in [
            "hello\n",
            "  type=file slot=a\n",
            " 0 slot=a\n 0\n",
            " 0 slot=\"a\n",
            " 0 a=1 a=2 slot=x\n",
            "hello",
        ] {
            assert!(matches!(disks(text), Err(Fault::Unparseable { .. })), "{text:?}: {:?}", disks(text));
        }
    }

    #[test]
    fn files_and_pools_are_read_as_a_device_printed_them() {
        let text = " 0 name=storage-pool/metal-csi/pvc-X.img type=.img file size=10.0GiB last-modified=2025-11-11 14:32:41\n\
                     1 name=storage-pool/metal-csi type=directory last-modified=2025-11-11\n       14:32:41\n";
        let all = files(text).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!(
            all[0],
            StoredFile {
                name: "storage-pool/metal-csi/pvc-X.img".to_owned(),
                size: Some(Size::About(10 << 30)),
            }
        );
        assert_eq!(all[1].size, None);
        let pool = "Flags: B - BLOCK-DEVICE\n 0 BM ;;; the big one\n      type=hardware slot=storage-pool mount-point=storage-pool size=7 949 127\n      \
                    950 336 free=5.963.595.964.416 use=25%\n";
        let all = disks(pool).unwrap();
        assert_eq!((all[0].bytes(), all[0].free()), (Ok(7_949_127_950_336), Ok(5_963_595_964_416)));
        assert_eq!(all[0].mount_point().as_deref(), Some("storage-pool"));
        assert_eq!(
            (all[0].entry.flags.as_str(), all[0].entry.comment.as_deref()),
            ("BM", Some("the big one"))
        );
    }
}
