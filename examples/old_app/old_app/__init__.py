"""A Flower app of the old kind."""
