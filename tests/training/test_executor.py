"""Runs of nodes by hand: who begins with the first, is added on the way, or is served first."""

from __future__ import annotations

import simpy
from hypothesis import given, settings

from simreduce.engine import IDEAL
from simreduce.engine.setup import Setup
from simreduce.training.executions import COLLECTIVE, COMPUTE, Execution, ExecutionNode
from simreduce.training.executor import Ran, Run
from simreduce.training.recorded import replay_execution
from tests.thorough import examples
from tests.training.small import TICK, by, job, pair, run
from tests.training.test_step import JOBS


def _work(name: str, seconds: float, *after: int, **more: object) -> ExecutionNode:
    return ExecutionNode(name, COMPUTE, after, seconds=seconds, **more)


def _run(*nodes: ExecutionNode, **more: object) -> Run:
    env = simpy.Environment()
    return Run(Execution("test", {0: nodes}, 1), env, lambda *_: env.timeout(0.0), **more)


def _times(found: list[Ran]) -> dict[str, tuple[float, float]]:
    return {each.node.name: (each.begin, each.end) for each in found}


def test_an_early_node_begins_with_the_first_that_is_done():
    """And once only; one that comes after nothing begins at once."""
    whole = _run(
        _work("slow", 3.0), _work("fast", 1.0), _work("early", 1.0, 0, 1, early=True),
        _work("late", 1.0, 0, 1), _work("free", 1.0, early=True),
    )  # fmt: skip
    found = list(whole.finish())

    assert 5 == len(found)
    times = _times(found)
    assert ((1.0, 2.0), (3.0, 4.0), (0.0, 1.0)) == (times["early"], times["late"], times["free"])


def test_nodes_are_added_while_a_run_goes_on():
    """After those that are done, at once; after others, when they are."""
    whole = _run(_work("first", 1.0), _work("long", 5.0))

    def act(ready: float) -> simpy.Event:
        assert ready == 2.0 == whole.env.now
        assert whole.is_done(0)
        assert not whole.is_done(1)
        whole.add(_work("at once", 1.0, 0))
        whole.add(_work("then", 1.0, 0, 1))
        whole.add(_work("early", 1.0, 0, 1, early=True))
        whole.start()
        return whole.env.timeout(0.5)

    whole.add(_work("wait", 1.0, 0))
    whole.add(_work("acts", 0.0, 2), act)
    found = _times(list(whole.finish()))

    assert (2.0, 2.5) == found["acts"]
    assert ((2.0, 3.0), (5.0, 6.0), (2.0, 3.0)) == (
        found["at once"], found["then"], found["early"],
    )  # fmt: skip


def test_a_stream_serves_who_came_first():
    """Two at a time, whatever their order in the execution, which is that of a lane."""
    waits = [_work(f"wait {i}", 4.0 - i) for i in range(4)]
    nodes = [_work(f"node {i}", 10.0, i, lane="line") for i in range(4)]
    stream, lane = (
        _times(list(_run(*waits, *nodes, **more).finish()))
        for more in ({"streams": {"line": 2}}, {})
    )

    assert [12.0, 11.0, 2.0, 1.0] == [stream[f"node {i}"][0] for i in range(4)]
    assert [11.0, 21.0, 31.0, 1.0] == [lane[f"node {i}"][0] for i in range(4)]


@settings(max_examples=examples(50))
@given(JOBS)
def test_a_step_is_the_run_of_its_nodes(parts):
    """DDP's step equals an execution of the same nodes that was recorded elsewhere."""
    work = job(*parts)
    step = run(work, by("ring", work, pair(), streams=1))
    nodes = [_work("forward", t * TICK, *range(i)[-1:], lane="GPU") for i, t in enumerate(parts[1])]
    for size, ticks in reversed(list(zip(parts[0], parts[2], strict=True))):
        last = max(i for i, node in enumerate(nodes) if node.lane == "GPU")
        nodes.append(_work("backward", ticks * TICK, last, lane="GPU"))
        facts = {"collective": "all_reduce", "nbytes": size * 1024}
        nodes.append(ExecutionNode("sum", COLLECTIVE, (len(nodes) - 1,), "nccl", **facts))
    recorded = Execution("by hand", dict.fromkeys(range(2), tuple(nodes)), 2)
    found = replay_execution(recorded, Setup(pair(), IDEAL), "ring")

    assert found.seconds == step.seconds
    assert [(m.met, m.end) for m in found.moved] == [(b.start, b.finish) for b in step.buckets]
