"""How long each layer computes: from one number, from FLOPs and an achievable rate, or from a
measured file.

A file is CSV with the columns `layer`, `forward` and `backward`, or TOML with `[[layers]]` tables
of the same keys; times have a unit (`1.25 ms`) and are of one batch on one device. Layers are those
of the model; of a gradient list, every gradient is a layer. A layer that is left out, or named
twice, is a fault. Every fault is reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from simreduce import units
from simreduce.errors import InputError, did_you_mean, shown
from simreduce.textfiles import csv_rows, parse_toml, read_text, toml_rows
from simreduce.workload import Model

_KEYS = ("layer", "forward", "backward")


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds of one batch on one device, by layer in the order of the forward pass; `source` says
    where they are from.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    source: str

    @property
    def seconds(self) -> float:
        """Both passes."""
        return sum(self.forward) + sum(self.backward)

    def rescaled(self, measured: int, batch: int) -> Profile:
        """Of another batch than the one that was measured, in proportion."""
        factor = batch / measured
        return Profile(
            tuple(factor * seconds for seconds in self.forward),
            tuple(factor * seconds for seconds in self.backward),
            f"{self.source}; in proportion, from a batch of {measured}",
        )


def profile_from_seconds(model: Model, seconds: float) -> Profile:
    """Both passes take `seconds`, spread by FLOPs; evenly and a third of it forward where nobody
    counted these.
    """
    whole = model.flops
    if not whole:
        each = seconds / len(model.layers)
        layers = len(model.layers)
        return Profile((each / 3,) * layers, (each * 2 / 3,) * layers, "one number, spread evenly")
    rate = whole / seconds if seconds else float("inf")
    return Profile(*_by_flops(model, 1, rate), f"one number, spread by FLOPs{_uncounted(model)}")


def profile_from_rate(model: Model, batch: int, rate: float) -> Profile:
    """`batch` samples at `rate` FLOPs a second. InputError for a model with gradients whose work
    nobody counted.
    """
    if len(model.uncounted) == len(model.layers):
        raise InputError(f"{model.name}: nobody counted its FLOPs; give a time or a profile")
    without = [repr(layer.name) for layer in model.uncounted if layer.gradients]
    if without:
        more = f" and {len(without) - 5} more" if len(without) > 5 else ""
        raise InputError(
            f"{model.name}: nobody counted the FLOPs of {', '.join(without[:5])}{more}; give them ('0 FLOP' for what takes "
            "no time), a time or a profile"
        )
    return Profile(
        *_by_flops(model, batch, rate), f"FLOPs at {rate / 1e12:g} TFLOP/s{_uncounted(model)}"
    )


def _uncounted(model: Model) -> str:
    """Whose work takes no time because it is not known."""
    count, layers = len(model.uncounted), len(model.layers)
    return f"; nothing for {count} of {layers} layers, whose FLOPs nobody counted" if count else ""


def _by_flops(model: Model, batch: int, rate: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return (
        tuple(batch * layer.forward / rate for layer in model.layers),
        tuple(batch * layer.backward / rate for layer in model.layers),
    )


@overload
def load_profile(text: str, model: Model) -> Profile: ...
@overload
def load_profile(text: str, model: Model | None) -> Profile | None: ...
def load_profile(text: str, model: Model | None) -> Profile | None:
    """The times in the file `text`, for the layers of `model`; InputError tells all that is wrong
    with it. Without a model, what can be told without one.
    """
    path = Path(text)
    content = read_text(path, InputError)
    problems: list[str] = []
    rows: list[tuple[str, dict[str, Any]]]
    if path.suffix == ".toml":
        document = parse_toml(text, content, InputError)
        _, rows = toml_rows(text, document, "layers", _KEYS, ", ".join(_KEYS), problems)
    else:
        rows = [*csv_rows(text, content, _KEYS, ",".join(_KEYS), InputError, problems)]
    known = [layer.name for layer in model.layers] if model else []
    layers = frozenset(known)
    times: dict[str, tuple[float, float]] = {}
    for line, row in rows:
        place = f"{text}: {line}"
        problems += [f"{place}: {k}: missing" for k in _KEYS if row.get(k, "") == ""]
        name = row.get("layer")
        if name is not None and not isinstance(name, str):
            problems.append(f"{place}: layer: expected text, not {shown(name)}")
        elif name is not None and model and name not in layers:
            problems.append(
                f"{place}: {model.name} has no layer {shown(name)}{did_you_mean(name, known)}"
            )
        elif isinstance(name, str) and name in times:
            problems.append(f"{place}: a second row for {name!r}")
        pair = [
            _time(f"{place}: {key}", row[key], problems)
            for key in _KEYS[1:]
            if row.get(key, "") != ""
        ]
        if isinstance(name, str) and len(pair) == 2:
            times.setdefault(name, (pair[0], pair[1]))
    missing = [name for name in known if name not in times]
    if missing and not problems:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        problems.append(f"{text}: no times for {', '.join(missing[:5])}{more}")
    if problems:
        raise InputError(problems)
    if model is None:
        return None
    forward, backward = zip(*(times[name] for name in known), strict=True)
    return Profile(forward, backward, f"profile {path.name}")


def _time(place: str, value: object, problems: list[str]) -> float:
    try:
        return units.duration(value)
    except ValueError as error:
        problems.append(f"{place}: {error}")
        return 0.0
