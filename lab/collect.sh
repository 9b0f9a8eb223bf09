#!/bin/sh
# Copies programs of this machine, and the libraries that they need, into a directory that is to be the root of something.
#
#   lab/collect.sh ROOT PROGRAM[=PLACE]…
#
# Every PROGRAM is at its own place there, or at PLACE.
set -eu

root=$1
shift
PATH="$PATH:/usr/sbin:/sbin"

# A program that is a link (mkfs.ext4) becomes the file it leads to.
put() {
    mkdir -p "$root$(dirname "$2")"
    cp -L "$1" "$root$2"
}

for program in "$@"; do
    from=${program%%=*}
    to=${program#*=}
    case $from in
    /*) ;;
    *) from=$(command -v "$from") || { echo "lab: $program is not installed: run make setup" >&2 && exit 1; } ;;
    esac
    case $to in
    /*) ;;
    *) to=$from ;;
    esac
    put "$from" "$to"
    # What a debugger needs is most of an unoptimised program.
    strip --strip-debug "$root$to" 2>/dev/null || :
    # A static program has no libraries, and ldd says so with a failure.
    ldd "$from" 2>/dev/null | sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*$/\1/p' | while read -r library; do
        [ -e "$root$library" ] || put "$library" "$library"
    done
done
