#!/bin/sh
# Runs a program in a node of the cluster lab, as one of the node's own: in its cgroup, and with its process id in /run/NAME.pid.
#
#   nsenter … lab/enter.sh NAME PROGRAM [ARGUMENT…]
set -eu
for procs in /sys/fs/cgroup/own/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do
    [ ! -e "$procs" ] || echo $$ >"$procs"
done
echo $$ >"/run/$1.pid"
shift
exec "$@"
