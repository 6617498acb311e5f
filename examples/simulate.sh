#!/usr/bin/env bash
# Run a Flower app under Flower's simulation, on a separate SuperLink, and report success or failure.
#
#   examples/simulate.sh APP [NODES] [flwr run options ...]
#
# APP is the app's folder, NODES the number of nodes of one CPU that host the clients (default 2).
# Without this script, `flwr run` would use the SuperLink that it finds or starts on a fixed port,
# leave it running, install the app's dependencies again, and exit with 0 even if the run failed.
# This script
#   - names a setting of -c that does not exist,
#   - starts Ray here, unless RAY_ADDRESS names a cluster to join,
#   - keeps Flower's files in $SIMULATION_HOME (default: a new folder, removed if all went well),
#   - takes a free port, and uses the packages of the active environment,
#   - exits with 0 only if the run's status is finished:completed,
#   - always stops everything that it started,
#   - leaves out colour codes if its output goes to a file, or if $NO_COLOR is set.
# $FEDERATION_CONFIG adds to flwr's --federation-config (GPU shares, number of processes).
# Relative paths in the settings (output-dir, dataset) are relative to the current folder.
set -euo pipefail

app=$(cd "${1:?usage: examples/simulate.sh APP [NODES] [flwr run options ...]}" && pwd)
nodes=${2:-2}
shift $(($# < 2 ? $# : 2))

for command in flower-superlink flwr python ps; do
    if ! command -v "$command" > /dev/null; then
        echo "simulate.sh: no $command on PATH; is the environment with coprefl-flwr active?" >&2
        exit 1
    fi
done

home=${SIMULATION_HOME:-$(mktemp -d)}
[ -n "${SIMULATION_HOME:-}" ] || remove_home=yes
export FLWR_HOME=$home FLWR_TELEMETRY_ENABLED=0 RAY_DEDUP_LOGS=0
# Without it Ray joins any cluster that a program left running, or waits for one that is gone.
export RAY_ADDRESS=${RAY_ADDRESS:-local}
# Ray's own priority leaves its processes next to nothing beside a busy program.
export RAY_worker_niceness=${RAY_worker_niceness:-0}
# Ray warns of a coming change in how it hides GPUs from a process without any: take the new way.
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0
export FLWR_DISABLE_UPDATE_CHECK=1 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2
mkdir -p "$home"

port=$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat > "$home/config.toml" <<TOML
[superlink]
default = "private"
[superlink.private]
address = "127.0.0.1:$port"
insecure = true
TOML

# In a session of its own, Ctrl-C reaches this script alone, which then stops it in order.
python -c 'import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])' \
    flower-superlink --insecure --simulation --disable-runtime-dependency-installation \
    --host 127.0.0.1 --port "$port" > "$home/superlink.log" 2>&1 < /dev/null &
superlink=$!
descendants() { # of process $1; Flower and Ray put theirs into sessions of their own
    ps -eo pid=,ppid= | awk -v root="$1" '
        { parent[$1] = $2 }
        END { for (p in parent) { q = p; while (q in parent && q != root) q = parent[q]
                                  if (q == root && p != root) print p } }'
}
stop() {
    status=$?
    trap - EXIT INT TERM
    started="$superlink $(descendants "$superlink" || true) ${run:-}"
    kill -TERM "$superlink" 2> /dev/null || true
    for _ in $(seq 75); do
        # shellcheck disable=SC2086
        kill -0 $started 2> /dev/null || break
        sleep 0.2
    done
    # A worker that never comes back, and what waits for it.
    # shellcheck disable=SC2086
    kill -KILL $started 2> /dev/null || true
    if [ "${remove_home:-}" = yes ] && [ "$status" = 0 ]; then
        rm -rf "$home"
    elif [ "$status" != 0 ]; then
        # Such as a setting that does not exist, which `flwr run` does not name.
        grep -o "Could not start run: .*" "$home/superlink.log" >&2 || true
        echo "simulate.sh: Flower's logs are in $home" >&2
    fi
    exit "$status"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for _ in $(seq 150); do
    python - "$port" <<'PY' && ready=yes && break
import socket, sys
sys.exit(socket.socket().connect_ex(("127.0.0.1", int(sys.argv[1]))))
PY
    if ! kill -0 "$superlink" 2> /dev/null; then break; fi
    sleep 0.2
done
if [ -z "${ready:-}" ]; then
    cat "$home/superlink.log" >&2
    echo "simulate.sh: the SuperLink did not start" >&2
    exit 1
fi

start() {
    exec flwr run "$app" --stream "$@" \
        --federation-config "num-supernodes=$nodes client-resources-num-cpus=1 ${FEDERATION_CONFIG:-}"
}
plain() { # Flower colours its log wherever it goes, Ray what it puts before a worker's line.
    exec python -c '
import re, sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(re.sub(rb"\x1b\[[0-9;]*m", b"", line))
    sys.stdout.buffer.flush()'
}
# In the background: a signal would else be heard only once the run is over.
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    start "$@" &
    run=$!
else
    rm -f "$home/stdout" "$home/stderr"
    mkfifo "$home/stdout" "$home/stderr"
    plain < "$home/stdout" &
    shown=$!
    plain < "$home/stderr" >&2 &
    shown="$shown $!"
    start "$@" > "$home/stdout" 2> "$home/stderr" &
    run=$!
fi
wait "$run" || failed=$?
# shellcheck disable=SC2086
[ -z "${shown:-}" ] || wait $shown
rm -f "$home/stdout" "$home/stderr"
[ -z "${failed:-}" ] || exit "$failed"
status=$(flwr list --format json | python -c 'import json, sys; print(json.load(sys.stdin)["runs"][0]["status"])')
echo "status of the run: $status"
[ "$status" = "finished:completed" ]
