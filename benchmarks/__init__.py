"""The time that this package and Flower add to a plain PyTorch loop: `python -m benchmarks`."""
