"""The tally of a round: how many clients answered each exchange, and why the others did not."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from coprefl_flwr.errors import excerpt
from coprefl_flwr.federation.exchange import Exchange
from coprefl_flwr.federation.messages import NodeReply, program_error

MOST_NAMED = 5
"""Largest number of clients of an exchange that a line names; the others are counted."""


@dataclass
class Tally:
    """The outcomes of the exchanges since the last line, as {action: {client id: reason}}.

    The reason is "" for a client with a good reply. Consecutive exchanges with the same action,
    such as the links of a chain, count as one.
    """

    outcomes: dict[str, dict[int, str]] = field(default_factory=dict)

    def add(self, exchange: Exchange, asked: Collection[int], replies: Iterable[NodeReply]) -> None:
        """Add an exchange with the replies of the nodes.

        Its clients outside `asked` were disconnected. A client that was asked, but is in no reply,
        has not answered in time.
        """
        outcome = self.outcomes.setdefault(exchange.action, {})
        outcome |= {c: "timeout" if c in asked else "disconnected" for c in exchange.clients}
        for reply in replies:
            outcome |= reply.failed | dict.fromkeys(reply.metrics, "")

    def shared_error(self) -> str:
        """Return a line if all clients of the last action failed with the same program error.

        Otherwise return "", also if there was only one client, whose data may be the cause.
        """
        action, outcome = next(reversed(self.outcomes.items()), ("", {}))
        error = program_error(outcome.values()) if len(outcome) > 1 else ""
        return error and f"{action}: all {len(outcome)} clients failed with {error}"

    def line(self, called: Callable[[int], str]) -> str:
        """Return e.g. "train: 9 of 10, query: 8 of 9 (partition 3: timeout)", and begin again.

        `called` returns the name of a client. The line is "" if there was no exchange.
        """
        parts = []
        for action, outcome in self.outcomes.items():
            lost = [f"{called(c)}: {excerpt(why)}" for c, why in sorted(outcome.items()) if why]
            more = [f"{len(lost) - MOST_NAMED} more"] if len(lost) > MOST_NAMED else []
            named = f" ({', '.join(lost[:MOST_NAMED] + more)})" if lost else ""
            action = action.removeprefix("train.")
            parts.append(f"{action}: {len(outcome) - len(lost)} of {len(outcome)}{named}")
        self.outcomes.clear()
        return ", ".join(parts)
