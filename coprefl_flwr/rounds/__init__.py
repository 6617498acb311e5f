"""How a round runs: the base of all strategies, its exchanges, and what takes them to clients."""
