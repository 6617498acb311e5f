#!/bin/bash
#SBATCH --job-name=superlink --cpus-per-task=2 --time=12:00:00
# A SuperLink, and one run of a Flower app on it; supernode.sh is the nodes.
#
#   export SHARED=/shared/first APP=$HOME/coprefl-flwr/examples/deployment NODES=4
#   sbatch superlink.sh
#   sbatch --array=0-3 supernode.sh
#
# Without TLS: only for a cluster whose network and users you trust. SHARED is a folder that all
# machines see; the run's files go to SHARED/outputs. More options of `flwr run` are arguments.
set -euo pipefail
: "${SHARED:?is a folder that all machines see}" "${APP:?is the folder of an app}" "${NODES:?}"
address=${HEAD_ADDRESS:-$(hostname -I | cut -d' ' -f1)} port=${HEAD_PORT:-8000}
export FLWR_HOME=$SHARED/flwr-server FLWR_TELEMETRY_ENABLED=0

stop() {
    rm -f "$SHARED/superlink"
    kill "$superlink" 2> /dev/null || true
    wait "$superlink" || true
}
mkdir -p "$FLWR_HOME"
rm -f "$SHARED/superlink"
cd "$SHARED"
printf '[superlink]\ndefault = "job"\n[superlink.job]\naddress = "%s"\ninsecure = true\n' \
    "$address:$port" > "$FLWR_HOME/config.toml"
flower-superlink --insecure --host "$address" --port "$port" \
    --disable-runtime-dependency-installation &
superlink=$!
trap stop EXIT
until (: < "/dev/tcp/$address/$port") 2> /dev/null; do
    kill -0 "$superlink"
    sleep 1
done
echo "$address:$port" > "$SHARED/superlink.part"
mv "$SHARED/superlink.part" "$SHARED/superlink"
flwr run "$APP" --stream \
    -c "output-dir='$SHARED/outputs' min-available-nodes=$NODES participants=$NODES" "$@"
flwr list --format json > "$SHARED/runs.json"
python -c 'import json, sys; run = json.load(sys.stdin)["runs"][0]
sys.exit(run["status"] != "finished:completed" and "the run: " + run["status"])' < "$SHARED/runs.json"
