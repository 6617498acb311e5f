"""How much this package and Flower add to the plain PyTorch loop: `python -m benchmarks`."""
