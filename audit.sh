#!/bin/sh
# Licences, sources and duplicate versions of everything Bowline is built from; advisories where their database can be had.
set -eu

version=0.20.2
tools="${XDG_CACHE_HOME:-$HOME/.cache}/bowline/tools"
deny="$tools/bin/cargo-deny"

if [ ! -x "$deny" ] || [ "$("$deny" --version)" != "cargo-deny $version" ]; then
    echo "audit: building cargo-deny $version (once)"
    cargo install cargo-deny --version "$version" --locked --root "$tools"
fi

"$deny" check licenses bans sources

if "$deny" fetch db >/dev/null 2>&1; then
    "$deny" check advisories
else
    echo "audit: NOT RUN: advisories (the advisory database cannot be reached from here)"
fi
