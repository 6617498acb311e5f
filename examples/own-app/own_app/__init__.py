"""A Flower app for this example."""
