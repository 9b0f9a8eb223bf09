#!/bin/sh
# Runs every fuzz target for RUNS inputs (default 20,000: a short check that none of them is broken, with what is built in a moment).
# A longer run is worth an optimised build: fuzz/run.sh 5000000 release.
# Coverage comes from the compiler's own instrumentation (rustc.sh), so a stable toolchain will do. What was found interesting is
# kept in the cache and tried first the next time; an input that breaks a target is named and kept too.
set -eu

runs=${1:-20000}
profile=${2:-dev}
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/bowline/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
CARGO_TARGET_DIR=$cache/target RUSTC_WRAPPER=$here/rustc.sh \
    cargo build --quiet --profile "$profile" --locked --bins --target "$host" --manifest-path "$here/Cargo.toml"
# Cargo's own profile of that name is built into a directory of another.
built=$cache/target/$host/$(echo "$profile" | sed 's/^dev$/debug/')
for source in "$here"/src/bin/*.rs; do
    target=$(basename "$source" .rs)
    mkdir -p "$cache/corpus/$target" "$cache/broken"
    log=$cache/$target.log
    if ! "$built/$target" -runs="$runs" -seed=1 -max_len=4096 -rss_limit_mb=1024 \
        -artifact_prefix="$cache/broken/$target-" "$cache/corpus/$target" >"$log" 2>&1; then
        tail -n 40 "$log"
        echo "fuzz: $target broke; its input is in $cache/broken"
        exit 1
    fi
    echo "fuzz: $target: $(sed -n 's/^#\([0-9]*\).*DONE *cov: \([0-9]*\).*$/\1 inputs, \2 places reached/p' "$log")" | tee -a "${BOWLINE_SUMMARY:-/dev/null}"
done
