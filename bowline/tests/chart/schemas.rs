//! Schemas for kubeconform, from the description of Kubernetes' own API in its source, which is in the module cache when the
//! lab was built.

use serde_json::{Value, json};
use std::process::Command;
use tempfile::TempDir;

/// The version whose API is meant; the lab runs the same.
const KUBERNETES: &str = "k8s.io/kubernetes@v1.36.3";

/// A directory with one schema per kind.
pub(crate) fn of_kubernetes() -> Result<TempDir, String> {
    let output = Command::new("go")
        .args(["mod", "download", "-json", KUBERNETES])
        .env("GOFLAGS", "-mod=mod")
        .current_dir(std::env::temp_dir())
        .output()
        .map_err(|error| format!("cannot run go: {error}"))?;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let directory = answer["Dir"].as_str().ok_or_else(|| format!("{KUBERNETES} cannot be had"))?;
    let swagger = std::fs::read(format!("{directory}/api/openapi-spec/swagger.json"))
        .map_err(|error| format!("{KUBERNETES}: {error}"))?;
    let mut swagger: Value = serde_json::from_slice(&swagger).map_err(|error| error.to_string())?;
    let mut definitions = swagger["definitions"].take();
    let place = tempfile::tempdir().map_err(|error| error.to_string())?;
    let definitions_of = definitions.as_object_mut().ok_or("no definitions")?;
    for (name, definition) in definitions_of.iter_mut() {
        tighten(name, definition);
    }
    for (name, definition) in definitions_of.iter() {
        for kind in definition["x-kubernetes-group-version-kind"].as_array().into_iter().flatten() {
            let of = |key: &str| kind[key].as_str().unwrap_or_default().to_lowercase();
            let (group, version, kind) = (of("group"), of("version"), of("kind"));
            // As kubeconform asks for it: the first word of the group, then the version.
            let suffix = match group.split('.').next() {
                Some(first) if !first.is_empty() => format!("-{first}-{version}"),
                _ => format!("-{version}"),
            };
            let schema = json!({ "$ref": format!("definitions.json#/{name}") });
            std::fs::write(place.path().join(format!("{kind}{suffix}.json")), schema.to_string())
                .map_err(|error| error.to_string())?;
        }
    }
    let text = definitions.to_string().replace("#/definitions/", "#/");
    std::fs::write(place.path().join("definitions.json"), text).map_err(|error| error.to_string())?;
    Ok(place)
}

/// A field that is not described is a mistake, and a number may stand where a text may.
fn tighten(name: &str, definition: &mut Value) {
    if matches!(
        name,
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString" | "io.k8s.apimachinery.pkg.api.resource.Quantity"
    ) {
        *definition = json!({ "type": ["string", "integer", "number"] });
        return;
    }
    // A kind's own definitions of schemas are open.
    if definition.get("properties").is_some() && !name.contains("JSONSchemaProps") {
        definition["additionalProperties"] = json!(false);
    }
}
