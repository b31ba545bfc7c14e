"""The keys of `[step]` on methods and accumulation, and which of them go together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simreduce.errors import did_you_mean, quote
from simreduce.formats import Faults, ValueKind, Values, inside
from simreduce.training.sharded.settings import FSDP, HSDP, METHODS, ZERO1, ZERO2

DDP = "ddp"
"""The method without shards."""

_ALL = (DDP, *METHODS)


class _Methods(ValueKind[tuple[str, ...]]):
    """One method, or a list of different ones."""

    def __init__(self) -> None:
        one = {"enum": list(_ALL)}
        many = {"type": "array", "items": one, "minItems": 1, "uniqueItems": True}
        super().__init__(f"one of {', '.join(_ALL)}, or a list of them", {"anyOf": [one, many]})

    def take(self, value: object, faults: Faults, path: str) -> tuple[str, ...] | None:
        """Read one method, or every method of a list; None if one is wrong."""
        given: list[Any] = value if isinstance(value, list) and value else [value]
        fine = True
        for i, each in enumerate(given):
            place = f"{path}[{i}]" if isinstance(value, list) and value else path
            if not isinstance(each, str) or each not in _ALL:
                near = did_you_mean(each, _ALL) if isinstance(each, str) else ""
                faults.add(place, f"must be one of {', '.join(_ALL)}, got {quote(each)}{near}")
                fine = False
            elif given.index(each) < i:
                faults.add(place, f"{each} stands there twice")
                fine = False
        return tuple(given) if fine else None


METHODS_KIND = _Methods()


def check_methods(values: Values, faults: Faults, path: str) -> None:
    """Note the faults of methods, passes, and keys that not every method has a use for."""
    methods = values["method"] or (DDP,)
    sharded = [method for method in methods if method != DDP]

    def fault(key: str, why: str) -> None:
        faults.add(inside(path, key), why)

    if "variable_update" in values.given:
        for key in ("method", "accumulate", "no_sync"):
            if key in values.given:
                fault(key, "tf_cnn_benchmarks has none; leave out variable_update")
    if "sharding" in values.given and "method" not in values.given:
        fault("sharding", 'is for a method; give one, such as method = "fsdp"')
    given = values["sharding"].given if values["sharding"] else set()
    if "group" in given and HSDP not in methods and "method" not in values.faulty:
        fault("sharding.group", "is for hsdp; the others share among all GPUs")
    if sharded and DDP not in methods:
        for key in ("streams", "cycle"):
            if key in values.given:
                more = "; step.sharding.streams says how many" if key == "streams" else ""
                fault(key, f"{sharded[0]} does not use it{more}")
    if sharded and "consistency" in values.given and values["consistency"] != "strong":
        fault("consistency", f"{sharded[0]} reduces the gradients of its own step")
    _check_passes(values, methods, fault)


def _check_passes(
    values: Values, methods: tuple[str, ...], fault: Callable[[str, str], None]
) -> None:
    """Note the faults of `accumulate`, `no_sync` and `barrier`."""
    passes = values["accumulate"]
    if values["barrier"] is False:
        late = [method for method in methods if method not in (DDP, ZERO1, ZERO2)]
        if late:
            fault("barrier", f"{late[0]} gathers updated parameters in the next step")
        if passes > 1:
            fault("accumulate", "needs a barrier")
    if passes > 1 and values["consistency"] != "strong":
        fault("accumulate", 'needs consistency = "strong"')
    if "no_sync" in values.given:
        if "accumulate" not in values.given:
            fault("no_sync", "is for a step of several passes; give accumulate")
        elif not {DDP, FSDP, HSDP} & set(methods):
            fault("no_sync", f"{methods[0]} has a rule of its own")
