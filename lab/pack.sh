#!/bin/sh
# Makes an image, as an archive that `ctr images import` and `docker load` take, of programs of this machine and the libraries
# that they need. Nothing is pulled.
#
#   lab/pack.sh CONTAINERFILE NAME ARCHIVE PROGRAM[=PLACE]…
#
# The Containerfile copies the directory `root`, in which every PROGRAM is at its own place, or at PLACE.
set -eu

containerfile=$1
name=$2
archive=$3
shift 3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/context/root
mkdir -p "$root"

"$(dirname "$0")/collect.sh" "$root" "$@"
mkdir -p "$root/tmp" "$root/etc"
chmod 1777 "$root/tmp"
printf 'root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n' >"$root/etc/passwd"
printf 'root:x:0:\nnonroot:x:65532:\n' >"$root/etc/group"
# Names are looked up without the libraries that are not here.
printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$root/etc/nsswitch.conf"

mkdir -p "$(dirname "$archive")"
rm -f "$archive.new"
buildah() { command buildah --root "$work/store" --runroot "$work/run" --storage-driver vfs "$@"; }
buildah bud --isolation chroot --quiet --timestamp 0 --file "$containerfile" --tag "$name" "$work/context" >/dev/null
buildah push --quiet "$name" "docker-archive:$archive.new:$name"
mv "$archive.new" "$archive"
