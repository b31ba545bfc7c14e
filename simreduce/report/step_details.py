"""A closer look at a training step, or at an update of synchronous replicas, for pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from types import SimpleNamespace
from typing import Any

from simreduce.engine import Use
from simreduce.report.explain import CHANGE, explanation_document
from simreduce.report.headings import LINK
from simreduce.study.tune.whatif import Saving
from simreduce.study.tune.whatif_steps import Effect, StepLook
from simreduce.training import Bucket
from simreduce.training.path import PathPiece, seconds_by_kind

_MOST = 40
"""Transfers of the path that are listed, the longest first."""


def step_look_document(look: StepLook, strategy: str, names: Sequence[str]) -> dict[str, Any]:
    """Return a closer look at a step, as JSON types: times in microseconds, shares from 0 to 1.

    `names` are the gradients'. `links` is None if they are not known; `missing` says why. `alone`
    is the document of an explanation of the longest transfer by itself.
    """
    whole = look.seconds
    return {
        "strategy": strategy,
        "time_us": whole * 1e6,
        "missing": look.missing,
        "links": None if look.links is None else [*map(LINK.write, look.links)],
        "path": [
            {
                "kind": kind,
                "lane": lane,
                "time_us": seconds * 1e6,
                "share": seconds / whole if whole else 0.0,
                "pieces": count,
            }
            for kind, lane, seconds, count in seconds_by_kind(look.path)
        ],
        "transfers": _transfers(look.path, names),
        "alone": _alone(look, names),
        "changes": [CHANGE.write(saving, look) for saving in look.savings],
    }


def replicas_look_document(
    seconds: float, spent: Mapping[str, float], links: Sequence[Use], effects: Sequence[Effect]
) -> dict[str, Any]:
    """Of an update of so many seconds: the share of workers' time by what they do, the load of each
    link, and what changes save, with confidence intervals. Changes without a number are left out.
    """
    total, whole = sum(spent.values()) or 1.0, SimpleNamespace(seconds=seconds)
    return {
        "strategy": "the workers",
        "time_us": seconds * 1e6,
        "missing": "",
        "links": [*map(LINK.write, links)],
        "spent": {name: each / total for name, each in spent.items()},
        "changes": [
            {
                **CHANGE.write(Saving(effect.change, effect.seconds, effect.saved.mean), whole),
                "saving_low_us": effect.saved.low * 1e6,
                "saving_high_us": effect.saved.high * 1e6,
            }
            for effect in effects
            if all(map(isfinite, (effect.saved.low, effect.saved.high)))
        ],
    }


def _transfers(path: Sequence[PathPiece], names: Sequence[str]) -> list[dict[str, Any]]:
    found = [(piece, piece.bucket) for piece in path if piece.bucket and piece.kind != "turn"]
    found.sort(key=lambda each: -each[0].seconds)
    return [
        {
            "lane": piece.name,
            "what": _label(bucket, names),
            "size_bytes": bucket.nbytes,
            "time_us": piece.seconds * 1e6,
            "begin_us": piece.begin * 1e6,
        }
        for piece, bucket in found[:_MOST]
    ]


def path_words(path: Sequence[PathPiece]) -> list[tuple[float, float, str]]:
    """Each piece as (from, to, words), in microseconds."""
    return [(p.begin * 1e6, p.end * 1e6, f"{p.kind} {p.name}".strip()) for p in path]


def _label(bucket: Bucket, names: Sequence[str]) -> str:
    if not bucket.gradients:
        return "nothing"
    first, last = names[bucket.gradients[-1]], names[bucket.gradients[0]]
    count = len(bucket.gradients)
    return first if count == 1 else f"{first} to {last} ({count} gradients)"


def _alone(look: StepLook, names: Sequence[str]) -> dict[str, Any] | None:
    if look.alone is None or look.longest is None:
        return None
    kind = next(p.name for p in look.path if p.bucket is look.longest).removesuffix("s")
    about = {
        **dict.fromkeys(
            ("question", "workload", "equal_paths", "nccl_settings", "disturbance"), ""
        ),
        "ranks": len(look.longest.ranks),
        "repeat": 1,
        "strategy": f"the {kind} of {_label(look.longest, names)}",
        "collective": look.longest.collective or "all_reduce",
        "size_bytes": look.longest.nbytes,
    }
    return explanation_document(look.alone, (), about)
