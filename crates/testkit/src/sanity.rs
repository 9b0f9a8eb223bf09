//! The public conformance suite, csi-sanity: with which words it is run, and what its report says.

/// Where one run has its things.
#[derive(Clone, Debug)]
pub struct Place<'a> {
    /// The socket of the process.
    pub socket: &'a str,
    /// A directory for the rest.
    pub directory: &'a str,
    /// Below which volumes are published, and below which they are staged.
    pub mounts: [&'a str; 2],
    /// `mount` or `block`.
    pub access: &'a str,
}

impl Place<'_> {
    /// The files that a run reads, by name, to be put into its directory.
    pub fn files(&self) -> [(&'static str, &'static str); 2] {
        // xfs grows while it is mounted with the rights that every test machine has; ext4 needs one more.
        let parameters = if self.access == "mount" { "fsType: xfs\n" } else { "{}\n" };
        [("parameters.yaml", parameters), ("mutable.yaml", "deletionProtection: \"false\"\n")]
    }

    /// Where the report will be.
    pub fn report(&self) -> String {
        format!("{}/report.xml", self.directory)
    }

    /// The words of its command.
    pub fn arguments(&self) -> Vec<String> {
        let Self { socket, directory, mounts: [published, staged], access } = self;
        // xfs is never smaller than 300 MiB.
        let (size, larger) = (320_u64 << 20, 640_u64 << 20);
        vec![
            format!("--csi.endpoint=unix://{socket}"),
            format!("--csi.controllerendpoint=unix://{socket}"),
            format!("--csi.mountdir={published}/sanity"),
            format!("--csi.stagingdir={staged}/sanity"),
            format!("--csi.testvolumeaccesstype={access}"),
            format!("--csi.testvolumesize={size}"),
            format!("--csi.testvolumeexpandsize={larger}"),
            format!("--csi.testvolumeparameters={directory}/parameters.yaml"),
            format!("--csi.testvolumemutableparameters={directory}/mutable.yaml"),
            "--csi.testnodevolumeattachlimit".to_owned(),
            format!("--ginkgo.junit-report={}", self.report()),
            "--ginkgo.no-color".to_owned(),
        ]
    }
}

/// What a report says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Cases that passed.
    pub passed: usize,
    /// Cases that did not.
    pub failed: usize,
    /// Cases for which something was missing.
    pub skipped: usize,
}

/// Everything passed, and nothing was left out.
pub const ALL: Summary = Summary { passed: 102, failed: 0, skipped: 0 };

/// Counts the cases of a junit report. Those disabled by the suite itself (`status="pending"`) count as nothing.
pub fn count(report: &str) -> Summary {
    let mut summary = Summary::default();
    for case in report.split("<testcase ").skip(1) {
        let head = case.split('>').next().unwrap();
        // What runs before and after the suite is no spec.
        if !head.contains("name=\"[It]") {
            continue;
        }
        match head.split("status=\"").nth(1).and_then(|rest| rest.split('"').next()) {
            Some("passed") => summary.passed += 1,
            Some("skipped") => summary.skipped += 1,
            Some("pending") => {}
            _ => summary.failed += 1,
        }
    }
    summary
}
