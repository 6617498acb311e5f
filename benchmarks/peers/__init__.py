"""FedAvg in this package, in other packages and in plain PyTorch: `make beside-peers`."""
