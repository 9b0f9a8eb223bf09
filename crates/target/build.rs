//! Compiles the agent's wire contract without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_files(["agent.proto"])?;
    tonic_prost_build::configure().build_transport(false).compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
