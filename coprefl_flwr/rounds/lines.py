"""What the log says of nodes: no node can fill it."""

import logging
from collections import Counter

logger = logging.getLogger("flwr.coprefl")

LINES = 20
"""Lines of a round that are about one node; what follows is counted."""


class Lines:
    """The warnings of a round, by the node they are about."""

    def __init__(self) -> None:
        self._said: Counter[int] = Counter()

    def warn(self, node: int, line: str) -> None:
        """Log a line about a node, or count it."""
        self._said[node] += 1
        if self._said[node] <= LINES:
            logger.warning("%s", line)

    def new_round(self) -> None:
        """Tell how many lines were not shown, and begin anew."""
        for node, said in sorted(self._said.items()):
            if said > LINES:
                logger.warning("node %s: %s more such lines in this round", node, said - LINES)
        self._said.clear()
