"""Plans run in this process: CPU devices of one Session, or of a function where the process has
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
from simreduce_validate.running.contents import Contents
from simreduce_validate.running.emitter import program
from simreduce_validate.running.execution import find_departures, read_execution
from simreduce_validate.running.placement import logical_cpus
from simreduce_validate.running.program import Array, Program, Runner, faults, load
from simreduce_validate.running.session import SessionRunner, session_config

from simreduce.errors import StrategyError
from simreduce.plan import Kind, Plan
from simreduce.plan.plan import ZEROS
from simreduce.planners.algorithms import ALGORITHMS
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import parse_strategy
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.study.tune.prove import machines
from simreduce.workload import Gradient, Workload


def workload(sizes: Sequence[int], dtype: int = 0) -> Workload:
    return Workload("test", tuple(Gradient(f"g{i}", size, dtype) for i, size in enumerate(sizes)))


def compiled(text: str, ranks: int, sizes: Sequence[int], tasks: int = 1, dtype: int = 0) -> Plan:
    return compile_plan(text, workload(sizes, dtype), machines(ranks, tasks))


@contextmanager
def started(plan: Plan, chained: int = 1) -> Iterator[tuple[Program, Runner, Contents]]:
    """The plan, loaded."""
    prog = program(plan, logical_cpus(len(plan.devices)), chained)
    step, contents = SessionRunner(prog, session_config(len(plan.devices))), Contents.of(plan)
    try:
        load(prog, step, contents)
        yield prog, step, contents
    finally:
        step.close()


def found_wrong(plan: Plan, chained: int = 1) -> list[str]:
    """What is wrong with the results of the plan, and how what was executed departs from it."""
    with started(plan, chained) as (prog, step, contents):
        ran = read_execution(step.partitions(), step.graph)
        return [*faults(prog, step, contents), *find_departures(plan, prog.place, ran, chained)]


def served(text: str, layouts: Sequence[Layout], sizes: Sequence[int]) -> Iterator[Plan]:
    """The plans of a strategy, without those that it refuses."""
    strategy = parse_strategy(text)
    for layout in layouts:
        try:
            yield compile_plan(strategy, workload(sizes), layout)
        except StrategyError:
            continue


def pipelined(name: str) -> bool:
    return ALGORITHMS[name].pipelined


class EditedStep:
    """A step whose graph was changed after it was built: `edit` is given its `GraphDef`."""

    def __init__(self, prog: Program, edit: Callable[[Any], None]) -> None:
        config = session_config(len(prog.place))
        built = SessionRunner(prog, config)
        definition = built.graph.as_graph_def()
        self._types = {name: feed.dtype.as_numpy_dtype for name, (feed, _) in built._feeds.items()}
        built.close()
        edit(definition)
        with tf.Graph().as_default() as self.graph:
            tf.graph_util.import_graph_def(definition, name="")
        self._session = tf.compat.v1.Session(graph=self.graph, config=config)

    def load(self, contents: dict[str, Array]) -> None:
        feeds = {
            f"{name}/feed:0": values.astype(self._types[name]) for name, values in contents.items()
        }
        self._session.run([f"{name}/load" for name in contents], feeds)

    def run(self) -> None:
        self._session.run([op for op in self.graph.get_operations() if op.name.startswith("done")])

    def read(self, names: Sequence[str]) -> list[Array]:
        return self._session.run([f"{name}/read:0" for name in names])

    def close(self) -> None:
        self._session.close()


def wrong_after(plan: Plan, edit: Callable[[Any], None]) -> list[str]:
    """What is wrong with the results of a plan whose graph was edited."""
    prog, contents = program(plan, logical_cpus(len(plan.devices))), Contents.of(plan)
    step = EditedStep(prog, edit)
    try:
        load(prog, step, contents)
        step.run()
        return faults(prog, step, contents)
    finally:
        step.close()


def remove(op: int, plan: Plan) -> Callable[[Any], None]:
    """The edit that takes a COPY out of the graph, so that its readers find zeros, or an ADD, so
    that they find its first term.
    """

    def edit(definition: Any) -> None:
        (node,) = (node for node in definition.node if node.name == f"op{op}")
        if plan.kind[op] == Kind.COPY:
            dtype = tf.dtypes.as_dtype(node.attr["T"].type)
            zeros = np.zeros(int(plan.hi[op] - plan.lo[op]), dtype.as_numpy_dtype)
            del node.input[:]
            node.op = "Const"
            node.attr.clear()
            node.attr["dtype"].type = dtype.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(zeros))
        else:
            kept = node.attr["T"].type
            del node.input[1:]
            node.op = "Identity"
            node.attr.clear()
            node.attr["T"].type = kept

    return edit


def without(plan: Plan, op: int) -> Plan:
    """The plan in which the same is missing."""
    count = plan.operand_count.astype(np.int64)
    mine = slice(plan.operand_start[op], plan.operand_start[op + 1])
    drop = np.arange(mine.start + (plan.kind[op] == Kind.ADD), mine.stop)
    count[op] -= len(drop)
    kind, arg = plan.kind.copy(), plan.arg.copy()
    if kind[op] == Kind.COPY:
        kind[op], arg[op] = Kind.INPUT, ZEROS
    start = np.concatenate([[0], np.cumsum(count)]).astype(plan.operand_start.dtype)
    return replace(
        plan, kind=kind, arg=arg, operand_start=start, operands=np.delete(plan.operands, drop)
    )
