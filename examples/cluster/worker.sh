#!/bin/bash
#SBATCH --job-name=coprefl-worker --array=0-3 --cpus-per-task=8 --time=12:00:00
# One machine of the Ray cluster of head.sh; every task of the array is one.
set -euo pipefail
: "${SHARED:?is the folder of head.sh}"
export RAY_worker_niceness=0

until [ -s "$SHARED/head" ]; do sleep 5; done
# Ends when the head ends, with an error that means only this.
ray start --block --address="$(cat "$SHARED/head")" ${WORKER_ADDRESS:+--node-ip-address="$WORKER_ADDRESS"} \
    --num-cpus="$SLURM_CPUS_PER_TASK" --disable-usage-stats || [ ! -e "$SHARED/head" ]
