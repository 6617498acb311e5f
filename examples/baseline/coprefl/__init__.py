"""CoPreFL: a Flower Baseline."""
