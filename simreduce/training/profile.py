"""How long each layer computes: from one number, from FLOPs and an achieved rate, or from a file.

A file is CSV with the columns `layer`, `forward` and `backward`, or TOML (`PROFILE`). It has each
layer of the model once; a gradient list has one layer for each gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files.formats import (
    DURATION,
    LINE,
    Faults,
    Field,
    Format,
    TablesOf,
    read_csv,
)
from simreduce.files.textfiles import parse_toml, read_text
from simreduce.workload import Model

_LAYER = Format(
    "layers",
    "The times of a layer.",
    Field("layer", LINE, "Its name in the model.", required=True),
    Field("forward", DURATION, "Time of the forward pass of one batch.", required=True),
    Field("backward", DURATION, "Time of the backward pass of one batch.", required=True),
)
PROFILE = Format(
    "profile",
    "How long each layer of a model computes for one batch on one device.",
    Field("title", LINE, "What was measured."),
    Field("layers", TablesOf(_LAYER), "Every layer of the model.", required=True),
)


KERNELS_OF = "kernels of"
"""The beginning of the source of times that are predicted from kernels, not given."""


def compute_caution(source: str) -> str:
    """What a page says of times of compute with this source."""
    if source.startswith(KERNELS_OF):
        return (
            f"The time of compute is predicted from {source}; simreduce accuracy mesh says how far "
            "off such predictions are."
        )
    return f"The time of compute is an input, not a prediction: {source}."


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds of one batch on one device, by layer in the order of the forward pass.

    `source` is where they come from, in words. A recorded one also has the time of the `update`,
    and `notes` on what the record does not say.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    source: str
    update: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds of both passes."""
        return sum(self.forward) + sum(self.backward)

    def rescale(self, measured: int, batch: int) -> Profile:
        """The profile of another batch, in proportion."""
        return self._times(batch / measured, f"in proportion, from a batch of {measured}")

    def faster(self, speed: float) -> Profile:
        """The profile of GPUs that are `speed` times as fast."""
        found = self._times(1.0 / speed, f"{speed:.4g} times as fast")
        return replace(found, update=self.update / speed)

    def repeat(self, shares: Sequence[float], words: str) -> Profile:
        """The profile whose backward passes also repeat these parts of the forward passes."""
        passes = zip(self.backward, self.forward, shares, strict=True)
        backward = tuple(back + share * seconds for back, seconds, share in passes)
        return Profile(self.forward, backward, f"{self.source}; {words}")

    def _times(self, factor: float, words: str) -> Profile:
        return replace(
            self,
            forward=tuple(factor * seconds for seconds in self.forward),
            backward=tuple(factor * seconds for seconds in self.backward),
            source=f"{self.source}; {words}",
        )


def profile_from_seconds(model: Model, seconds: float) -> Profile:
    """A profile of `seconds` for both passes, spread by FLOPs.

    Where no FLOPs are known, layers take equal times, a third of it forward.
    """
    whole = model.flops
    if not whole:
        layers, each = len(model.layers), seconds / len(model.layers)
        return Profile((each / 3,) * layers, (each * 2 / 3,) * layers, "one number, spread evenly")
    rate = whole / seconds if seconds else float("inf")
    return Profile(*_by_flops(model, 1, rate), f"one number, spread by FLOPs{_uncounted(model)}")


def profile_from_rate(model: Model, batch: int, rate: float) -> Profile:
    """A profile of `batch` samples at `rate` FLOP/s.

    InputError if a layer with gradients has no FLOPs.
    """
    if len(model.uncounted) == len(model.layers):
        raise InputError(f"{model.name}: nobody counted its FLOPs; give a time or a profile")
    without = [repr(layer.name) for layer in model.uncounted if layer.gradients]
    if without:
        more = f" and {len(without) - 5} more" if len(without) > 5 else ""
        raise InputError(
            f"{model.name}: nobody counted the FLOPs of {', '.join(without[:5])}{more};"
            " give them ('0 FLOP' for what takes no time), a time or a profile"
        )
    return Profile(
        *_by_flops(model, batch, rate), f"FLOPs at {rate / 1e12:g} TFLOP/s{_uncounted(model)}"
    )


def _uncounted(model: Model) -> str:
    """A remark on layers that take no time because their FLOPs are unknown."""
    count, layers = len(model.uncounted), len(model.layers)
    return f"; nothing for {count} of {layers} layers, whose FLOPs nobody counted" if count else ""


def _by_flops(model: Model, batch: int, rate: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return (
        tuple(batch * layer.forward / rate for layer in model.layers),
        tuple(batch * layer.backward / rate for layer in model.layers),
    )


def load_profile(text: str, model: Model | None) -> Profile | None:
    """The times in the file `text`, for the layers of `model`; InputError lists every fault.

    Without a model, None after those faults that need none.
    """
    path = Path(text)
    content = read_text(path, InputError)
    faults = Faults(text)
    if path.suffix == ".toml":
        values = PROFILE.read(parse_toml(text, content, InputError), faults)
        rows = [(f"layers[{i}]", each) for i, each in enumerate(values["layers"] or ())]
    else:
        lines = read_csv(content, _LAYER.keys, ",".join(_LAYER.keys), faults, InputError)
        cells = [(place, {k: cell for k, cell in row.items() if cell}) for place, row in lines]
        rows = [(place, _LAYER.read(row, faults, place)) for place, row in cells]
    known = [layer.name for layer in model.layers] if model else []
    layers = frozenset(known)
    times: dict[str, tuple[float, float]] = {}
    for place, row in rows:
        name = row["layer"]
        if name is None:
            continue
        if model and name not in layers:
            near = did_you_mean(name, known)
            faults.add(place, f"{model.name} has no layer {quote(name)}{near}")
        elif name in times:
            faults.add(place, f"a second row for {name!r}")
        times.setdefault(name, (row["forward"], row["backward"]))
    missing = [name for name in known if name not in times]
    if missing and not faults.problems:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        faults.add("", f"no times for {', '.join(missing[:5])}{more}")
    faults.raise_any()
    if model is None:
        return None
    forward, backward = zip(*(times[name] for name in known), strict=True)
    return Profile(forward, backward, f"profile {path.name}")
