//! The programs of others that a lab runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Directories that were asked for already.
static KNOWN: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());

/// The root of the project.
pub(crate) fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The directory with the programs that `lab/tools/NAME` pins. The first call on a machine builds them, which takes minutes.
pub fn tools(name: &str) -> PathBuf {
    if let Some(known) = KNOWN.lock().unwrap().get(name) {
        return known.clone();
    }
    let output = Command::new("sh").arg(project().join("lab/tools.sh")).arg(name).output().unwrap();
    assert!(
        output.status.success(),
        "lab/tools.sh {name} failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let directory = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    KNOWN.lock().unwrap().insert(name.to_owned(), directory.clone());
    directory
}

/// One file of the chart's templates, as Helm renders it with these values for the Kubernetes of the labs.
pub fn rendered(template: &str, values: &[&str]) -> String {
    let mut helm = Command::new(tools("helm").join("helm"));
    helm.args(["template", "bowline"]).arg(project().join("deploy/chart")).arg("--kube-version=1.36.3");
    helm.args(["--namespace", super::NAMESPACE]);
    helm.arg(format!("--show-only=templates/{template}")).args(["--set", &values.join(",")]);
    let output = helm.output().unwrap();
    assert!(output.status.success(), "helm template: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A program of the Debian packages that `setup.sh` installs.
pub(crate) fn installed(name: &str) -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default();
    let places = path.split(':').chain(["/usr/sbin", "/sbin"]);
    let found = places.map(|place| Path::new(place).join(name)).find(|program| program.is_file());
    found.unwrap_or_else(|| panic!("{name} is not installed: run make setup"))
}
