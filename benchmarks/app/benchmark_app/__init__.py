"""The benchmark as an app for `flwr run`; `benchmarks` is on the path of all its processes."""

from benchmarks import federation

server = federation.server
client = federation.client
