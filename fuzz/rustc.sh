#!/bin/sh
# The compiler for the fuzz targets: what is ours, and the parsers that stand right before it, tell where an input went. Everything else is
# built as it is: most of it is never on the way of an input, and what runs while something is built (which cargo builds without `--target`)
# runs without the fuzzer that would listen.
rustc=$1
shift
case " $* " in
*' --target '*) ;;
*) exec "$rustc" "$@" ;;
esac
case ${CARGO_PKG_NAME:-} in
bowline* | serde_json | serde_yaml_ng | toml* | prost | russh | httparse) ;;
*) exec "$rustc" "$@" ;;
esac
exec "$rustc" "$@" --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares
