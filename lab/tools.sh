#!/bin/sh
# Builds the Go programs that lab/tools/NAME pins, and prints the directory they are in. What is built is kept in the cache
# under the hash of its go.sum, so the second call only prints.
#
#   lab/tools.sh sanity
set -eu

name=$1
here=$(cd "$(dirname "$0")/tools/$name" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/bowline/tools
# Progress goes to stderr: stdout is the answer.
say() { printf 'lab: %s\n' "$*" >&2; }

# What a program says of its version, where it takes that from its linker.
flags=$(cat "$here/ldflags" 2>/dev/null || :)
key=$({ cat "$here/go.mod" "$here/go.sum" && echo "$flags"; } | sha256sum | cut -c 1-16)
out=$cache/$name-$key

# Files of a module that are not programs: lab/tools/NAME/files has a line "module directory name" for each.
files() {
    [ -e "$here/files" ] || return 0
    while read -r module directory as; do
        [ -e "$1/$as" ] && continue
        version=$(sed -n "s|^.*$module \\(v[^ ]*\\).*\$|\\1|p" "$here/go.mod" | head -n 1)
        from=$(cd / && GOFLAGS=-mod=mod GONOSUMDB="$module" go mod download -json "$module@$version" |
            sed -n 's/^.*"Dir": "\(.*\)".*$/\1/p')
        cp -r "$from/$directory" "$1/$as.new"
        chmod -R u+w "$1/$as.new"
        mv "$1/$as.new" "$1/$as"
    done <"$here/files"
}

if [ -e "$out/.complete" ] && files "$out"; then
    echo "$out"
    exit 0
fi

# One at a time: tests that run side by side ask for the same programs.
mkdir -p "$cache"
exec 9>"$cache/$name.lock"
flock 9
if [ -e "$out/.complete" ]; then
    echo "$out"
    exit 0
fi

# Debian's Go may be too old to build these, but not to download a newer one: that is a module too, with a checksum.
wanted=$(sed -n 's/^go //p' "$here/go.mod")
have=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null | sed 's/^go//' | cut -d ' ' -f 1)
go=go
if [ "$(printf '%s\n%s\n' "$wanted" "${have:-0}" | sort -V | head -n 1)" != "$wanted" ]; then
    arch=$(go env GOARCH)
    say "downloading Go $wanted (found ${have:-none})"
    toolchain=$(cd / && go mod download -json "golang.org/toolchain@v0.0.1-go$wanted.linux-$arch" |
        sed -n 's/^.*"Dir": "\(.*\)".*$/\1/p')
    # A module has no file modes.
    chmod -R u+w "$toolchain/bin" "$toolchain/pkg/tool"
    chmod +x "$toolchain"/bin/* "$toolchain"/pkg/tool/*/*
    go=$toolchain/bin/go
    unset GOROOT
fi

say "building the programs of lab/tools/$name (once)"
rm -rf "$out.new"
mkdir -p "$out.new"
packages=$(sed -n 's/^[[:space:]]*_ "\(.*\)"$/\1/p' "$here/tools.go")
# shellcheck disable=SC2086 # a list of words
(cd "$here" && GOTOOLCHAIN=local GOFLAGS= GOGC=400 "$go" build -mod=readonly -trimpath -ldflags "-s -w $flags" -o "$out.new/" $packages) >&2
files "$out.new"
touch "$out.new/.complete"
rm -rf "$out"
mv "$out.new" "$out"
echo "$out"
