"""The methods that a study can name: the built-in ones, and a check of what a user chose."""

from collections.abc import Mapping, Sequence

from coprefl_flwr.errors import SettingsError, check_name
from coprefl_flwr.methods import CLASSES, HEAD, PRETRAINING, RANDOM, REFINED, find_class
from coprefl_flwr.studies.method import NO_METHODS, START, Method
from coprefl_flwr.studies.training_options import TrainingOptions

METHODS: Mapping[str, Method] = {name: Method(name) for name in (*CLASSES, *REFINED)}
"""{name: method} of all built-in methods, without options."""


def with_role(role: str) -> dict[str, Method]:
    """Return {name: method} of the built-in methods that have a role."""
    return {name: method for name, method in METHODS.items() if role in method.roles}


class Methods(tuple[Method, ...]):
    """A tuple of the methods that a study compares."""

    @classmethod
    def read(cls, value: object) -> "Methods":
        """Return Methods from Methods, from one Method, or from texts separated by spaces."""
        if isinstance(value, str):
            return cls(map(Method.parse, value.split()))
        return value if isinstance(value, Methods) else cls([Method.read(value)])

    def __str__(self) -> str:
        """Return the texts of the methods, separated by spaces."""
        return " ".join(map(str, self))

    @property
    def without_folders(self) -> str:
        """The texts of the methods, with file names instead of paths."""
        return " ".join(method.without_folders for method in self)

    def check(self, allowed: Sequence[str]) -> None:
        """Raise a SettingsError if there is no method, or if two have one text."""
        if not self:
            raise SettingsError(f"method is empty: name at least one of {', '.join(allowed)}")
        for method in self:
            if self.count(method) > 1:
                raise SettingsError(f"method contains '{method}' twice")


def in_role(what: str, method: Method, role: str, training: TrainingOptions) -> Method:
    """Return a method as a stage runs it: with its role, and with the training of each phase.

    A start or a head that is not trained is returned unchanged.

    Parameters
    ----------
    what : str
        The setting that names the method, for messages.
    method : Method
        The method that the user chose.
    role : str
        The role, out of `methods.ROLES`. Only a pre-training may have several phases.
    training : TrainingOptions
        The training of all methods, for what the method does not set itself.

    Raises a SettingsError for an unknown method or option, or an invalid value.
    """
    if role == PRETRAINING and (method == START or method.is_external):
        return method
    if role == HEAD and method in NO_METHODS:
        return method
    if role != PRETRAINING and method.then:
        raise SettingsError(f"{what}: '{method}': must be one method, without '+'", what)
    return method.changed(lambda phase: _phase_in_role(what, phase, role, training))


def _phase_in_role(what: str, phase: Method, role: str, training: TrainingOptions) -> Method:
    if phase.name == RANDOM:
        raise SettingsError(f"{what}: '{phase}': random has no settings or phases", what)
    untrained = {PRETRAINING: (START,), HEAD: NO_METHODS}.get(role, ())
    options = dict(phase.options)
    try:
        find_class(phase.name, role, [*map(str, untrained), *with_role(role)])
        has = [*phase.declared_options, *phase.training_keys(role)]
        for key in options:
            check_name("setting", key, has, phase.label)
        return phase.with_training(role, training)
    except SettingsError as error:
        elsewhere = [key for key in error.keys if key not in options]
        raise SettingsError(f"{what}, {phase}: {error}", *elsewhere, what) from error
