//! Whom the user's commands ask: the `bowline up` of a data directory, or the Bowline of a cluster.

use std::path::PathBuf;

use crate::failure::Failure;

/// Where the answers come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// A `bowline up`, over the socket in its data directory.
    Local(PathBuf),
    /// The controller of a cluster, through its API server.
    Cluster(Installation),
}

/// Bowline in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The kubeconfig; what `kubectl` would use if not given.
    pub kubeconfig: Option<PathBuf>,
    /// The context of it; the current one if not given.
    pub context: Option<String>,
    /// Where Bowline is installed.
    pub namespace: String,
}

/// What was typed, and what the environment says.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// The data directory, whoever said it.
    pub data: PathBuf,
    /// It was typed.
    pub data_typed: bool,
    /// It is in the environment.
    pub data_in_environment: bool,
    /// `--kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `--context`.
    pub context: Option<String>,
    /// `$KUBECONFIG` names a file.
    pub kubeconfig_in_environment: bool,
    /// The namespace of the installation.
    pub namespace: String,
}

impl Way {
    /// What is typed comes before the environment, and `BOWLINE_DATA` before `KUBECONFIG`.
    pub fn choose(said: Said) -> Result<Self, Failure> {
        let Said { data, kubeconfig, context, namespace, .. } = said;
        let cluster_typed = kubeconfig.is_some() || context.is_some();
        if cluster_typed && said.data_typed {
            return Err(Failure::usage(
                "--data asks the `bowline up` of this machine, and --context or --kubeconfig a cluster: give one of them",
            ));
        }
        let from_environment =
            said.kubeconfig_in_environment && !said.data_typed && !said.data_in_environment;
        if cluster_typed || from_environment {
            return Ok(Self::Cluster(Installation { kubeconfig, context, namespace }));
        }
        Ok(Self::Local(data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_comes_before_the_environment() {
        for (typed, data_in_environment, kubeconfig_in_environment, expected) in [
            ("", false, false, Some("local")),
            ("", true, false, Some("local")),
            ("", false, true, Some("cluster")),
            ("", true, true, Some("local")),
            ("data", false, true, Some("local")),
            ("context", false, false, Some("cluster")),
            ("context", true, true, Some("cluster")),
            ("kubeconfig", true, false, Some("cluster")),
            ("data context", false, false, None),
            ("data kubeconfig", false, true, None),
        ] {
            let said = Said {
                data: "/d".into(),
                data_typed: typed.contains("data"),
                data_in_environment,
                kubeconfig: typed.contains("kubeconfig").then(|| "/k".into()),
                context: typed.contains("context").then(|| "c".to_owned()),
                kubeconfig_in_environment,
                namespace: "bowline".to_owned(),
            };
            let chosen = Way::choose(said);
            let name = chosen.as_ref().ok().map(|way| match way {
                Way::Local(_) => "local",
                Way::Cluster(_) => "cluster",
            });
            assert_eq!(name, expected, "{typed:?} {data_in_environment} {kubeconfig_in_environment}");
            assert!(chosen.is_ok() || chosen.unwrap_err().exit.code() == 2);
        }
    }
}
