"""Forget what a process remembers of the user's files, as a new process begins without it."""

import sys
from pathlib import Path

from coprefl_flwr import plugins
from coprefl_flwr.studies import build

NOT_USERS = (Path(__file__).parents[2], Path(sys.prefix), Path(sys.base_prefix))


def new_process():
    """Forget the hashes of the user's files, the modules made of them, and built studies."""
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "")
        if file.is_absolute() and not any(map(file.is_relative_to, NOT_USERS)):
            del sys.modules[name]
    plugins._hash_of.cache_clear()
    for cached in (build._built, build.populations, build._personal_data):
        cached.cache_clear()
