"""The element types that can be reduced, spelled as TensorFlow spells them; a plan stores the
index.
"""

from __future__ import annotations

from simreduce.errors import InputError, did_you_mean

NAMES: tuple[str, ...] = ("float32", "float16", "float64", "bfloat16", "int32", "int64")
"""Index in this tuple is the code that plans store."""

SIZES: tuple[int, ...] = (4, 2, 8, 2, 4, 8)
"""Bytes of one element, by code."""

_NCCL_TESTS = {"float": "float32", "half": "float16", "double": "float64"}


def code(name: str) -> int:
    """The code of a dtype by TensorFlow's name or nccl-tests' (`float`, `half`, `double`)."""
    found = _NCCL_TESTS.get(name, name)
    if found not in NAMES:
        known = (*NAMES, *_NCCL_TESTS)
        raise InputError(
            f"unknown dtype {name!r}{did_you_mean(name, known)}; one of {', '.join(known)}"
        )
    return NAMES.index(found)
