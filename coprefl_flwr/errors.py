"""What this package raises, and why a run ended."""


class SettingsError(ValueError):
    """Something the user set cannot be used; one line says what, and what is allowed.

    `key` is the setting that it is about, if it is about one: a recipe says where that stands.
    """

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class RoundFailedError(RuntimeError):
    """An attempt at a round came to nothing; it can be repeated with other clients."""


class RunFailedError(RuntimeError):
    """A run ended without a result; the last checkpoint, if any, is good."""


def one_line(error: Exception) -> str:
    """Return an exception as one line, with its type unless the message is written for people."""
    text = " ".join(str(error).split())
    written = isinstance(error, ValueError | RoundFailedError | RunFailedError) and text
    return text if written else f"{type(error).__name__}: {text}"
