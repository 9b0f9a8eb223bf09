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
    *) to=/usr/bin/$to ;;
    esac
    put "$from" "$to"
    # What a debugger needs is most of an unoptimised program.
    strip --strip-debug "$root$to" 2>/dev/null || :
    # A static program has no libraries, and ldd says so with a failure.
    ldd "$from" 2>/dev/null | sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*$/\1/p' | while read -r library; do
        [ -e "$root$library" ] || put "$library" "$library"
    done
done
size=$(du -sm "$root" | cut -f 1)
rm -f "$image"
mkfs.ext4 -q -F -O ^has_journal -m 0 -d "$root" "$image" "$((size + size / 8 + 16))m"
