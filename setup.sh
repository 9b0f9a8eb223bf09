#!/bin/sh
# Installs what is missing to build and test Bowline on a Debian machine, or with the word `run` only to build and run it, and says what. A second run
# installs nothing.
set -eu

say() { printf 'setup: %s\n' "$*"; }

# command -> Debian package
missing=
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
PATH="$PATH:/usr/sbin:/sbin"

# To build Bowline, and to have volumes with filesystems in them.
need cc gcc
need mkfs.ext4 e2fsprogs
need mkfs.xfs xfsprogs
need losetup mount

for_tests() {
    # The fuzzer's runtime is C++.
    need c++ g++
    # The conformance suite is a Go program, built from source by lab/tools.sh.
    need go golang-go
    need git git
    # The tests of crates/host meet filesystems of others.
    need mkfs.btrfs btrfs-progs
    need mkswap util-linux
    # The labs: an API server keeps its objects in etcd; nodes run pods with containerd, from images that buildah makes.
    need etcd etcd-server
    need etcdctl etcd-client
    need containerd containerd
    need runc runc
    [ -x /usr/lib/cni/ptp ] || missing="$missing containernetworking-plugins"
    need buildah buildah
    need iptables iptables
    need ip iproute2
    # The simulated RouterOS device is tried with a client that is not ours.
    need ssh openssh-client
    # The VM lab: QEMU boots Debian's kernel with a ramdisk of busybox and the kernel's modules.
    need qemu-system-x86_64 qemu-system-x86
    need cpio cpio
    need modprobe kmod
    need xz xz-utils
    need strip binutils
    [ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1 || missing="$missing busybox-static"
}
[ "${1:-}" = run ] || for_tests

if ! command -v cargo >/dev/null 2>&1 && [ ! -x "$HOME/.cargo/bin/cargo" ]; then
    missing="$missing rustup"
fi

if [ -n "$missing" ]; then
    if [ "$(id -u)" -ne 0 ]; then
        say "these Debian packages are missing, and only root can install them:$missing"
        say "run: sudo apt-get install$missing"
        exit 1
    fi
    say "installing the Debian packages$missing"
    # Some of them are services. Only the labs need them, and they start their own.
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
        chmod +x /usr/sbin/policy-rc.d
    fi
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
    for service in etcd containerd; do
        case $missing in
        *$service*) systemctl disable --quiet "$service" 2>/dev/null || : ;;
        esac
    done
fi

PATH="$PATH:$HOME/.cargo/bin"
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
have=$(cargo --version 2>/dev/null | cut -d ' ' -f 2 || true)
oldest=$(printf '%s\n%s\n' "$wanted" "${have:-0}" | sort -V | head -n 1)
if [ "$oldest" != "$wanted" ]; then
    say "installing Rust (found ${have:-none}, $wanted or newer is needed)"
    rustup toolchain install stable --profile minimal --component clippy --component rustfmt
    rustup default stable
fi
for component in clippy rustfmt; do
    if ! cargo "$(echo "$component" | sed 's/rustfmt/fmt/')" --version >/dev/null 2>&1; then
        say "installing $component"
        rustup component add "$component"
    fi
done
