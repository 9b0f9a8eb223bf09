//! Compiles the wire contract without protoc, and writes a `Debug` that hides secrets for each message that has any.

use protox::prost_reflect::{DescriptorPool, FieldDescriptor, MessageDescriptor, Value};
use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

const PROTOS: [&str; 2] = ["csi.proto", "pluginregistration.proto"];

/// CSI says of mount flags, in prose only, that they may be sensitive; they have no option to find them by.
const ALSO_SECRET: &str = "csi.v1.VolumeCapability.MountVolume.mount_flags";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_files(PROTOS)?;

    let secretive = messages_with_secrets(&compiler.descriptor_pool());
    let mut debug = String::new();
    for (message, fields) in &secretive {
        write_debug(&mut debug, message, fields)?;
    }
    std::fs::write(out.join("secretive.rs"), debug)?;
    std::fs::write(out.join("descriptor.bin"), compiler.encode_file_descriptor_set())?;

    let names: Vec<String> = secretive.iter().map(|(message, _)| message.full_name().to_owned()).collect();
    tonic_prost_build::configure()
        .build_transport(false)
        .skip_debug(names)
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

fn messages_with_secrets(pool: &DescriptorPool) -> Vec<(MessageDescriptor, Vec<(FieldDescriptor, bool)>)> {
    let mark = pool.get_extension_by_name("csi.v1.csi_secret");
    let is_secret = |field: &FieldDescriptor| {
        let options = field.options();
        let marked = mark.as_ref().is_some_and(|mark| *options.get_extension(mark) == Value::Bool(true));
        marked || field.full_name() == ALSO_SECRET
    };
    pool.all_messages()
        .map(|message| {
            let fields = message.fields().map(|field| (field.clone(), is_secret(&field))).collect();
            (message, fields)
        })
        .filter(|(_, fields): &(_, Vec<(_, bool)>)| fields.iter().any(|(_, secret)| *secret))
        .collect()
}

fn write_debug(
    out: &mut String,
    message: &MessageDescriptor,
    fields: &[(FieldDescriptor, bool)],
) -> Result<(), std::fmt::Error> {
    let path: Vec<&str> = message.full_name().trim_start_matches("csi.v1.").split('.').collect();
    let (name, parents) = path.split_last().ok_or(std::fmt::Error)?;
    let modules: String = parents.iter().map(|parent| format!("{}::", snake(parent))).collect();
    writeln!(out, "impl ::std::fmt::Debug for {modules}{name} {{")?;
    writeln!(out, "    fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {{")?;
    writeln!(out, "        f.debug_struct({name:?})")?;
    for (field, secret) in fields {
        let field = field.name();
        let value = if *secret {
            format!("::core::format_args!(\"{{}} hidden\", self.{field}.len())")
        } else {
            format!("self.{field}")
        };
        writeln!(out, "            .field({field:?}, &{value})")?;
    }
    writeln!(out, "            .finish()\n    }}\n}}")
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}
