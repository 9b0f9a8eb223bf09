#!/bin/sh
# Prints a directory with `vmlinuz` and `initrd`: Debian's stock kernel and the small system that machines of the VM lab boot.
# The kernel is downloaded once; the initrd is packed again when what is in it changes.
#
#   lab/vm/kernel.sh linux-image-amd64
#
# Fails with 3 if that kernel cannot be had here.
set -eu

package=$1
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/bowline/vm
PATH="$PATH:/usr/sbin:/sbin"
# Progress goes to stderr: stdout is the answer.
say() { printf 'lab: %s\n' "$*" >&2; }

# What machines load, with all that it depends on. What is not in the list cannot be had in a machine.
modules="virtio_pci virtio_blk virtio_net virtio_console virtio_rng
    nvme nvme-tcp nvmet nvmet-tcp nvme-loop configfs loop ext4 xfs btrfs nls_utf8
    dm-mod dm-delay dm-flakey brd null_blk crc32c_generic crc32c_intel"

mkdir -p "$cache"
exec 9>"$cache/$package.lock"
flock 9

kernel=$cache/$package
if [ ! -e "$kernel/.complete" ]; then
    exact=$(apt-cache depends "$package" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-.*\)$/\1/p' | head -n 1)
    [ -n "$exact" ] || { say "apt knows no $package" && exit 3; }
    say "downloading $exact (once)"
    rm -rf "$kernel.new"
    mkdir -p "$kernel.new/package"
    (cd "$kernel.new" && apt-get download -qq -o APT::Sandbox::User=root "$exact") >&2 || { rm -rf "$kernel.new" && exit 3; }
    dpkg -x "$kernel.new"/*.deb "$kernel.new/package"
    rm "$kernel.new"/*.deb
    version=$(basename "$kernel.new"/package/boot/vmlinuz-* | sed 's/^vmlinuz-//')
    mv "$kernel.new/package/boot/vmlinuz-$version" "$kernel.new/vmlinuz"
    # A merged /usr or not: the tools that read it expect /lib.
    [ -e "$kernel.new/package/lib/modules" ] || { mkdir -p "$kernel.new/package/lib" && mv "$kernel.new/package/usr/lib/modules" "$kernel.new/package/lib/"; }
    depmod -b "$kernel.new/package" "$version"
    echo "$version" >"$kernel.new/version"
    touch "$kernel.new/.complete"
    rm -rf "$kernel"
    mv "$kernel.new" "$kernel"
fi
version=$(cat "$kernel/version")

key=$({ cat "$0" "$here/init" /bin/busybox && echo "$version"; } | sha256sum | cut -c 1-16)
if [ "$(cat "$kernel/initrd.key" 2>/dev/null)" != "$key" ]; then
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    place=$root/lib/modules/$version
    mkdir -p "$root/bin" "$root/dev" "$root/proc" "$root/sys" "$root/run" "$root/tmp" "$root/etc" "$root/root" \
        "$root/data" "$root/tools" "$root/var/lib" "$place"
    cp /bin/busybox "$root/bin/busybox"
    for name in $(/bin/busybox --list); do
        [ -e "$root/bin/$name" ] || ln -s busybox "$root/bin/$name"
    done
    ln -s bin "$root/sbin"
    ln -s tools/usr "$root/usr"
    ln -s tools/lib64 "$root/lib64"
    ln -s ../tools/lib/x86_64-linux-gnu "$root/lib/x86_64-linux-gnu"
    ln -s /proc/mounts "$root/etc/mtab"
    cp "$here/init" "$root/init"
    for module in $modules; do
        modprobe -d "$kernel/package" -S "$version" --show-depends "$module" 2>/dev/null || :
    done | sed -n 's/^insmod \([^ ]*\).*$/\1/p' | sort -u | while read -r file; do
        case $file in
        *.ko.xz) xz -dc "$file" >"$place/$(basename "$file" .xz)" ;;
        *) cp "$file" "$place/" ;;
        esac
    done
    for list in modules.builtin modules.builtin.modinfo modules.order; do
        cp "$kernel/package/lib/modules/$version/$list" "$place/"
    done
    depmod -b "$root" "$version"
    # Not compressed: unpacking is what an emulated processor is slow at.
    (cd "$root" && find . | cpio --quiet --create --format newc --owner 0:0) >"$kernel/initrd.new"
    mv "$kernel/initrd.new" "$kernel/initrd"
    echo "$key" >"$kernel/initrd.key"
fi
echo "$kernel"
