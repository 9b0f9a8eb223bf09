#!/bin/sh
# A node of the cluster lab: namespaces of its own for processes, mounts, network and cgroups, in which the usual directories are
# the node's own. This shell becomes the first process in them; when it ends, the kernel ends and unmounts whatever is left.
#
#   lab/node.sh DIRECTORY GROUP
#
# Everything the node writes is in DIRECTORY; its cgroup is GROUP. DIRECTORY/ready appears when others can come in.
set -eu

directory=$1
group=$2
stage=${3:-join}
cgroups=/sys/fs/cgroup

# Whether there is one tree of cgroups for all resources, or one for each.
is_one_tree() { [ -e "$cgroups/cgroup.controllers" ]; }

# A new cpuset is empty and takes nobody.
fill_cpuset() {
    for part in "$(dirname "$1")" "$1"; do
        for file in cpus mems; do
            [ -n "$(cat "$part/cpuset.$file")" ] || cat "$(dirname "$part")/cpuset.$file" >"$part/cpuset.$file"
        done
    done
}

case $stage in
join)
    mkdir -p "$directory/lib/kubelet" "$directory/run/lock" "$directory/log" "$directory/opt" "$directory/kernel"
    if is_one_tree; then
        mkdir -p "$cgroups/$group"
        echo $$ >"$cgroups/$group/cgroup.procs"
    else
        # Below the one we are in: limits that hold for us hold for the lab.
        for tree in "$cgroups"/*; do
            name=$(basename "$tree")
            own=$(sed -n "s/^[0-9]*:\(name=\)\{0,1\}$name:\(.*\)$/\2/p" /proc/self/cgroup)
            [ "$name" != unified ] || own=$(sed -n 's/^0::\(.*\)$/\1/p' /proc/self/cgroup)
            mkdir -p "$tree$own/$group"
            [ "$name" != cpuset ] || fill_cpuset "$tree$own/$group"
            echo $$ >"$tree$own/$group/cgroup.procs"
        done
    fi
    exec unshare --cgroup --mount --propagation private "$0" "$directory" "$group" mount
    ;;
mount)
    # What others on this machine had mounted at this moment is none of the node's: it would be in use for as long as the node runs.
    lab=$(dirname "$directory")
    while read -r source place _; do
        case $place in
        "$lab" | "$lab"/*) continue ;;
        "${TMPDIR:-/tmp}"/*) umount --lazy "$place" || : ;;
        *) case $source in /dev/loop*) umount --lazy "$place" || : ;; esac ;;
        esac
    done </proc/self/mounts
    # The cgroups as seen from the node's own.
    if is_one_tree; then
        mount -t cgroup2 cgroup2 "$cgroups"
        # A group with processes has no room for others.
        mkdir -p "$cgroups/own"
        echo $$ >"$cgroups/own/cgroup.procs"
    else
        trees=$(ls "$cgroups")
        mount -t tmpfs -o mode=755 cgroup "$cgroups"
        for name in $trees; do
            mkdir "$cgroups/$name"
            case $name in
            unified) mount -t cgroup2 cgroup2 "$cgroups/$name" ;;
            systemd) mount -t cgroup -o none,name=systemd cgroup "$cgroups/$name" ;;
            *) mount -t cgroup -o "$name" cgroup "$cgroups/$name" ;;
            esac
        done
    fi
    exec unshare --mount --net --pid --ipc --fork --kill-child --propagation private --mount-proc \
        "$0" "$directory" "$group" inside
    ;;
esac

# What the kubelet sets for the whole machine it sets in files of its own.
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    [ -e "/proc/sys/$setting" ] || continue
    file=$directory/kernel/$(echo "$setting" | tr / -)
    cat "/proc/sys/$setting" >"$file"
    mount --bind "$file" "/proc/sys/$setting"
done

mount --bind "$directory/lib" /var/lib
mount --bind "$directory/log" /var/log
mount --bind "$directory/opt" /opt
# Like on a machine, what is here does not outlive a restart.
mount -t tmpfs -o mode=755 run /run
# What a pod mounts must be seen by the kubelet, and the reverse. Only in here: the machine's own mounts stay private. And only now:
# a directory that was bound while shared would show every mount twice, also where the lab keeps it.
mount --make-rshared /
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
touch "$directory/ready"

# Whoever loses its parent becomes our child, and somebody has to ask how it ended.
while :; do
    sleep 3600 &
    wait $! || :
done
