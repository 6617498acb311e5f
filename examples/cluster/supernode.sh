#!/bin/bash
#SBATCH --job-name=supernode --array=0-3 --cpus-per-task=4 --time=12:00:00
# One SuperNode of superlink.sh; every task of the array is one, and has the file of its data.
#
# DATA is the path of the data without the task's number: $DATA-0.npz, $DATA-1.npz, ...
set -euo pipefail
: "${SHARED:?is the folder of superlink.sh}" "${DATA:?is the path of the data}"
node=$SLURM_ARRAY_TASK_ID
export FLWR_HOME=$SHARED/flwr-$node FLWR_TELEMETRY_ENABLED=0

until [ -s "$SHARED/superlink" ]; do sleep 5; done
# Two tasks may be on one machine, so each has a port.
flower-supernode --insecure --superlink "$(cat "$SHARED/superlink")" --port $((9094 + node)) \
    --node-config "partition-id=$node data-path='$DATA-$node.npz'" &
supernode=$!
trap 'kill "$supernode" 2> /dev/null || true' EXIT
while [ -e "$SHARED/superlink" ] && kill -0 "$supernode"; do sleep 5; done
