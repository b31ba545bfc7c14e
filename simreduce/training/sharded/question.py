"""The keys of `[step]` on methods and accumulation, and which of them go together."""

from __future__ import annotations

from collections.abc import Callable

from simreduce.errors import did_you_mean, quote
from simreduce.files.formats import Faults, FieldValues, OneOrMore, Scalar, inside
from simreduce.training.sharded.settings import FSDP, HSDP, METHODS, ZERO1, ZERO2

DDP = "ddp"
"""The method without shards."""

_ALL = (DDP, *METHODS)


def _read_method(value: object) -> str:
    if isinstance(value, str) and value in _ALL:
        return value
    near = did_you_mean(value, _ALL) if isinstance(value, str) else ""
    raise ValueError(f"must be one of {', '.join(_ALL)}, got {quote(value)}{near}")


METHODS_KIND = OneOrMore(Scalar(f"one of {', '.join(_ALL)}", {"enum": list(_ALL)}, _read_method))


def check_methods(values: FieldValues, faults: Faults, path: str) -> None:
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
    values: FieldValues, methods: tuple[str, ...], fault: Callable[[str, str], None]
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
