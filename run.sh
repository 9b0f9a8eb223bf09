#!/bin/sh
# Starts Bowline in a scratch directory and shows what to try. Ctrl-C ends it and leaves nothing behind.
set -eu

cache=${XDG_CACHE_HOME:-$HOME/.cache}/bowline
target=${CARGO_TARGET_DIR:-$cache/target}
PATH="$PATH:$HOME/.cargo/bin"

echo "run: building (the first time takes some minutes)"
# Neither optimised nor made for a debugger: a newcomer waits for the build, not for Bowline.
CARGO_TARGET_DIR=$target/run cargo build --quiet --locked -p bowline --config 'profile.dev.debug=false' --config 'profile.dev.package."*".opt-level=0'
bowline=$target/run/debug/bowline

scratch=$(mktemp -d "${TMPDIR:-/tmp}/bowline-run-XXXXXX")
"$bowline" up --data "$scratch" --http 127.0.0.1:0 --node worker-1 --peer worker-2 >"$scratch/log" 2>&1 &
pid=$!
stop() {
    trap - INT TERM EXIT
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    # What somebody mounted from it is theirs to unmount first.
    if ! grep -q " $scratch" /proc/self/mountinfo; then
        rm -rf "$scratch"
    else
        echo "run: something below $scratch is still mounted; it was left as it is"
    fi
}
trap 'stop; exit 0' INT TERM
trap stop EXIT

tries=0
until "$bowline" --data "$scratch" volume list >/dev/null 2>&1; do
    tries=$((tries + 1))
    if ! kill -0 "$pid" 2>/dev/null || [ "$tries" -gt 150 ]; then
        echo "run: it did not start:"
        cat "$scratch/log"
        exit 1
    fi
    sleep 0.2
done

if [ "$(id -u)" -ne 0 ]; then
    echo "run: you are not root: volumes can be made, attached and asked about, but not mounted (that needs loop devices and mounts);"
    echo "run: and a detach is not confirmed while the machine has loop devices, which only root may look at"
fi
cat <<EOF

Bowline is up, with two nodes, worker-1 and worker-2. Its data is in $scratch.
In another terminal, try:

  alias bowline='$bowline --data $scratch'
  bowline volume create db-0 --size 1Gi && bowline attach db-0 worker-1
  bowline attach db-0 worker-2          # refused: two writers are never let in
  bowline why db-0                      # who has it, who waits, and what would change that

CSI callers find it at unix://$scratch/csi.sock. Ctrl-C ends it.
EOF
wait "$pid"
