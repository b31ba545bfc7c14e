"""Which settings a sweep tries: all combinations, lists side by side, or a sample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2, prod
from typing import Any

import numpy as np

from simreduce.errors import InputError
from simreduce.sweep.values import Choices, Interval

RANDOM, SOBOL = "random", "sobol"
SAMPLES = (RANDOM, SOBOL)
MOST_CELLS = 10_000_000
"""Cells of the largest sweep."""
MOST_SOBOL = 64
"""Keys of a Sobol sample: beyond, its points are spread no better than random ones."""


@dataclass(frozen=True, slots=True)
class Sample:
    """So many points, `by` which rule, from a seed."""

    by: str
    count: int
    seed: int = 0


def combine(
    over: Mapping[str, Choices], zipped: Sequence[Sequence[str]], sample: Sample | None
) -> list[dict[str, Any]]:
    """The settings of every cell. Keys that are `zipped` advance together. InputError lists what
    does not go together.
    """
    if problems := check_design(over, zipped, sample):
        raise InputError(problems)
    groups = _groups(over, zipped)
    if sample:
        return list(_sampled(over, groups, sample))
    lists = {key: values for key, values in over.items() if not isinstance(values, Interval)}
    found = []
    for places in itertools.product(*(range(_length(over, group)) for group in groups)):
        place_of = {
            key: place for group, place in zip(groups, places, strict=True) for key in group
        }
        found.append({key: values[place_of[key]] for key, values in lists.items()})
    return found


def check_design(
    over: Mapping[str, Choices], zipped: Sequence[Sequence[str]], sample: Sample | None
) -> list[str]:
    """What does not go together, as a list of faults. A key without values has faults elsewhere."""
    problems = []
    seen: set[str] = set()
    for keys in zipped:
        unknown = [key for key in keys if key not in over]
        problems += [f"zip: {key} has no values" for key in unknown]
        problems += [f"zip: {key} is in two of them" for key in keys if key in seen]
        seen.update(keys)
        if len(set(keys)) < 2:
            problems.append(f"zip: {', '.join(keys)}: name two keys or more")
        lengths = {key: _length(over, (key,)) for key in keys if over.get(key)}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{key} {count}" for key, count in lengths.items())
            problems.append(f"zip: lists of one length go side by side, and there are {counts}")
        problems += [
            f"zip: {key} is an interval" for key in lengths if isinstance(over[key], Interval)
        ]
    if sample:
        return problems
    problems += [
        f"{key}: an interval has no end of values; give a step, as 1..2+0.5, or --sample"
        for key, values in over.items()
        if isinstance(values, Interval)
    ]
    total = 1 if problems else prod(_length(over, group) for group in _groups(over, zipped))
    if total > MOST_CELLS:
        problems.append(f"{total:,} cells are more than {MOST_CELLS:,}; try --sample")
    return problems


def _groups(over: Mapping[str, Choices], zipped: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Keys that advance together, each key in one group, in the order of `over`."""
    group_of = {key: tuple(keys) for keys in zipped for key in keys}
    return list(dict.fromkeys(group_of.get(key, (key,)) for key in over))


def _length(over: Mapping[str, Choices], group: Sequence[str]) -> int:
    values = over[group[0]]
    return 0 if isinstance(values, Interval) else len(values)


def _sampled(
    over: Mapping[str, Choices], groups: Sequence[Sequence[str]], sample: Sample
) -> Iterator[dict[str, Any]]:
    """Points of the unit cube, as values; equal ones once."""
    seen = set()
    for point in _points(sample, len(groups)):
        by_key = {}
        for group, share in zip(groups, point, strict=True):
            for key in group:
                values = over[key]
                by_key[key] = (
                    values.at(float(share))
                    if isinstance(values, Interval)
                    else values[min(int(share * len(values)), len(values) - 1)]
                )
        settings = {key: by_key[key] for key in over}
        text = repr(settings)
        if text not in seen:
            seen.add(text)
            yield settings


def _points(sample: Sample, dimensions: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    if sample.by == RANDOM:
        return np.random.default_rng(sample.seed).random((sample.count, dimensions))
    if dimensions > MOST_SOBOL:
        raise InputError(f"a Sobol sample of {dimensions} keys: at most {MOST_SOBOL}; try random")
    from scipy.stats import qmc  # noqa: PLC0415 - takes a second to import

    points = qmc.Sobol(dimensions, seed=np.random.default_rng(sample.seed)).random_base2(
        ceil(log2(max(sample.count, 1)))
    )
    return np.asarray(points[: sample.count], np.float64)
