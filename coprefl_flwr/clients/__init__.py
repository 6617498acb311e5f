"""What a client does, one algorithm a file, and the ClientApp around them."""

from coprefl_flwr.clients.app import client_app, query_reply
from coprefl_flwr.clients.coprefl import CoPreFLClient
from coprefl_flwr.clients.torch_client import TorchClient

__all__ = ["CoPreFLClient", "TorchClient", "client_app", "query_reply"]
