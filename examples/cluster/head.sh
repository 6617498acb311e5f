#!/bin/bash
#SBATCH --job-name=coprefl-head --cpus-per-task=2 --time=12:00:00
# The head of a Ray cluster, and `coprefl run` on it; worker.sh is the rest of the cluster.
#
#   export SHARED=/shared/first RECIPE=$HOME/first.yaml WORKERS=32
#   sbatch head.sh
#   sbatch --array=0-3 --cpus-per-task=8 worker.sh
#
# SHARED is a folder that all machines see, WORKERS the number of processes: the workers' CPUs in all.
# HEAD_ADDRESS is this machine's address, by default the first one. When the job ends, so do the
# workers. Submit it again to continue the recipe.
set -euo pipefail
: "${SHARED:?is a folder that all machines see}" "${RECIPE:?is the file of a recipe}" "${WORKERS:?}"
address=${HEAD_ADDRESS:-$(hostname -I | cut -d' ' -f1)} port=${HEAD_PORT:-6379}
export RAY_worker_niceness=0

stop() {
    rm -f "$SHARED/head"
    kill "$ray" 2> /dev/null || true
    wait "$ray" || true
}
mkdir -p "$SHARED"
rm -f "$SHARED/head"
# Without CPUs for Ray, so that all runs are on the workers.
ray start --head --block --node-ip-address="$address" --port="$port" --num-cpus=0 \
    --include-dashboard=false --disable-usage-stats &
ray=$!
trap stop EXIT
until ray health-check --address "$address:$port" > /dev/null 2>&1; do
    kill -0 "$ray"
    sleep 1
done
echo "$address:$port" > "$SHARED/head.part"
mv "$SHARED/head.part" "$SHARED/head"
RAY_ADDRESS=$address:$port coprefl run "$RECIPE" --workers "$WORKERS" \
    --out "$SHARED/$(basename "${RECIPE%.*}")"
