#!/usr/bin/env bash
# Deploy this folder's app on this machine, run it, and stop everything again.
#
#   run.sh insecure|tls FOLDER [NODES] [flwr run options ...]
#
# One SuperLink and NODES SuperNodes (default 2) use free ports of the loopback interface: without
# encryption, or with TLS, where every node has a key and unknown keys are refused. FOLDER is created
# and contains everything: each node's data, keys, logs, Flower's files (a FLWR_HOME for every
# process, as on separate machines) and, in outputs/, the model. Exits with 0 only if the run completed.
#   Example: run.sh tls /tmp/deployment 3 -c "rounds=5 gamma=0.25"
# SUPERNODE is the command of a node, by default flower-supernode: SUPERNODE="python $PWD/warm_node.py"
set -euo pipefail

fail() {
    echo "run.sh: $*" >&2
    exit 1
}

usage="usage: run.sh insecure|tls FOLDER [NODES] [flwr run options ...]"
mode=${1:-} folder=${2:-} nodes=${3:-2}
shift $(($# < 3 ? $# : 3))
app=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
read -r -a supernode <<< "${SUPERNODE:-flower-supernode}"

[ -n "$folder" ] || fail "$usage"
[ "$mode" = insecure ] || [ "$mode" = tls ] || fail "mode '$mode' is not known; $usage"
[[ $nodes =~ ^[1-9][0-9]*$ ]] || fail "'$nodes' is no number of nodes; $usage"
for command in flwr flower-superlink flower-supernode python setsid; do
    command -v $command > /dev/null ||
        fail "there is no $command on PATH; activate the environment that has coprefl-flwr"
done
if [ "$mode" = tls ]; then
    for command in openssl ssh-keygen; do
        command -v $command > /dev/null || fail "there is no $command on PATH; tls needs it"
    done
fi
umask 077
mkdir -p "$(dirname "$folder")"
mkdir "$folder" 2> /dev/null || fail "$folder is there already, or cannot be made; name a new folder"
folder=$(cd "$folder" && pwd)
mkdir "$folder"/{data,flwr,keys,logs,outputs,pids,tmp}
export TMPDIR=$folder/tmp XDG_CACHE_HOME=$folder/tmp XDG_CONFIG_HOME=$folder/tmp
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1

groups=()
stop() {
    local status=$?
    trap '' EXIT INT TERM
    signal TERM || true
    for _ in $(seq 50); do
        signal 0 || break
        sleep 0.2
    done
    signal KILL || true
    exit "$status"
}
# Send a signal to all that was started; fails if none of it is alive any more.
signal() {
    local alive=1
    for group in ${groups[@]+"${groups[@]}"}; do
        if kill "-$1" -- "-$group" 2> /dev/null; then alive=0; fi
    done
    return $alive
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# start NAME COMMAND ...: in a session of its own, so that it and its children are one group to stop.
start() {
    local name=$1
    shift
    mkdir -p "$folder/flwr/$name"
    (cd "$folder" && FLWR_HOME=$folder/flwr/$name exec setsid "$@") \
        > "$folder/logs/$name.log" 2>&1 < /dev/null &
    groups+=($!)
    echo $! > "$folder/pids/$name"
}

check_alive() {
    if ! kill -0 "$(cat "$folder/pids/$1")" 2> /dev/null; then
        tail -n 20 "$folder/logs/$1.log" >&2
        fail "$1 has ended; the end of $folder/logs/$1.log is above"
    fi
}

read -r -a ports < <(python - $((nodes + 1)) <<'PY'
import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(s.getsockname()[1] for s in sockets))
PY
)
address=127.0.0.1:${ports[0]}

if [ "$mode" = tls ]; then
    "$app/certificates.sh" "$folder/keys"
    trust="root-certificates = \"$folder/keys/ca.crt\""
    superlink=(--ssl-ca-certfile "$folder/keys/ca.crt" --ssl-certfile "$folder/keys/server.pem"
        --ssl-keyfile "$folder/keys/server.key" --enable-supernode-auth)
else
    trust="insecure = true"
    superlink=(--insecure)
fi
mkdir "$folder/flwr/user"
cat > "$folder/flwr/user/config.toml" <<TOML
[superlink]
default = "deployment"
[superlink.deployment]
address = "$address"
$trust
TOML
export FLWR_HOME=$folder/flwr/user

echo "run.sh: cutting the glyphs into a file for each of $nodes nodes"
python "$app/cut_data.py" "$folder/data" "$nodes"

echo "run.sh: starting a SuperLink on $address ($mode)"
start superlink flower-superlink "${superlink[@]}" --host 127.0.0.1 --port "${ports[0]}" \
    --database "$folder/flwr/superlink.db" --disable-runtime-dependency-installation
for second in $(seq 60); do
    if (: < "/dev/tcp/127.0.0.1/${ports[0]}") 2> /dev/null; then break; fi
    check_alive superlink
    [ "$second" -lt 60 ] || fail "the SuperLink did not open its port within 60 s"
    sleep 1
done

for ((node = 0; node < nodes; node++)); do
    if [ "$mode" = tls ]; then
        ssh-keygen -q -t ecdsa -b 384 -N "" -C "node-$node" -f "$folder/keys/node-$node"
        flwr supernode register "$folder/keys/node-$node.pub" --name "node-$node"
        credentials=(--root-certificates "$folder/keys/ca.crt"
            --auth-supernode-private-key "$folder/keys/node-$node")
    else
        credentials=(--insecure)
    fi
    start "node-$node" "${supernode[@]}" "${credentials[@]}" --superlink "$address" \
        --port "${ports[node + 1]}" \
        --node-config "partition-id=$node data-path='$folder/data/node-$node.npz'"
done

limit=$((SECONDS + 120)) online=0
while [ "$online" -lt "$nodes" ]; do
    for ((node = 0; node < nodes; node++)); do check_alive "node-$node"; done
    [ $SECONDS -lt $limit ] || fail "only $online of $nodes nodes are online after 120 s"
    online=$(flwr supernode list --format json | python -c \
        'import json, sys; print(sum(n["status"] == "online" for n in json.load(sys.stdin)["nodes"]))')
    echo "run.sh: $online of $nodes nodes are online"
done

# In the background: bash would answer a signal only after a foreground command has ended.
setsid flwr run "$app" --stream \
    -c "output-dir='$folder/outputs' min-available-nodes=$nodes participants=$nodes" "$@" < /dev/null &
groups+=($!)
wait $! || fail "flwr run failed; logs are in $folder/logs"
status=$(flwr list --format json | python -c \
    'import json, sys; print(json.load(sys.stdin)["runs"][0]["status"])')
echo "run.sh: status of the run: $status"
[ "$status" = finished:completed ] || fail "the run did not complete; logs are in $folder/logs"
printf 'run.sh: the model is %s\n' "$folder"/outputs/*/model.safetensors
