"""The `all_reduce_spec` of MultiWorkerAllReduce (TensorFlow 1.12 cross_tower_ops.py, 1.14
cross_device_ops.py).
"""

from __future__ import annotations

from simreduce.errors import StrategyError
from simreduce.planners.strategy.spec import NO_LIMIT, Range

DEFAULT = ("pscpu/pscpu", 2, NO_LIMIT)
"""The spec that MultiWorkerAllReduce uses if none is given."""


def parse_multi_worker_spec(value: object, *, faithful: bool = False) -> list[Range]:
    """The ranges of `(alg[, shards[, limit]])`, of a list of such tuples, or of the name of one
    algorithm.

    A name is taken whole: the grammar of tf_cnn_benchmarks' specs (`pscpu#2`) is not applied, and
    names are checked only when something is reduced. Anything else is a StrategyError, with every
    fault; upstream reads it as no range at all (`faithful`), which fails at the first reduction.

    >>> parse_multi_worker_spec([("pscpu", 2, 2048), ("xring",)])
    [Range(algorithm='pscpu', shards=2, limit=2048), Range(algorithm='xring', shards=1, limit=-1)]
    """
    if isinstance(value, str):
        return [Range(value)]
    if not isinstance(value, tuple | list):
        if faithful:
            return []
        raise StrategyError(
            f"all_reduce_spec {value!r}: a name, a tuple (alg, shards, limit) or a list of such "
            "tuples is expected"
        )
    ranges: list[Range] = []
    problems: list[str] = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, tuple):
            problems.append(f"A tuple is expected for all_reduce spec: {item!r}")
        elif not 1 <= len(item) <= len(Range._fields):
            problems.append(
                f"Too many elements in the all_reduce_spec tuple: {item!r} (1 to 3 are expected)"
            )
        elif not isinstance(item[0], str) or not all(type(number) is int for number in item[1:]):
            problems.append(
                f"all_reduce_spec tuple {item!r}: a name and up to two whole numbers are expected"
            )
        else:
            ranges.append(Range(*item))
    if problems:
        raise StrategyError(problems)
    return ranges
