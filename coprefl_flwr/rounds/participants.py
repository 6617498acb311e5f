"""Which clients take part in a round."""

import numpy as np

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.rounds.transport import Transport

DRAWN = ("participants", "fraction_train")
"""Options that say how many: each strategy's own, not the run's."""


def drawn(
    link: Transport, wanted: int | None, fraction: float | None, rng: np.random.Generator
) -> list[int]:
    """Return the ids of `wanted` clients, or of a fraction of all, or of all, ascending.

    A fraction is rounded down, as Flower's is, but to one client at least.
    """
    first = not link.begun
    clients = link.clients(wanted)
    if wanted is not None and wanted > len(clients) and first:
        raise SettingsError(f"participants = {wanted}: there are only {len(clients)} clients")
    if fraction is not None:
        wanted = max(1, int(fraction * len(clients)))
    if wanted is None or wanted >= len(clients):
        return list(clients)
    positions = rng.choice(len(clients), wanted, replace=False)
    return sorted(clients[position] for position in positions)
