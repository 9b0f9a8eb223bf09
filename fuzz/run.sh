#!/bin/sh
# Runs every fuzz target for RUNS inputs (default 20,000: a short check that none of them is broken).
# Coverage comes from the compiler's own instrumentation, so a stable toolchain will do. What was found interesting is
# kept in the cache and tried first the next time; an input that breaks a target is named and kept too.
set -eu

runs=${1:-20000}
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/bowline/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
coverage="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares"
CARGO_TARGET_DIR=$cache/target RUSTFLAGS=$coverage \
    cargo build --quiet --release --locked --bins --target "$host" --manifest-path "$here/Cargo.toml"
for source in "$here"/src/bin/*.rs; do
    target=$(basename "$source" .rs)
    mkdir -p "$cache/corpus/$target" "$cache/broken"
    log=$cache/$target.log
    if ! "$cache/target/$host/release/$target" -runs="$runs" -seed=1 -max_len=4096 -rss_limit_mb=1024 \
        -artifact_prefix="$cache/broken/$target-" "$cache/corpus/$target" >"$log" 2>&1; then
        tail -n 40 "$log"
        echo "fuzz: $target broke; its input is in $cache/broken"
        exit 1
    fi
    echo "fuzz: $target: $(sed -n 's/^#\([0-9]*\).*DONE *cov: \([0-9]*\).*$/\1 inputs, \2 places reached/p' "$log")" | tee -a "${BOWLINE_SUMMARY:-/dev/null}"
done
