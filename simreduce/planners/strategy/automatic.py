"""The strategies that TensorFlow chooses by itself, by the name of what chooses.

A choice is a rule from a layout to the text of another strategy. Peer access is taken to be a
direct link, which is where the driver reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from simreduce.planners.layouts import Layout

DGX1_PEERS: tuple[frozenset[int], ...] = tuple(
    frozenset(row)
    for row in (
        (1, 2, 3, 4), (0, 2, 3, 5), (0, 1, 3, 6), (0, 1, 2, 7),
        (0, 5, 6, 7), (1, 4, 6, 7), (2, 4, 5, 7), (3, 4, 5, 6),
    )
)  # fmt: skip
"""The peers of every GPU of a DGX-1 (TensorFlow 1.14 cross_device_ops.py, `_has_dgx1_like_links`).
"""


def has_dgx1_like_links(peers: Sequence[Collection[int]]) -> bool:
    """Whether the first 8 rows equal `DGX1_PEERS`, each with or without the device itself.

    The position of a row says which device it is. Rows beyond 8 are not looked at.
    """
    if len(peers) < len(DGX1_PEERS):
        return False
    rows = zip(peers, DGX1_PEERS, strict=False)
    return all(set(row) - {i} == known for i, (row, known) in enumerate(rows))


def choose_the_best(layout: Layout, requested: int | None = None) -> str:
    """TensorFlow 1.12 and 1.14 (`choose_the_best`), for `requested` devices of the layout; all
    unless given.

    Fewer devices than requested, or one that is no GPU: reduce to one device. Links like a DGX-1's:
    hierarchical copy in as many packs as there are devices. Else NCCL in one pack. With several
    workers, 1.12 takes MultiWorkerAllReduce with its default spec.
    """
    if (requested is not None and requested > layout.n) or _cpus(layout):
        return "reduce_to_one"
    if len(layout.tasks) > 1:
        return "pscpu/pscpu#2"
    peers = [{j for j, lanes in enumerate(row) if lanes} for row in layout.links]
    return f"hierarchical_copy+packs={layout.n}" if has_dgx1_like_links(peers) else "nccl+packs=1"


def select_cross_device_ops(layout: Layout) -> str:
    """TensorFlow 2 (`select_cross_device_ops`): NcclAllReduce in one pack if all devices are GPUs,
    else to one device.

    The links play no part any more.
    """
    return "reduce_to_one" if _cpus(layout) else "nccl+packs=1"


def mirrored_strategy(layout: Layout) -> str:
    """TensorFlow 2 (`MirroredStrategy` without cross_device_ops): CollectiveAllReduce.

    By NCCL on GPUs, as a ring on CPUs, and in one pack, the default `bytes_per_pack` of 0 (inside
    `tf.function`; eager mode takes one collective per gradient). GPUs and CPUs together are reduced
    to one device.
    """
    cpus = _cpus(layout)
    if 0 < cpus < layout.n:
        return "reduce_to_one"
    return "collective+bucket=0" if cpus else "nccl+bucket=0"


def _cpus(layout: Layout) -> int:
    return sum(rank in layout.hosts for rank in layout.ranks)


INTENDED = ("pscpu/pscpu",)
"""Algorithms whose quirk is tf_cnn_benchmarks' alone: TensorFlow's MultiWorkerAllReduce takes the
first k CPUs.
"""

AUTOMATIC: Mapping[str, Callable[[Layout], str]] = {
    "choose_the_best": choose_the_best,
    "select_cross_device_ops": select_cross_device_ops,
    "mirrored_strategy": mirrored_strategy,
}
"""Every rule by the name users type in the place of a spec."""


def tensorflow_choice(layout: Layout) -> dict[str, str]:
    """Return the choice of every rule on `layout`, by the rule's name."""
    return {name: rule(layout) for name, rule in AUTOMATIC.items()}
