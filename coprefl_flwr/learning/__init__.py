"""Training, losses, gradients and the meta objective, on the data of one client or the server."""
