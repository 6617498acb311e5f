"""The benchmark as an app for `flwr run`; all its processes can import `benchmarks`."""

from benchmarks import federation

server = federation.server
client = federation.client
