"""A grid on Ray: nodes run in separate processes, on this machine or on a cluster.

The first grid starts Ray on this machine, unless the environment variable RAY_ADDRESS names a
cluster. The machines of a cluster must share the folder in which clients keep their files.
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
from typing import Any

from flwr.app import ArrayRecord, Error, Message, RecordDict

from coprefl_flwr import plugins
from coprefl_flwr.arrays import Arrays, from_record, records_of, to_record
from coprefl_flwr.errors import RunFailedError, SettingsError, one_line, shorten
from coprefl_flwr.federation.flower import enter_run, without_colours
from coprefl_flwr.federation.machine import one_thread
from coprefl_flwr.grids.local import ClientAppFn, LocalGrid, run_app

START_UP = 120.0
"""The largest number of seconds that processes may take to start."""

DIED = "its process died twice: it was killed, exited, or had too little memory"
"""The error of a node whose process died twice on a message: killed, out of memory, or exited."""

Pending = tuple[Message, Any]
"""A message that was sent to a process, and Ray's reference to the reply."""


class Host:
    """A process with one thread in which nodes run; app, data and model stay in its memory.

    If the process dies, Ray starts a new process and sends the current message again, once. The
    memory of the old process is lost, but the states of clients are kept in files.
    """

    def __init__(self) -> None:
        one_thread()
        without_colours()
        self._loaded: tuple[str, ClientAppFn, Mapping[int, Any]] | None = None

    def is_ready(self) -> None:
        """Return at once; the call waits until the process has started."""

    def answer(
        self, grid: str, setup: Sequence[Any], message: Message, names: Sequence[str], *arrays: Any
    ) -> tuple[Message, dict[str, Arrays]]:
        """Run the ClientApp on a message; return the reply without arrays, and its arrays.

        `grid` is the id of the grid. `setup` holds a reference to the registered code, the app and
        the nodes' contexts of the grid, which are fetched at the first message of the grid. `names`
        are the names of the array records that were taken out of the message. `arrays` are the
        arrays of these records. They are views of memory that all processes of a machine share.
        """
        import ray

        if self._loaded is None or self._loaded[0] != grid:
            self._loaded = None  # Frees the old app and its data first.
            registered, app, contexts = ray.get(setup[0])
            plugins.REGISTERED.update(registered)
            self._loaded = (grid, app, contexts)
        _, app, contexts = self._loaded
        enter_run(run_id=1, node_id=1)
        _put(message, dict(zip(names, arrays, strict=True)), copy=False)
        reply = run_app(app, message, contexts[message.metadata.dst_node_id])
        return _split_arrays(reply)


class RayGrid(LocalGrid, contextlib.AbstractContextManager["RayGrid"]):
    """Runs a `ClientApp` on nodes in separate processes, which work at the same time.

    `nodes` is the number of nodes. As in a simulation, the node-config of node i has `partition-id`
    i and `num-partitions` equal to `nodes`. Each process has one thread, and loads data and model
    once. GPUs are shared evenly by the processes. `close()`, or the end of a `with` block, ends the
    processes. If this grid has started Ray, `close()` also ends Ray, and with Ray any other grid
    that was made meanwhile.

    Parameters
    ----------
    workers : int, optional
        The number of processes. If there are fewer processes than nodes, each process runs several
        nodes. If not set, each node has a process.
    hosts : sequence, optional
        Existing processes, one for each node, which are used instead of new processes and are not
        ended by `close()`. An entry None means this process.
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
        self._pending: dict[str, Pending] = {}
        self._own: list[Any] = []
        self._started = hosts is None and connect(number)
        try:
            if hosts is None:
                self._own = start_hosts(number)
            _wait_for_start([host for host in hosts or self._own if host])
        except BaseException:
            self.close()
            raise
        # Nodes are assigned in turn, so the numbers of nodes per process differ by at most 1.
        self._host = dict(zip(self._contexts, itertools.cycle(hosts or self._own), strict=False))
        self._name = uuid.uuid4().hex
        self._setup = [ray.put((plugins.REGISTERED, client_app, self._contexts))]

    def __exit__(self, *_: object) -> None:
        """End the processes that this grid has started, as `close` does."""
        self.close()

    def close(self) -> None:
        """End the processes that this grid has started, and Ray if this grid has started Ray."""
        self._pending.clear()
        end_hosts(self._own)
        self._own = []
        if self._started:
            import ray

            ray.shutdown()
            self._started = False

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send each message to its node's process, and return the ids of the messages.

        Messages to nodes in this process are answered before this method returns.
        """
        ids, here, shared = [], [], dict[int, Any]()
        for message in messages:
            ids.append(self._give_id(message))
            host = self._host[message.metadata.dst_node_id]
            if host is None:
                here.append((ids[-1], message))
            else:
                self._pending[ids[-1]] = message, self._ask(host, message, shared)
        for name, message in here:  # Other processes work at the same time.
            self._replies[name] = self._handle(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have arrived; each is returned only once."""
        return self._pull(list(message_ids), 0.0)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages; return the replies within `timeout` seconds, and drop later replies."""
        began = time.monotonic()
        ids = list(self.push_messages(messages))
        remaining = None
        if timeout is not None and timeout < math.inf:
            remaining = max(began + timeout - time.monotonic(), 0.0)
        replies = self._pull(ids, remaining)
        for name in ids:
            self._pending.pop(name, None)
        return replies

    def _ask(self, host: Any, message: Message, shared: dict[int, Any]) -> Any:
        """Send a message to a process; a record in several messages is stored in Ray only once."""
        import ray

        sent = {}
        for name, record in records_of(message.content, ArrayRecord).items():
            if not record:
                continue
            if id(record) not in shared:
                shared[id(record)] = ray.put(from_record(record, copy=False))
            sent[name] = shared[id(record)]
        bare = copy.copy(message)
        rest = {name: record for name, record in message.content.items() if name not in sent}
        bare.content = RecordDict(rest)
        return host.answer.remote(self._name, self._setup, bare, list(sent), *sent.values())

    def _pull(self, ids: Sequence[str], timeout: float | None) -> list[Message]:
        """Wait at most `timeout` seconds; return the replies to these messages so far."""
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

    Return whether this call has started Ray.
    """
    # Ray would show equal log lines of several processes once, but the clients are different.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    # By default OpenMP's threads use the CPU while they wait for each other.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # With Ray's default niceness of 15, a process next to a busy process gets only 1/30 of a core.
    # This process has niceness 0.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Ray's future default, without which Ray prints a warning. A process without a share of a GPU
    # still sees the GPUs.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray would start a task that takes too much memory again and again.
    os.environ.setdefault("RAY_task_oom_retries", "1")
    import ray

    if ray.is_initialized():
        return False
    if "RAY_ADDRESS" in os.environ:
        ray.init(logging_level=logging.WARNING)
        return False
    # If this process is killed, its Ray ends too. Two of Ray's processes would then try for a
    # minute to report this to a server that has ended as well. This sets the time to 3 seconds.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "3")
    # Without "local", Ray would look for a cluster that an old file names.
    ray.init("local", num_cpus=cpus, include_dashboard=False, logging_level=logging.WARNING)
    return True


def start_hosts(number: int, share: float | None = None) -> list[Any]:
    """Start `number` processes, each with a share of the GPUs, and return Ray's actor handles.

    `share` is the number of GPUs of a process; by default the processes share all GPUs evenly. A
    RayGrid waits until they have started. Raises a SettingsError if Ray has too few CPUs. Call
    `connect` first.
    """
    import ray

    cpus = int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
    if cpus < number:
        raise SettingsError(f"{number} processes need as many CPUs, but Ray has {cpus} CPUs")
    share = gpu_share(number) if share is None else share
    options = {"num_cpus": 1, "num_gpus": share, "max_restarts": -1, "max_task_retries": 1}
    actor = ray.remote(Host).options(**options)
    return [actor.remote() for _ in range(number)]


def _wait_for_start(hosts: list[Any]) -> None:
    """Wait until processes have started; raise a RunFailedError if this takes too long."""
    import ray

    answers = [host.is_ready.remote() for host in hosts]
    if late := answers and ray.wait(answers, num_returns=len(answers), timeout=START_UP)[1]:
        end_hosts(hosts)
        problem = f"{len(late)} of {len(hosts)} processes did not start within {START_UP:g} s"
        raise RunFailedError(f"{problem}: other programs may use Ray's CPUs")


def gpu_share(number: int) -> float:
    """Return the number of Ray's GPUs per process: a whole number, or a fraction of one GPU."""
    import ray

    gpus = int(ray.cluster_resources().get("GPU", 0.0))  # type: ignore[no-untyped-call]
    if not gpus:
        return 0.0
    return gpus // number if gpus >= number else 1 / math.ceil(number / gpus)


def end_hosts(hosts: Iterable[Any]) -> None:
    """Kill processes, also while they answer messages."""
    import ray

    for host in hosts:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(host)


# ---- messages ------------------------------------------------------------------------------------


def _reply(message: Message, ref: Any) -> Message:
    """Return the reply of a process, or an error reply if Ray raises an error."""
    import ray

    try:
        reply, arrays = ray.get(ref)
    except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError):
        return Message(Error(0, DIED), reply_to=message)
    except ray.exceptions.RayError as error:
        return Message(Error(0, shorten(one_line(error))), reply_to=message)
    _put(reply, arrays, copy=True)  # A view would keep Ray's memory in use.
    return reply  # type: ignore[no-any-return]


def _put(message: Message, arrays: Mapping[str, Arrays], *, copy: bool) -> None:
    """Put arrays into a message as records; without `copy`, they are read-only views of memory."""
    for name, record in arrays.items():
        message.content[name] = to_record(record, copy=copy)


def _split_arrays(message: Message) -> tuple[Message, dict[str, Arrays]]:
    """Return a message without its arrays, and the arrays, which Ray then sends without copies."""
    if not message.has_content():
        return message, {}
    records = records_of(message.content, ArrayRecord).items()
    arrays = {name: from_record(record, copy=False) for name, record in records}
    for name in arrays:
        del message.content[name]
    return message, arrays
