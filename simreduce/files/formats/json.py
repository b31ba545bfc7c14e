"""The one reader of JSON that other programs or people wrote."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from simreduce.errors import InputError, quote
from simreduce.files.textfiles import MOST_BYTES, MOST_DEPTH

_SHOWN = 1000
"""Digits of a number in a message at most."""


def read_json(
    text: str | bytes,
    where: str,
    refuse: type[InputError] = InputError,
    *,
    most: int = MOST_BYTES,
    twice: bool = False,
    finite: bool = True,
) -> Any:
    """The value of a JSON document; raises `refuse` with `where` and the reason if it is none.

    A document has `most` characters and `MOST_DEPTH` levels at most, no number that is not finite
    where all must be `finite`, and no key twice in an object, unless `twice`: then the last one
    counts.
    """
    if len(text) > most:
        raise refuse(f"{where}: more than {most >> 20} MiB of JSON")
    try:
        found = json.loads(
            text, parse_constant=_number if finite else None,
            parse_float=_number if finite else None, parse_int=_integer,
            object_pairs_hook=None if twice else _once,
        )  # fmt: skip
        too_deep = _is_too_deep(found)
    except RecursionError:
        too_deep = True
    except ValueError as error:
        raise refuse(f"{where}: {error}") from None
    if too_deep:
        raise refuse(f"{where}: nested too deeply, more than {MOST_DEPTH} levels")
    return found


def _number(text: str) -> float:
    if math.isfinite(number := float(text)):
        return number
    raise ValueError(f"{text[:_SHOWN]} is no number of JSON")


def _integer(text: str) -> int:
    _number(text)  # or it is above every figure
    return int(text)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {quote(counts.most_common(1)[0][0])} stands twice in an object")
    return found


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return False
        level = [e for each in level for e in (each.values() if isinstance(each, dict) else each)]
    return True
