"""The second route: the same ops as a TensorFlow 2 function, which eager code calls.

The function is made as `tf.function` makes one, but for the control edges that it adds by itself:
those put all ops of one stateful kind in one chain, and `DeepCopy` is stateful.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from simreduce.errors import InputError
from simreduce_validate.running.program import Array, Event, Program, Variable
from simreduce_validate.running.session import MIB_OF_SPLIT, keep


class FunctionRunner:
    """A `Runner` as a function, in a process that `prepare_process` gave its devices."""

    def __init__(self, program: Program) -> None:
        self._variables: dict[str, Any] = {}
        given = {op: self._declare(v) for op, v in program.given.items()}
        kept = {op: [self._declare(v) for v in parts] for op, parts in program.results.items()}
        self._call = tf.compat.v1.wrap_function(lambda: _body(program, given, kept), [])
        self.graph = self._call.graph
        self._partitions = self._first()

    def load(self, contents: Mapping[str, Array]) -> None:
        for name, values in contents.items():
            variable = self._variables[name]
            variable.assign(values.astype(variable.dtype.as_numpy_dtype))
        # On other workers an assignment may be under way still, and a function there would not wait
        # for it.
        context.async_wait()

    def run(self) -> None:
        for done in self._call():
            done.numpy()  # on a remote device, a call returns before it is done

    def read(self, names: Sequence[str]) -> list[Array]:
        return [self._variables[name].numpy() for name in names]

    def partitions(self) -> list[Any]:
        return self._partitions

    def trace(self) -> list[Event]:
        raise InputError("TensorFlow 2 keeps no timeline of a function; use the route session")

    def close(self) -> None:
        self._variables.clear()

    def _first(self) -> list[Any]:
        """The first call. TensorFlow cuts a function by device, and shows the parts, only then."""
        context.enable_graph_collection()
        try:
            context.export_run_metadata()  # of earlier functions
            self.run()
            return list(context.export_run_metadata().partition_graphs)
        finally:
            context.disable_graph_collection()

    def _declare(self, variable: Variable) -> Any:
        dtype = tf.dtypes.as_dtype(variable.dtype)
        with tf.device(variable.device):
            made = tf.Variable(tf.zeros([variable.elements], dtype), name=variable.name)
        self._variables[variable.name] = made
        return made.handle


def _body(
    program: Program, given: Mapping[int, Any], kept: Mapping[int, Sequence[Any]]
) -> list[Any]:
    """A number on every device that has results, which is there when these are kept."""
    found = []
    for number, (device, stores) in enumerate(keep(program.body(given), kept).items()):
        with tf.device(device), tf.control_dependencies(stores):
            found.append(tf.constant(0, name=f"done{number}"))
    return found


def prepare_process(cpus: int, threads: int = 0, gpus: int = 0) -> None:
    """Give this process so many CPU devices, and cut every physical GPU into so many logical ones
    (0: use none). Let nothing rewrite functions. Before TensorFlow is first used.
    """
    split = tf.config.set_logical_device_configuration
    split(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * cpus
    )
    for gpu in tf.config.list_physical_devices("GPU"):
        if gpus > 1:
            split(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=MIB_OF_SPLIT)] * gpus)
        else:
            tf.config.experimental.set_memory_growth(gpu, enable=True)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
