"""Forget what a process remembers of the user's files, as a new process begins without it."""

import sys

from coprefl_flwr import client_app, plugins
from coprefl_flwr.studies import build


def new_process():
    """Forget the texts of the user's files, the modules made of them, and built studies."""
    read = set(map(str, plugins._texts))
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")) in read:
            del sys.modules[name]
    plugins._texts.clear()
    plugins._files.cache_clear()
    client_app._study.cache_clear()
    for cached in (build._built, build.populations, build._personal_data):
        cached.cache_clear()
