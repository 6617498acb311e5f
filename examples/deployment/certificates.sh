#!/usr/bin/env bash
# Make your own certificate authority and the SuperLink's certificate.
#
#   certificates.sh FOLDER [HOST ...]
#
# HOST is every DNS name and IP address under which nodes and users reach the SuperLink: they refuse
# a certificate without it. localhost and 127.0.0.1 are always included, because a SuperLink on
# 0.0.0.0 connects to itself there. FOLDER then contains
#   ca.crt                  goes to every node and to everyone who calls `flwr run`
#   server.pem, server.key  go to the SuperLink
#   ca.key                  signs further certificates; keep it off all of these machines
set -euo pipefail

[ $# -ge 1 ] || { echo "usage: certificates.sh FOLDER [HOST ...]" >&2; exit 2; }
command -v openssl > /dev/null || { echo "certificates.sh: there is no openssl on PATH" >&2; exit 1; }
umask 077
folder=$1
shift
mkdir -p "$folder"
cd "$folder"
[ ! -e ca.key ] || { echo "certificates.sh: $folder holds a ca.key already" >&2; exit 1; }

names=DNS:localhost,IP:127.0.0.1
for host; do
    if [[ $host =~ ^[0-9.]+$|: ]]; then names+=",IP:$host"; else names+=",DNS:$host"; fi
done
printf '[server]\nsubjectAltName = %s\nauthorityKeyIdentifier = keyid\n' "$names" > server.cnf

key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
key ca.key
openssl req -new -x509 -key ca.key -sha256 -days 365 -subj "/CN=coprefl-flwr CA" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -out ca.crt
key server.key
openssl req -new -key server.key -subj "/CN=SuperLink" -out server.csr
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -sha256 -days 365 \
    -extfile server.cnf -extensions server -out server.pem 2> server.log ||
    { cat server.log >&2; exit 1; }
rm -f ca.srl server.cnf server.csr server.log
