"""A grid on Ray: nodes in separate processes, on this machine or on a cluster.

Ray starts on this machine at the first grid, unless RAY_ADDRESS names a cluster, whose machines
must share the folder that clients keep files in.
"""

import contextlib
import copy
import itertools
import logging
import math
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from flwr.app import ArrayRecord, Error, Message, RecordDict

from coprefl_flwr import plugins
from coprefl_flwr.arrays import NUMPY, Arrays, from_record, records_of, to_record
from coprefl_flwr.errors import RunFailedError, SettingsError, cut, one_line
from coprefl_flwr.federation.flower import check_cluster, enter_run, without_colours
from coprefl_flwr.federation.machine import one_thread
from coprefl_flwr.grids.local import ClientAppFn, LocalGrid, run_app

START_UP = 120.0
"""Longest wait in seconds for processes that start."""

FREED = 5.0
"""Seconds within which Ray counts the CPUs of processes that were ended as free again."""

DIED = "its process died, and the process that replaced it died too"
"""Of a node whose message was asked twice in vain: killed, out of memory, or ended by a client."""

Pending = tuple[Message, Any]
"""A message that a process is to answer, and Ray's reference to its reply."""


class Host:
    """A process in which nodes run: one thread, which holds app, data and model between messages.

    Ray starts it again when it dies, and asks it again, once, what it was being asked. It knows
    nothing then of what was in its memory; clients' states are in files.
    """

    def __init__(self) -> None:
        one_thread()
        without_colours()
        self._loaded: tuple[str, ClientAppFn, Mapping[int, Any]] | None = None

    def adopt(self, registered: plugins.Registered) -> None:
        """Add the registered parts of the process that asks, by name, to this process."""
        plugins.REGISTERED.update(registered)

    def answer(
        self, grid: str, setup: Sequence[Any], message: Message, names: Sequence[str], *arrays: Any
    ) -> tuple[Message, dict[str, Arrays]]:
        """Run the ClientApp on a message; return the reply and, apart from it, its arrays.

        `setup` holds a reference to the app and the nodes' contexts of this grid, which are fetched
        once. Records of `names` are `arrays`, views of what all processes of a machine share.
        """
        import ray

        if self._loaded is None or self._loaded[0] != grid:
            self._loaded = None  # Not two apps, each with its data.
            registered, app, contexts = ray.get(setup[0])
            self.adopt(registered)
            self._loaded = (grid, app, contexts)
        _, app, contexts = self._loaded
        enter_run(run_id=1, node_id=1)
        _put(message, dict(zip(names, arrays, strict=True)), copy=False)
        reply = run_app(app, message, contexts[message.metadata.dst_node_id])
        return _split_arrays(reply)


class RayGrid(LocalGrid):
    """Runs a `ClientApp` on nodes in separate processes, all at the same time.

    Node i of `nodes` has `partition-id` i of `num-partitions`, as in a simulation. A process has
    one thread, and loads data and model once; GPUs are shared evenly. `close()`, or the end of a
    `with`, ends the processes, and Ray too if it was started for this grid: another grid that was
    made meanwhile ends with it.

    Parameters
    ----------
    workers : int, optional
        How many processes; of fewer than nodes each has several. Not set: one a node.
    hosts : sequence, optional
        Processes that are there already and stay, one a node; None means this process.
    """

    def __init__(
        self,
        client_app: ClientAppFn,
        nodes: int = 1,
        run_config: Mapping[str, Any] | None = None,
        *,
        workers: int | None = None,
        hosts: Sequence[Any] | None = None,
    ) -> None:
        import ray

        super().__init__(client_app, nodes, run_config)
        number = min(workers or nodes, nodes)
        self._started = hosts is None and connect(number)
        self._own = start_hosts(number) if hosts is None else []
        # One after the other, so that each process has as many as the next, or one more.
        self._host = dict(zip(self._contexts, itertools.cycle(hosts or self._own), strict=False))
        self._name = uuid.uuid4().hex
        self._setup = [ray.put((plugins.REGISTERED, client_app, self._contexts))]
        self._pending: dict[str, Pending] = {}

    def __enter__(self) -> Self:
        """Return the grid."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        self.close()

    def close(self) -> None:
        """End the processes that this grid has started."""
        self._pending.clear()
        end_hosts(self._own)
        self._own = []
        if self._started:
            import ray

            ray.shutdown()
            self._started = False

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Ask the nodes' processes; run what is for this process now. Return the messages' ids."""
        ids, here, shared = [], [], dict[int, Any]()
        for message in messages:
            ids.append(self._give_id(message))
            host = self._host[message.metadata.dst_node_id]
            if host is None:
                here.append((ids[-1], message))
            else:
                self._pending[ids[-1]] = message, self._ask(host, message, shared)
        for name, message in here:  # Meanwhile the others are at work.
            self._replies[name] = self._handle(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return those replies to these messages that are there, each once."""
        return self._pull(list(message_ids), 0.0)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies that come within `timeout` seconds; a later one is dropped."""
        began = time.monotonic()
        ids = list(self.push_messages(messages))
        remaining = None if timeout is None else max(began + timeout - time.monotonic(), 0.0)
        replies = self._pull(ids, remaining)
        for name in ids:
            self._pending.pop(name, None)
        return replies

    def _ask(self, host: Any, message: Message, shared: dict[int, Any]) -> Any:
        """Send a message to a process; records shared by messages are stored in Ray once."""
        import ray

        sent = {}
        for name, record in records_of(message.content, ArrayRecord).items():
            if not record or not _is_numpy(record):
                continue
            if id(record) not in shared:
                shared[id(record)] = ray.put(from_record(record, copy=False))
            sent[name] = shared[id(record)]
        bare = copy.copy(message)
        rest = {name: record for name, record in message.content.items() if name not in sent}
        bare.content = RecordDict(rest)
        return host.answer.remote(self._name, self._setup, bare, list(sent), *sent.values())

    def _pull(self, ids: Sequence[str], timeout: float | None) -> list[Message]:
        """Return the replies to these messages that are there after at most this many seconds."""
        import ray

        waited = {self._pending[name][1]: name for name in ids if name in self._pending}
        if waited:
            ready, _ = ray.wait(list(waited), num_returns=len(waited), timeout=timeout)
            for ref in ready:
                name = waited[ref]
                message, _ = self._pending.pop(name)
                self._replies[name] = _reply(message, ref)
        return [self._replies.pop(name) for name in ids if name in self._replies]


# ---- Ray and its processes -----------------------------------------------------------------------


def connect(cpus: int) -> bool:
    """Join the cluster that RAY_ADDRESS names, or start Ray on this machine for `cpus` processes.

    Returns whether Ray was started here. Raises a SettingsError for less than one process, and a
    RunFailedError if the cluster is gone.
    """
    if cpus < 1:
        raise SettingsError(f"nodes = {cpus}: must be at least 1")
    # Ray shows equal lines of several processes once, and these are of different clients.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    # OpenMP's threads spin while they wait for each other, unless they are told not to.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Ray's own 15 leaves them a thirtieth of a core beside a busy process; 0 is what this one has.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # What will be Ray's default, of which it warns: a process without a share of a GPU still sees
    # the GPUs.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        return False
    if "RAY_ADDRESS" in os.environ:
        check_cluster()
        ray.init(logging_level=logging.WARNING)
        return False
    # Where this process is killed, all of its Ray ends with it. Two processes of Ray's own report
    # that to a server that is gone too, for a minute: these are the seconds that they try to.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "3")
    # Not without "local": Ray would look for a cluster of which an old file tells.
    ray.init("local", num_cpus=cpus, include_dashboard=False, logging_level=logging.WARNING)
    return True


def start_hosts(number: int, kind: type[Host] = Host, *, patient: bool = False) -> list[Any]:
    """Start this many processes, among which the GPUs are shared evenly, and return Ray's handles.

    All are there then, unless it is `patient`: those that find no free CPU may come at any time.
    Raises a SettingsError if Ray has fewer CPUs, or fewer that nobody uses.
    """
    connect(number)
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    cpus = int(resources.get("CPU", 0))
    if cpus < number:
        raise SettingsError(f"{number} processes were asked for, but Ray has {cpus} CPUs")
    if not patient:
        _check_free(number, cpus)
    share = _gpu_share(int(resources.get("GPU", 0.0)), number)
    options = {"num_cpus": 1, "num_gpus": share, "max_restarts": -1, "max_task_retries": 1}
    actor = ray.remote(kind).options(**options)
    hosts = [actor.remote() for _ in range(number)]
    return hosts if patient else _wait_for_start(hosts)


def _check_free(number: int, cpus: int) -> None:
    """Raise a SettingsError if others use too many CPUs: their messages would wait for ever."""
    import ray

    end = time.monotonic() + FREED
    while (free := int(ray.available_resources().get("CPU", 0))) < number:  # type: ignore[no-untyped-call]
        if time.monotonic() > end:
            wanted = f"{number} processes are wanted, and of Ray's {cpus} CPUs {free} are free"
            raise SettingsError(f"{wanted}: close other grids, or take fewer workers")
        time.sleep(0.05)


def _wait_for_start(hosts: list[Any]) -> list[Any]:
    """Return processes once they are there; for a moment Ray counts their CPUs as free."""
    import ray

    answers = [host.adopt.remote({}) for host in hosts]
    _, late = ray.wait(answers, num_returns=len(answers), timeout=START_UP)
    if late:
        end_hosts(hosts)
        problem = f"{len(late)} of {len(hosts)} processes did not start within {START_UP:g} s"
        raise RunFailedError(f"{problem}: others may use Ray's CPUs")
    return hosts


def _gpu_share(gpus: int, number: int) -> float:
    """Return the GPUs of each of this many processes: whole ones, or a part that is on one."""
    if not gpus:
        return 0.0
    return gpus // number if gpus >= number else 1 / math.ceil(number / gpus)


def end_hosts(hosts: Iterable[Any]) -> None:
    """End processes at once."""
    import ray

    for host in hosts:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(host)


# ---- messages ------------------------------------------------------------------------------------


def _reply(message: Message, ref: Any) -> Message:
    """Return the reply of a process, or an error reply if Ray raised an error."""
    import ray

    try:
        reply, arrays = ray.get(ref)
    except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError):
        return Message(Error(0, DIED), reply_to=message)
    except ray.exceptions.RayError as error:
        return Message(Error(0, cut(one_line(error))), reply_to=message)
    _put(reply, arrays, copy=True)  # Or Ray could not free its memory while they are in use.
    return reply  # type: ignore[no-any-return]


def _put(message: Message, arrays: Mapping[str, Arrays], *, copy: bool) -> None:
    """Put records of arrays into a message; without `copy` of Ray's memory, only to be read."""
    for name, record in arrays.items():
        message.content[name] = to_record(record, copy=copy)


def _split_arrays(message: Message) -> tuple[Message, dict[str, Arrays]]:
    """Return a message without its arrays, and these: Ray hands arrays on without copies."""
    if not message.has_content():
        return message, {}
    records = records_of(message.content, ArrayRecord).items()
    arrays = {
        name: from_record(record, copy=False) for name, record in records if _is_numpy(record)
    }
    for name in arrays:
        del message.content[name]
    return message, arrays


def _is_numpy(record: Mapping[str, Any]) -> bool:
    """Tell whether a record's arrays can be read here: an app may write its own kind."""
    return all(array.stype == NUMPY for array in record.values())
