"""Seconds of measured training steps, read from the logs of what trained, or from a CSV.

Each line of a log names its step's time in its own way:

    Megatron-LM      elapsed time per iteration (ms): 4213.7
    NeMo             train_step_timing in s: 4.21
    torchtitan       tps: 5,762                    tokens a second and GPU
    Lightning, tqdm  10/100 [00:42<06:18, 4.21s/it]   as Hugging Face's Trainer draws it
    Trainer          'train_steps_per_second': 0.237

The first third of the lines, at most ten, warm up. The time of a step is the median of the others.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from simreduce.errors import InputError, quote
from simreduce.files.formats import POSITIVE, Field, Format
from simreduce.files.formats.syntax import Faults, read_csv
from simreduce.files.launchers import without_colours

_NUMBER = r"([\d,]*\.?\d+(?:[eE][+-]?\d+)?)"
_WARM = 10
"""Steps that warm up at most: what compiles, fills caches and tunes kernels."""


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Seconds of the steps of one run, in order; `program` wrote them. `per_gpu` are tokens a
    second and GPU where a log says these instead. `tokens` and `sequences` of a step are 0 where
    nobody says.
    """

    name: str
    program: str
    seconds: tuple[float, ...] = ()
    per_gpu: tuple[float, ...] = ()
    tokens: int = 0
    sequences: int = 0

    def step(self, tokens: int, gpus: int) -> float:
        """Seconds of a step of so many tokens on so many GPUs: the median once all is warm."""
        each = self.seconds or tuple(tokens / (rate * gpus) for rate in self.per_gpu)
        return median(each[min(_WARM, len(each) // 3) :])


_LINES: Mapping[str, tuple[str, Callable[[float], float]]] = {
    "Megatron-LM": (rf"elapsed time per iteration \(ms\): *{_NUMBER}", lambda ms: ms * 1e-3),
    "NeMo": (rf"train_step_timing in s[:=] *{_NUMBER}", float),
    "torchtitan": (rf"\btps: *{_NUMBER}", float),
    "Hugging Face's Trainer": (rf"'train_steps_per_second': *'?{_NUMBER}", lambda rate: 1 / rate),
}
"""By program: what a line has, and what the number makes of a step; torchtitan's is a rate."""
_RATES = ("torchtitan",)
_TQDM = "Lightning or tqdm"
_BAR = re.compile(
    rf"(?P<what>[^|\r\n\[]*?):? *\d+%\|[^|]*\| *(?P<done>\d+)/(?P<of>\d+) *"
    rf"\[(?P<elapsed>[\d:]+)<[^,\]]*, *(?P<rate>{_NUMBER})(?P<unit>s/it|it/s)\b"
)
"""What tqdm draws: `Loading: 50%|##  | 2/4 [00:10<00:10, 2.61s/it]`; a rate above 1 is `it/s`."""
_RATE = re.compile(rf"(?P<rate>{_NUMBER})(?P<unit>s/it|it/s)\b")
"""What other bars of progress, such as Lightning's by rich, show of it."""
_TRAINS = re.compile(r"epoch|train|step|iter", re.IGNORECASE)
_SEQUENCES = re.compile(r"global[ _]batch[ _]size[:=] *(\d+)")


ROW = Format(
    "row",
    "A training step that was measured.",
    Field("seconds", POSITIVE, "The step.", required=True),
    Field("tokens", POSITIVE, "Of all GPUs.", required=True),
)


def read_steps(text: str, name: str) -> MeasuredSteps:
    """The steps of a log or of a CSV. InputError with every fault, or what it may be."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    if "seconds" in first.split(","):
        return _read_csv(text, name)
    plain = without_colours(text)
    for program, (pattern, read) in _LINES.items():
        numbers = [float(each.replace(",", "")) for each in re.findall(pattern, plain)]
        found = tuple(read(each) for each in numbers if 0 < each < 1e9)
        if found:
            rates = program in _RATES
            sequences = _SEQUENCES.findall(plain)
            return MeasuredSteps(
                name, program, () if rates else found, found if rates else (),
                sequences=int(sequences[-1]) if sequences else 0,
            )  # fmt: skip
    bars, others = _read_bars(plain)
    if bars:
        return MeasuredSteps(name, _TQDM, bars)
    drawn = f"; its bars are of {', '.join(map(quote, others))}" if others else ""
    known = ", ".join((*_LINES, _TQDM))
    raise InputError(
        f"{name}: no line has the time of a step: {known}, or a CSV of seconds,tokens{drawn}"
    )


def _read_bars(text: str) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Seconds a step of the bar of training, and what the bars are of that are none.

    Shards that are loaded, data that are mapped and evaluations have bars, too. That of training
    has no name, or says that it trains or of what epoch it is; of several it is the longest.
    """
    took = dict[tuple[str, str], int]()
    steps = defaultdict[tuple[str, str], list[float]](list)
    for bar in _BAR.finditer(text):
        what = re.sub(r"\d+", "N", bar["what"].strip())
        elapsed = sum(int(each) * 60**i for i, each in enumerate(bar["elapsed"].split(":")[::-1]))
        took[what, bar["of"]] = elapsed
        steps[what, bar["of"]] += _seconds_of(bar)
    if of_training := [bar for bar in took if not bar[0] or _TRAINS.search(bar[0])]:
        return tuple(steps[max(of_training, key=took.__getitem__)]), ()
    if took:
        return (), tuple(dict.fromkeys(what for what, _ in took))
    return tuple(step for rate in _RATE.finditer(text) for step in _seconds_of(rate)), ()


def _seconds_of(rate: re.Match[str]) -> tuple[float, ...]:
    number = float(rate["rate"].replace(",", ""))
    if not 0 < number < 1e9:
        return ()
    return (number if rate["unit"] == "s/it" else 1 / number,)


def _read_csv(text: str, name: str) -> MeasuredSteps:
    faults = Faults(name)
    lines = read_csv(text, ROW.keys, ",".join(ROW.keys), faults, InputError)
    rows = [ROW.read(row, faults, place) for place, row in lines]
    faults.raise_any()
    tokens = {round(row["tokens"]) for row in rows}
    if len(tokens) != 1:
        several = f"has steps of {len(tokens)} numbers of tokens; give a file for each"
        raise InputError(f"{name}: {several if tokens else 'has no step'}")
    seconds = tuple(row["seconds"] for row in rows)
    return MeasuredSteps(name, "a CSV", seconds, tokens=tokens.pop())
