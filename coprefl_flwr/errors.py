"""What this package raises, and why a run ended."""


class SettingsError(ValueError):
    """Something the user set cannot be used; one line says what, and what is allowed."""


class RoundFailedError(RuntimeError):
    """An attempt at a round came to nothing; it can be repeated with other clients."""


class RunFailedError(RuntimeError):
    """A run ended without a result; the last checkpoint, if any, is good."""
