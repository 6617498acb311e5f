"""A Flower app of one's own."""
