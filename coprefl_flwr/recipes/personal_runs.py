"""The runs of a personalised recipe: one method with one seed.

MODELS/KEY/method.json                      how it was made
MODELS/KEY/result.json                      rows per client, metrics per round, numbers sent
MODELS/KEY/global.safetensors, ...          as in a study's folder (`personalised`)
MODELS/KEY/checkpoint.safetensors           while it is under way
MODELS/features/KEY/CLIENT-{train,test}.npy what backbones made of images, for every run with these
"""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from flwr.serverapp import Grid

import coprefl_flwr
from coprefl_flwr.files import write_atomically
from coprefl_flwr.recipes.store import (
    NO_RESULT,
    OF_CLASSES,
    OF_TASKS,
    Run,
    Store,
    Track,
    contents,
    hash_of,
)
from coprefl_flwr.recipes.yaml_file import Located
from coprefl_flwr.studies.methods import LOCAL_SETTINGS, Method
from coprefl_flwr.studies.personal_methods import (
    OF_PERSONAL,
    PERSONAL_METHODS,
    check_meant,
    is_personalised,
    personal_phase,
)
from coprefl_flwr.studies.personalised import RESULT, check, run_method
from coprefl_flwr.studies.progress import PERSONAL_KIND, Progress
from coprefl_flwr.studies.runs import versions
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.starts import Phase, own_settings

ABOUT = "method.json"

OF_DIRICHLET = ("alpha", "min-samples")
OF_FEATURES = ("seed", "dataset", "image-size", *OF_DIRICHLET, *OF_PERSONAL)
"""Settings that the clients' features depend on, and the normalisation in their heads."""


def personalised(tree: Mapping[str, Located]) -> bool:
    """Tell whether a recipe is of personalised runs, as `is_personalised` tells of settings."""
    settings = tree["settings"].mapping("settings") if "settings" in tree else {}
    methods = " ".join(_methods(tree["methods"])) if "methods" in tree else ""
    return bool(settings.keys() & set(OF_PERSONAL)) or is_personalised(Settings(method=methods))


def _methods(entry: Located) -> list[str]:
    """Return the methods that a recipe's rows name, as far as they can be read."""
    found = []
    for row in entry.items():
        given = row.value if isinstance(row.value, dict) else {str(row.value): Located(None, "")}
        for label, inner in given.items():
            named = inner.value.get("method") if isinstance(inner.value, dict) else None
            found += str(named.value if named else label).split("+")
    return found


class PersonalRun(Run):
    """One method of a personalised study: its result is that of a single task.

    `settings` names one method.
    """

    methods: ClassVar[Mapping[str, Method]] = PERSONAL_METHODS
    untrained: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def read(settings: Settings, name: str) -> None:
        """Raise a SettingsError if `method` cannot name this, data aside."""
        check_meant(settings)
        personal_phase(settings, name)

    def check(self) -> None:
        """Raise a SettingsError if the run cannot be made as set."""
        check(self.settings)

    @property
    def tasks(self) -> int:
        """One: the study itself."""
        return 1

    @property
    def units(self) -> list[str]:
        """What its value is of."""
        return [f"seed {self.settings.seed}"]

    @property
    def switch(self) -> int:
        """None: there is one phase."""
        return 0

    @property
    def parts(self) -> list[tuple[str, int]]:
        """The kind and the rounds of its only part."""
        return [(PERSONAL_KIND, self.phase.settings.rounds)]

    @property
    def phase(self) -> Phase:
        """The method with its settings."""
        return personal_phase(self.settings, self.name)

    @property
    def key(self) -> str:
        """Name of the run: its method, and the hash of all that it depends on."""
        config = self.settings.to_config()
        of_methods = {*own_settings(), *LOCAL_SETTINGS}
        found: dict[str, Any] = {
            key: value
            for key, value in config.items()
            if key not in {*NO_RESULT, *OF_TASKS, *OF_CLASSES, *of_methods}
            and not key.startswith("task-")
        }
        found = self._heeded(found)
        found |= {"personalised": self.phase.own_settings(), "version": coprefl_flwr.__version__}
        found["contents"] = contents(config)
        return f"{self.phase.name}-{hash_of(found)}"

    @property
    def features(self) -> str:
        """Where its features are, in the store."""
        config = self.settings.to_config()
        found = self._heeded({key: config[key] for key in OF_FEATURES})
        found["contents"] = contents(config)
        return f"features/{hash_of(found | {'version': coprefl_flwr.__version__})}"

    def _heeded(self, config: dict[str, Any]) -> dict[str, Any]:
        """Leave out what is said of the Dirichlet partition where there is none."""
        left = OF_DIRICHLET if self.settings.shift == "feature" else ()
        return {key: value for key, value in config.items() if key not in left}

    def task_file(self, number: int) -> str:
        """Return where its result is written, in the run's folder."""
        return RESULT

    @property
    def files(self) -> list[str]:
        """What is in the run's folder once all is done."""
        return [RESULT]

    def make(self, grid: Grid, store: Store, progress: Progress, track: Track) -> None:
        """Run the method, unless its result is there."""
        folder = store.folder(self)
        about = {
            "method": self.phase.name,
            **self.phase.own_settings(),
            "settings": self.settings.to_config(),
            "versions": versions(),
        }
        if not store.done(self):
            write_atomically(folder / ABOUT, json.dumps(about, indent=1).encode())
        features = store.root / self.features
        run_method(self.phase, self.name, grid, folder, features, progress, track(self.key))
