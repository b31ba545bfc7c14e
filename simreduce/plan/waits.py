"""The ops that each op waits for: control edges, and in a stream the op before."""

from __future__ import annotations

from collections.abc import Iterator

from simreduce.plan.plan import NO_STREAM, Plan


def waits(plan: Plan) -> Iterator[tuple[int, list[int]]]:
    """Each op with the ops that it waits for besides those that it reads; the last op before it in
    its stream is the last of them.
    """
    before: dict[int, int] = {}  # by stream, its last op
    for op, stream in enumerate(plan.ordered_streams.tolist()):
        found: list[int] = plan.controls[
            plan.control_start[op] : plan.control_start[op + 1]
        ].tolist()
        if stream != NO_STREAM:
            found += [before[stream]] if stream in before else []
            before[stream] = op
        yield op, found
