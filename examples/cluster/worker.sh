#!/bin/bash
#SBATCH --job-name=coprefl-worker --array=0-3 --cpus-per-task=8 --time=12:00:00
# One machine of the Ray cluster of head.sh; every task of the array is one.
set -euo pipefail
: "${SHARED:?is the folder of head.sh}"
export RAY_worker_niceness=0

until [ -s "$SHARED/head" ]; do sleep 5; done
# Ray ends with the head, and if it did not start within 30 s, as on a busy machine.
while address=$(cat "$SHARED/head" 2> /dev/null); do
    ray start --block --address="$address" ${WORKER_ADDRESS:+--node-ip-address="$WORKER_ADDRESS"} \
        --num-cpus="$SLURM_CPUS_PER_TASK" --disable-usage-stats || sleep 5
done
