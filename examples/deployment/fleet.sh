#!/usr/bin/env bash
# What compose.yaml does once before its SuperLink and its nodes start.
#
#   fleet.sh keys       certificates for the hosts FLEET_HOSTS, and each node's pair of keys and data
#   fleet.sh register   the nodes' public keys, at the SuperLink FLEET_ADDRESS
#
# Every folder of /ca, /trust, /server, /node-0 ... is a volume; FLEET_ROOT is put before their paths.
# FLEET_NODES is the number of nodes (default 3). Both commands do nothing that was done before.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${FLEET_ROOT:-} nodes=${FLEET_NODES:-3}

case ${1:-} in
keys)
    [ ! -e "$root/trust/ca.crt" ] || exit 0
    rm -f "$root"/ca/* # Of a start that was interrupted.
    read -r -a hosts <<< "${FLEET_HOSTS:-}"
    "$here/certificates.sh" "$root/ca" ${hosts[@]+"${hosts[@]}"}
    mv "$root/ca/server.pem" "$root/ca/server.key" "$root/server/"
    python "$here/cut_data.py" "$root/ca/data" "$nodes"
    for ((node = 0; node < nodes; node++)); do
        rm -f "$root/node-$node/key"
        ssh-keygen -q -t ecdsa -b 384 -N "" -C "node-$node" -f "$root/node-$node/key"
        cp "$root/node-$node/key.pub" "$root/trust/node-$node.pub"
        mv "$root/ca/data/node-$node.npz" "$root/node-$node/data.npz"
    done
    rmdir "$root/ca/data"
    cp "$root/ca/ca.crt" "$root/trust/ca.crt"
    ;;
register)
    printf '[superlink]\ndefault = "fleet"\n[superlink.fleet]\naddress = "%s"\nroot-certificates = "%s"\n' \
        "$FLEET_ADDRESS" "$root/trust/ca.crt" > "$FLWR_HOME/config.toml"
    for ((node = 0; node < nodes; node++)); do
        [ ! -e "$FLWR_HOME/registered-$node" ] || continue
        flwr supernode register "$root/trust/node-$node.pub" --name "node-$node"
        touch "$FLWR_HOME/registered-$node"
    done
    ;;
*)
    echo "usage: fleet.sh keys|register" >&2
    exit 2
    ;;
esac
