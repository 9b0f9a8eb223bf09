//! What a node is told about a grant: the publish context, typed.

use crate::{Grant, RDS, rds};
use bowline_core::{Epoch, IdError, NodeId, NvmeNames, TargetId};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Which target holds the volume.
pub const TARGET: &str = "bowline.storage/target";
/// For which node the grant is.
pub const NODE: &str = "bowline.storage/node";
/// The grant's epoch.
pub const EPOCH: &str = "bowline.storage/epoch";
/// `rw` or `ro`.
pub const ACCESS: &str = "bowline.storage/access";

/// The subsystem that exports the volume over NVMe/TCP for this grant; with it come the four keys below.
pub const NQN: &str = "bowline.storage/nqn";
/// As whom the node must log in.
pub const HOST_NQN: &str = "bowline.storage/host-nqn";
/// As whom the node must log in, as a UUID.
pub const HOST_ID: &str = "bowline.storage/host-id";
/// The UUID of the volume's namespace.
pub const NAMESPACE: &str = "bowline.storage/namespace-uuid";
/// Where the target listens: one address with its port, or several with commas between.
pub const ADDRESSES: &str = "bowline.storage/addresses";

/// What every target tells a node about a grant; a target may add keys of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GrantContext {
    /// Which target holds the volume.
    pub target: TargetId,
    /// For which node the grant is.
    pub node: NodeId,
    /// The grant's epoch.
    pub epoch: Epoch,
    /// Whether the node may write.
    pub write: bool,
}

/// Why a map is not the context of a grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// A key is not there.
    #[error("publish_context[{0}] is required")]
    Missing(&'static str),
    /// A value is no id.
    #[error("publish_context[{key}]: {error}")]
    Id {
        /// The key.
        key: &'static str,
        /// What is wrong with its value.
        error: IdError,
    },
    /// A value is none that this key can have.
    #[error("publish_context[{key}] must be {must}")]
    Value {
        /// The key.
        key: &'static str,
        /// What it must be.
        must: &'static str,
    },
}

impl GrantContext {
    /// As the map that travels.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        let access = if self.write { "rw" } else { "ro" };
        let pairs = [
            (TARGET, self.target.to_string()),
            (NODE, self.node.to_string()),
            (EPOCH, self.epoch.to_string()),
            (ACCESS, access.to_owned()),
        ];
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// From a map that travelled; `get` finds a key's value. Keys that are not known are ignored.
    pub fn parse<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<Self, ContextError> {
        let value = |key: &'static str| get(key).ok_or(ContextError::Missing(key));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let epoch = value(EPOCH)?;
        let epoch = Some(epoch).filter(|text| digits(text)).and_then(|text| text.parse().ok());
        Ok(Self {
            target: TargetId::new(value(TARGET)?).map_err(|error| ContextError::Id { key: TARGET, error })?,
            node: NodeId::new(value(NODE)?).map_err(|error| ContextError::Id { key: NODE, error })?,
            epoch: Epoch::new(epoch.ok_or(ContextError::Value { key: EPOCH, must: "a whole number" })?),
            write: match value(ACCESS)? {
                "rw" => true,
                "ro" => false,
                _ => return Err(ContextError::Value { key: ACCESS, must: "rw or ro" }),
            },
        })
    }
}

/// What a target that exports over NVMe/TCP tells a node besides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NvmeContext {
    /// What the grant is called on the fabric.
    pub names: NvmeNames,
    /// Where the target listens; at least one.
    pub addresses: Vec<SocketAddr>,
}

impl NvmeContext {
    /// As the map that travels.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        let Self { names, addresses } = self;
        let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        let pairs = [
            (NQN, names.subsystem.clone()),
            (HOST_NQN, names.host.clone()),
            (HOST_ID, names.host_id.clone()),
            (NAMESPACE, names.namespace.clone()),
            (ADDRESSES, addresses.join(",")),
        ];
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// From a map that travelled; `None` if the target does not export over NVMe/TCP.
    pub fn parse<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<Option<Self>, ContextError> {
        if get(NQN).is_none() {
            return Ok(None);
        }
        let wrong = |key, must| ContextError::Value { key, must };
        // They become words of a command to the kernel, with commas between.
        let word = |key: &'static str| {
            let value = get(key).ok_or(ContextError::Missing(key))?;
            let plain = |c: char| c.is_ascii_graphic() && !matches!(c, ',' | '=' | '/');
            let good = !value.is_empty() && value.len() <= 223 && value.chars().all(plain);
            good.then(|| value.to_owned())
                .ok_or(wrong(key, "1 to 223 printable characters without ',', '=' and '/'"))
        };
        let addresses = get(ADDRESSES).ok_or(ContextError::Missing(ADDRESSES))?;
        let addresses: Result<Vec<SocketAddr>, _> = addresses.split(',').map(str::parse).collect();
        let addresses =
            addresses.map_err(|_| wrong(ADDRESSES, "addresses with ports, with commas between"))?;
        let names = NvmeNames {
            subsystem: word(NQN)?,
            host: word(HOST_NQN)?,
            host_id: word(HOST_ID)?,
            namespace: word(NAMESPACE)?,
        };
        Ok(Some(Self { names, addresses }))
    }
}

/// What a node is told about a grant by a target of this kind over this storage that listens at these addresses; at none, if its volumes
/// are reached otherwise. Whoever knows what the target is can tell it.
pub fn of_grant(
    target: &TargetId,
    kind: &str,
    installation: &str,
    addresses: &[SocketAddr],
    grant: &Grant,
) -> BTreeMap<String, String> {
    let Grant { volume, node, epoch, mode, beside: _ } = grant;
    let common =
        GrantContext { target: target.clone(), node: node.clone(), epoch: *epoch, write: mode.write };
    let mut map = common.to_map();
    if !addresses.is_empty() {
        let names = if kind == RDS {
            rds::fabric(installation, grant)
        } else {
            NvmeNames::new(installation, volume, node, *epoch)
        };
        map.extend(NvmeContext { names, addresses: addresses.to_vec() }.to_map());
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> GrantContext {
        GrantContext {
            target: TargetId::new("file").unwrap(),
            node: NodeId::new("worker-1").unwrap(),
            epoch: Epoch::new(7),
            write: true,
        }
    }

    fn parse(map: &BTreeMap<String, String>) -> Result<GrantContext, ContextError> {
        GrantContext::parse(|key| map.get(key).map(String::as_str))
    }

    #[test]
    fn what_is_told_is_understood() {
        for write in [true, false] {
            let context = GrantContext { write, ..context() };
            assert_eq!(parse(&context.to_map()), Ok(context));
        }
    }

    #[test]
    fn a_bad_context_names_its_key() {
        for (key, value, why) in [
            (TARGET, None, "publish_context[bowline.storage/target] is required"),
            (NODE, Some("a/b"), "publish_context[bowline.storage/node]: node id \"a/b\" contains '/'"),
            (EPOCH, Some("+7"), "publish_context[bowline.storage/epoch] must be a whole number"),
            (
                EPOCH,
                Some("99999999999999999999"),
                "publish_context[bowline.storage/epoch] must be a whole number",
            ),
            (ACCESS, Some("RW"), "publish_context[bowline.storage/access] must be rw or ro"),
        ] {
            let mut map = context().to_map();
            match value {
                Some(value) => map.insert(key.to_owned(), value.to_owned()),
                None => map.remove(key),
            };
            let error = parse(&map).unwrap_err().to_string();
            assert!(error.starts_with(why), "{error}");
        }
    }

    fn nvme() -> NvmeContext {
        let context = context();
        let volume = bowline_core::VolumeId::new("v1").unwrap();
        let names = NvmeNames::new("storage", &volume, &context.node, context.epoch);
        NvmeContext {
            names,
            addresses: vec!["10.0.0.1:4420".parse().unwrap(), "[fd00::1]:4420".parse().unwrap()],
        }
    }

    #[test]
    fn what_is_told_of_the_fabric_is_understood() {
        let map = nvme().to_map();
        assert_eq!(NvmeContext::parse(|key| map.get(key).map(String::as_str)), Ok(Some(nvme())));
        assert_eq!(NvmeContext::parse(|_| None), Ok(None), "another kind of target");
    }

    #[test]
    fn what_would_say_more_to_the_kernel_than_a_name_is_refused() {
        for (key, value) in [
            (NQN, "nqn.a,hostnqn=nqn.b"),
            (HOST_NQN, "nqn.a\nnqn=b"),
            (HOST_ID, ""),
            (NAMESPACE, "../x"),
            (ADDRESSES, "10.0.0.1"),
            (ADDRESSES, ""),
        ] {
            let mut map = nvme().to_map();
            map.insert(key.to_owned(), value.to_owned());
            let error = NvmeContext::parse(|key| map.get(key).map(String::as_str)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("publish_context[{key}] must be ")), "{error}");
        }
    }
}
