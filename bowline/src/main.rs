//! The binary: see the library of the same name.

use std::process::ExitCode;

/// A start reads ten thousand objects and keeps a little of each. The C library's allocator leaves holes between what is kept that are as large as
/// what is; this one keeps sizes apart, and gives back what is free while nobody waits.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    bowline::run(std::env::args_os())
}
