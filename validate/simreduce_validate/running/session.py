"""The default route: one graph, run by the Session executor of version 1, in this process or in a
cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from simreduce_validate.running.program import Array, Event, Made, Program, Variable

v1, ops = tf.compat.v1, tf.raw_ops

MIB_OF_SPLIT = 4096
"""Memory of a part of a physical GPU, which TensorFlow needs to know."""


def session_config(cpus: int = 1, threads: int = 0, gpus: int = 0) -> Any:
    """A `ConfigProto` under which a graph is executed as it was built: without Grappler, and
    without the older passes that fold constants and join equal ops. `threads` is how many ops run
    at a time, 0 for one per core; each takes one core. `gpus` is how many logical GPUs each
    physical one is split into.
    """
    config = v1.ConfigProto(
        device_count={"CPU": cpus},
        inter_op_parallelism_threads=threads,
        intra_op_parallelism_threads=1,
        allow_soft_placement=False,
    )
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    config.gpu_options.allow_growth = True
    if gpus > 1:
        config.gpu_options.experimental.virtual_devices.add(memory_limit_mb=[MIB_OF_SPLIT] * gpus)
    return config


class SessionRunner:
    """A `Runner` in a graph and a session of its own.

    `target` is a server's address, "" for this process; in a cluster, `scope` keeps the variables
    of one step apart from those of others.
    """

    def __init__(self, program: Program, config: Any, target: str = "", scope: str = "") -> None:
        self._scope = scope
        self._feeds: dict[str, tuple[Any, Any]] = {}
        self._reads: dict[str, Any] = {}
        self._free: list[Any] = []
        with tf.Graph().as_default() as self.graph:
            given = {op: self._input_handle(v) for op, v in program.given.items()}
            kept = {
                op: [self._output_handle(v) for v in parts] for op, parts in program.results.items()
            }
            self._done = _step(program, given, kept)
        self._session = v1.Session(target, graph=self.graph, config=config)
        self._call = self._session.make_callable(self._done)

    def load(self, contents: Mapping[str, Array]) -> None:
        feeds = {
            feed: contents[name].astype(feed.dtype.as_numpy_dtype)
            for name, (feed, _) in self._of(contents)
        }
        self._session.run([assign for _, (_, assign) in self._of(contents)], feeds)

    def run(self) -> None:
        self._call()

    def read(self, names: Sequence[str]) -> list[Array]:
        found: list[Array] = self._session.run([self._reads[name] for name in names])
        return found

    def partitions(self) -> list[Any]:
        options = v1.RunOptions(output_partition_graphs=True)
        return list(self._observe(options).partition_graphs)

    def trace(self) -> list[Event]:
        return events(self._observe(v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)).step_stats)

    def close(self) -> None:
        self._session.run(self._free)
        self._session.close()

    def _of(self, names: Iterable[str]) -> list[tuple[str, tuple[Any, Any]]]:
        return [(name, self._feeds[name]) for name in names]

    def _observe(self, options: Any) -> Any:
        metadata = v1.RunMetadata()
        self._session.run(self._done, options=options, run_metadata=metadata)
        return metadata

    def _input_handle(self, variable: Variable) -> Any:
        """The handle of a variable that a step reads, and the op that loads it."""
        handle, dtype = self._declare(variable), tf.dtypes.as_dtype(variable.dtype)
        with tf.device(variable.device):
            feed = v1.placeholder(dtype, [variable.elements], name=f"{variable.name}/feed")
            load = ops.AssignVariableOp(resource=handle, value=feed, name=f"{variable.name}/load")
        self._feeds[variable.name] = feed, load
        return handle

    def _output_handle(self, variable: Variable) -> Any:
        """The handle of a variable that a step writes, and what reads it."""
        handle, dtype = self._declare(variable), tf.dtypes.as_dtype(variable.dtype)
        with tf.device(variable.device):
            read = ops.ReadVariableOp(resource=handle, dtype=dtype, name=f"{variable.name}/read")
        self._reads[variable.name] = read
        return handle

    def _declare(self, variable: Variable) -> Any:
        name, dtype = variable.name, tf.dtypes.as_dtype(variable.dtype)
        with tf.device(variable.device):
            handle = ops.VarHandleOp(
                dtype=dtype,
                shape=[variable.elements],
                shared_name=f"{self._scope}{name}",
                name=name,
            )
            free = ops.DestroyResourceOp(
                resource=handle, ignore_lookup_error=True, name=f"{name}/free"
            )
        self._free.append(free)
        return handle


_EDGE = re.compile(r"edge_\d+_(\S+) from ")
"""In the label of a transfer, the tensor that was sent."""


def events(stats: Any) -> list[Event]:
    """The events of a `StepStats`, by time."""
    rows = [
        (device.device, _event_name(node), *_nanoseconds(node))
        for device in stats.dev_stats
        for node in device.node_stats
    ]
    first = min((start for _, _, start, _ in rows), default=0)
    found = [
        Event(device, name, (start - first) * 1e-9, (start - first + lasted) * 1e-9)
        for device, name, start, lasted in rows
    ]
    return sorted(found, key=lambda event: (event.start, event.finish, event.device, event.name))


def _event_name(node: Any) -> str:
    edge = _EDGE.search(node.timeline_label) if node.node_name == "RecvTensor" else None
    return f"RecvTensor {edge.group(1)}" if edge else str(node.node_name)


def _nanoseconds(node: Any) -> tuple[int, int]:
    """When it began and how long it lasted; of transfers, only microseconds are kept."""
    if node.all_start_nanos:
        return node.all_start_nanos, node.all_end_rel_nanos
    return node.all_start_micros * 1000, node.all_end_rel_micros * 1000


def _step(
    program: Program, given: Mapping[int, Any], kept: Mapping[int, Sequence[Any]]
) -> list[Any]:
    """The ops of a step in the current graph: by device one that is done when all its results are
    kept, and all else is done.

    They have no op in common that waits for all of them, which would cost a message from every
    device.
    """
    done = []
    for number, (device, stores) in enumerate(keep(program.body(given), kept).items()):
        with tf.device(device), tf.control_dependencies(stores):
            done.append(tf.no_op(name=f"done{number}"))
    return done or [tf.no_op(name="done0")]


def keep(made: Made, kept: Mapping[int, Sequence[Any]]) -> dict[str, list[Any]]:
    """By device, the ops that end a step. They put results into variables, without a copy."""
    ends: dict[str, list[Any]] = {}
    for op, handles in kept.items():
        for i, (handle, tensor) in enumerate(zip(handles, made.results[op], strict=True)):
            with tf.device(handle.device):
                store = ops.AssignVariableOp(resource=handle, value=tensor, name=f"keep{op}_{i}")
            ends.setdefault(handle.device, []).append(store)
    for tensor in made.loose:
        ends.setdefault(tensor.device, []).append(tensor.op)
    return ends
