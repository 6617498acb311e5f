"""What the log says of nodes: no node can fill it."""

import logging
from collections import Counter

logger = logging.getLogger("flwr.coprefl")

LINES = 20
"""Lines of a round that are about one node, or nodes that are gone; what follows is counted."""
GONE = "nodes that are gone"
DISPUTED = "clients that several nodes name"
METRICS = "metrics of many names"


class Lines:
    """The warnings of a round, by what they are about: a node, or one of the above."""

    def __init__(self) -> None:
        self._said: Counter[str] = Counter()

    def warn(self, node: int | str, line: str) -> None:
        """Log a line about a node or one of the above, or count it."""
        about = node if isinstance(node, str) else f"node {node}"
        self._said[about] += 1
        if self._said[about] <= LINES:
            logger.warning("%s", line)

    def new_round(self) -> None:
        """Tell how many lines were not shown, and begin anew."""
        for about, said in sorted(self._said.items()):
            if said > LINES:
                logger.warning("%s: %s more such lines in this round", about, said - LINES)
        self._said.clear()
