"""How a round runs: the base class of strategies, and what brings their exchanges to clients."""
