"""The runtime's tree broadcast (`hierarchical_tree_broadcaster.cc`): how initial variables reach
every device.

Several tasks: first a binary tree over one device per task, then one inside every task, from that
device. Every edge carries the whole tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.plan import PlanBuilder, Value


def tree_targets(rank: int, size: int, source: int) -> list[int]:
    """The ranks that `rank` sends to, in order, in the tree over `size` ranks from `source`."""
    targets = []
    if source and rank == source:
        # The source sends to ranks 0 and 1 besides its children.
        targets += [0] if size == 2 or source == 1 else [0, 1]
    first = 2 * (rank + 1) if source else 2 * rank + 1
    return targets + [r for r in (first, first + 1) if r < size and r != source]


def tree_broadcast(
    b: PlanBuilder, value: Value, tasks: Sequence[Sequence[int]], source: int
) -> dict[int, Value]:
    """`value`, which is on the device `source`, on every device of the tasks; by device.

    A device ends its sends of one level before it begins the next level.
    """
    home = next(t for t, task in enumerate(tasks) if source in task)
    heads = [source if t == home else task[0] for t, task in enumerate(tasks)]
    held, sent = {source: value}, dict[int, list[int]]()
    if len(tasks) > 1:
        _tree(b, heads, home, held, sent)
    before = dict(sent)
    for task, head in zip(tasks, heads, strict=True):
        _tree(b, task, task.index(head), held, sent, after=before.get(head, ()))
    return held


def _tree(
    b: PlanBuilder,
    ranks: Sequence[int],
    source: int,
    held: dict[int, Value],
    sent: dict[int, list[int]],
    after: Sequence[int] = (),
) -> None:
    """Extend `held` and `sent` (ids of every device's sends) by one tree; the source waits for the
    ops `after`.
    """
    reached = [source]
    for rank in reached:
        device, waits = ranks[rank], after if rank == source else ()
        targets = tree_targets(rank, len(ranks), source)
        for target in targets:
            held[ranks[target]] = b.copy(held[device], ranks[target], after=waits)
        sent[device] = [held[ranks[target]].op for target in targets]
        reached += targets
