"""A capacity question as a TOML file: a target, options, prices, and how nodes fail.

A reader reports every fault of the file, and of what it names, at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from simreduce.engine.calibrate import load_calibration
from simreduce.engine.setup import BY_STRATEGY, read_runtime
from simreduce.errors import InputError, quote
from simreduce.files.formats import (
    ANYTHING,
    LINE,
    Faults,
    Field,
    Format,
    TableOf,
    TablesOf,
    ValueKind,
    Values,
    choice,
    inside,
    number,
    whole,
)
from simreduce.files.textfiles import parse_toml, read_text
from simreduce.study.capacity.choose import OBJECTIVES, Target
from simreduce.study.capacity.losses import FAILURES, STRAGGLERS, Failures, Stragglers
from simreduce.study.capacity.options import OPTION, Option, check_step, expand
from simreduce.study.capacity.prices import PriceList, load_prices, parse_prices
from simreduce.study.capacity.quantities import HOURLY, MONEY, SOME_PERIOD, Money
from simreduce.study.scenario import beside
from simreduce.training import load_model
from simreduce.training.question import MOST_SAMPLES
from simreduce.workload import Model


class _Prices(ValueKind[Any]):
    """A price list by name or file, or as a table."""

    def __init__(self) -> None:
        super().__init__(
            "the name or the file of a price list, or a table with one",
            {"anyOf": [{"type": "string"}, {"type": "object"}]},
        )

    def take(self, value: object, faults: Faults, path: str) -> Any:
        """Return the table or the text unchanged; None if it is neither."""
        if isinstance(value, (str, dict)):
            return value
        faults.add(path, f"must be {self.words}")
        return None


_LEAST_RATE = 1e-9
"""Samples a second of the slowest run that is asked for: one in 30 years."""


def _large_enough(values: Values, faults: Faults, path: str) -> None:
    for key, least in (("samples", 1.0), ("samples_per_second", _LEAST_RATE)):
        if key in values.given and key not in values.faulty and values[key] < least:
            faults.add(inside(path, key), f"must be at least {least:g}, got {quote(values[key])}")
    needs = [key for key in ("time", "budget") if key in values.given]
    if needs and "samples" not in values.given:
        faults.add(path, f"{needs[0]} is that of a run; give samples, how many it takes")


TARGET = Format(
    "target",
    "What a configuration must meet, all of it, and what to minimise.",
    Field("samples", number(0.0), "Samples of the run whose time and cost count.", 1e6,
          default_words="a million"),
    Field("step_time", SOME_PERIOD, "Time of a step at most, stragglers included."),
    Field("efficiency", number(0.0, 1.0), "Samples a second over those if nothing moved and none"
          " waited, at least: `0.9` for 90 %; stragglers and failures count."),
    Field("samples_per_second", number(0.0), "Samples a second at least, failures included."),
    Field("time", SOME_PERIOD, "Time of the run at most."),
    Field("budget", MONEY, "Cost of the run at most."),
    Field("hourly", HOURLY, "Price per hour at most."),
    Field("minimise", choice(OBJECTIVES, "objective"), "`cost` of the run, `hourly` price, or"
          " `time` of the run.", default_words="`cost`; `hourly` without `samples`"),
    check=_large_enough,
)  # fmt: skip
_MOST_FACTOR = 100.0
SENSITIVITY = Format(
    "sensitivity",
    "How to look for the values at which the answer changes.",
    Field("tolerance", number(1e-4, 0.5), "Relative width to which simulations narrow a rate.",
          0.01),
    Field("patience", SOME_PERIOD, "Time after which the search at rates stops with what it knows.",
          300.0, default_words="`5 min`"),
    Field("within", number(1.01, _MOST_FACTOR), "Factor up and down within which rates are tried.",
          4.0),
)  # fmt: skip
CAPACITY = Format(
    "capacity",
    "Which machines, how many of them, on which network, for which money.",
    Field("title", LINE, "The title of reports.", default_words="the file's name"),
    Field("workload", LINE, "A shipped model or a file.", required=True),
    Field("calibration", LINE, "A shipped calibration or a file.", "nominal"),
    Field("runtime", LINE, "The runtime of all strategies.", "by_strategy"),
    Field("global_batch", whole(1, MOST_SAMPLES), "Samples of a step of all GPUs together: each"
          " gets its part, and a number of GPUs that does not divide it is no option.",
          default_words="`step.batch` for each GPU"),
    Field("prices", _Prices(), "A shipped price list, a file, or a table `[prices]`.",
          required=True),
    Field("target", TableOf(TARGET), "What to meet."),
    Field("step", ANYTHING, "Keys of `[step]` of a scenario, for all options."),
    Field("options", TablesOf(OPTION), "Configurations to choose from.", required=True),
    Field("failures", TableOf(FAILURES), "How nodes fail.", default_words="they do not"),
    Field("stragglers", TableOf(STRAGGLERS), "How unequal compute times are.",
          default_words="all equal"),
    Field("sensitivity", TableOf(SENSITIVITY), "How to look for flips.",
          default_words="as below"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """The question of a capacity file. Files that options name are looked for in `folder` first."""

    name: str
    title: str
    folder: str
    workload: str
    prices: PriceList
    target: Target
    options: tuple[Option, ...]
    failures: Failures | None = None
    stragglers: Stragglers | None = None
    tolerance: float = 0.01
    within: float = 4.0
    patience: float = 300.0
    global_batch: int | None = None


def load_question(text: str, prices: str | None = None) -> Question:
    """The question in a file, with another price list if one is given.

    InputError lists every fault.
    """
    path = Path(text)
    document = parse_toml(text, read_text(path, InputError), InputError)
    faults = Faults(text, options={"prices": "--prices"} if prices else None)
    if prices is not None:
        document = {**document, "prices": prices}
    values = CAPACITY.read(document, faults)
    found = _build(path, values, faults, given=prices is not None)
    if faults.problems or found is None:  # options of several machines have the same ones
        raise InputError([*dict.fromkeys(faults.problems)])
    return found


def _build(path: Path, values: Values, faults: Faults, *, given: bool) -> Question | None:
    folder = str(path.parent)
    near = partial(beside, Path(folder, "-"))
    prices: PriceList | None = None
    if isinstance(values["prices"], str):
        name = values["prices"] if given else near(values["prices"])
        prices = faults.attempt("prices", load_prices, name)
    elif values["prices"]:
        prices = parse_prices(values["prices"], faults, "prices")
    target = _target(values["target"], prices, faults)
    model: Model | None = None
    if values["workload"]:
        model = faults.attempt("workload", load_model, near(values["workload"]))
    faults.attempt("calibration", load_calibration, near(values["calibration"] or "nominal"))
    faults.attempt("runtime", read_runtime, values["runtime"] or BY_STRATEGY)
    check_step(values["step"], faults, "step")
    common = {key: values[key] for key in ("workload", "calibration", "runtime")}
    options = [
        option
        for i, table in enumerate(values["options"] or ())
        for option in expand(
            i, table, common, values["step"], values["global_batch"], model, folder, faults
        )
    ]
    if "options" in values.given and not values["options"] and "options" not in values.faulty:
        faults.add("options", "name at least one")
    _check_options(options, prices, faults)
    if faults.problems or prices is None or target is None:
        return None
    losses, waits = values["failures"], values["stragglers"]
    return Question(
        path.stem, values["title"] or path.stem, folder, values["workload"], prices, target,
        tuple(options), losses and Failures(**losses), waits and Stragglers(**waits),
        global_batch=values["global_batch"], **(values["sensitivity"] or {}),
    )  # fmt: skip


def _target(values: Values | None, prices: PriceList | None, faults: Faults) -> Target | None:
    if values is None:
        return Target(minimise="hourly")
    found = dict(values)
    for key in ("budget", "hourly"):
        money: Money | None = values[key]
        if money and prices and money.currency != prices.currency:
            words = f"is in {money.currency}, prices are in {prices.currency}; convert it"
            faults.add(f"target.{key}", words)
        found[key] = money and money.amount
    found["minimise"] = values["minimise"] or ("cost" if "samples" in values.given else "hourly")
    return Target(**found)


def _check_options(options: list[Option], prices: PriceList | None, faults: Faults) -> None:
    """Note machines without a price, and configurations that are named twice."""
    lacking = dict.fromkeys(
        o.key.machine for o in options if prices and prices.lacks(o.key.machine)
    )
    for machine in lacking:
        faults.add("prices", prices.lacks(machine) if prices else "")
    seen: dict[tuple[str, ...], int] = {}
    for option in options:
        if seen.setdefault(option.key, option.group) != option.group:
            words = f"has what options[{seen[option.key]}] has; give one of them a name"
            faults.add(f"options[{option.group}]", f"{option.label} {words}")
            return
