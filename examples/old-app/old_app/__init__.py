"""A Flower app in the old form."""
