#!/bin/sh
# Makes a disk for machines of the VM lab, with programs of this machine and the libraries that they need.
#
#   lab/vm/programs.sh IMAGE PROGRAM[=PLACE]…
set -eu

image=$1
shift
PATH="$PATH:/usr/sbin:/sbin"
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/bin" "$root/usr/bin" "$root/usr/sbin" "$root/lib64" "$root/lib/x86_64-linux-gnu"
"$(dirname "$0")/../collect.sh" "$root" "$@"
size=$(du -sm "$root" | cut -f 1)
rm -f "$image"
mkfs.ext4 -q -F -O ^has_journal -m 0 -d "$root" "$image" "$((size + size / 8 + 16))m"
