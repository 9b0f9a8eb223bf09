#!/bin/sh
# Removes what a cluster lab leaves when its processes are gone: cgroups, loop devices, and the cable between its network and this
# machine. Mounts, other network devices and packet filters are in namespaces that went with the processes.
#
#   lab/clean.sh DIRECTORY [GROUP]
#
# GROUP is the cgroup, if it is not named like the directory.
set -eu

directory=$1
group=${2:-$(basename "$directory")}
PATH="$PATH:/usr/sbin:/sbin"

# A namespace outlives its processes while a connection waits for its end: the cable is not left to the kernel.
if [ -e "$directory/cable" ]; then
    ip link delete "$(cat "$directory/cable")" 2>/dev/null || :
fi

# A cgroup goes when its last process has.
tries=0
while [ -n "$(find /sys/fs/cgroup -type d -path "*/$group" -print -quit)" ] && [ "$tries" -lt 100 ]; do
    find /sys/fs/cgroup -depth -type d -path "*/$group/*" -exec rmdir {} + 2>/dev/null || :
    find /sys/fs/cgroup -depth -type d -path "*/$group" -exec rmdir {} + 2>/dev/null || :
    tries=$((tries + 1))
    sleep 0.1
done

# A loop device belongs to the lab if its file does. The file's path is that of another namespace, its inode is not.
place=$(stat -c %Hd:%Ld "$directory" 2>/dev/null) || exit 0
losetup --list --noheadings --output NAME,BACK-INO,BACK-MAJ:MIN | while read -r name inode number; do
    [ "$number" = "$place" ] || continue
    if [ -n "$(find "$directory" -xdev -type f -inum "$inode" -print -quit)" ]; then
        losetup --detach "$name"
    fi
done
