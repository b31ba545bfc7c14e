"""A capacity question as a TOML file: a target, options, prices, and how nodes fail.

A reader reports every fault of the file, and of what it names, at once.

Time that a cluster loses: to nodes that fail, and to the slowest worker of a step.

Failures of nodes are independent and exponential: N nodes of mean time M1 between failures fail
every M = M1 / N on average, and a failure of one stops all. The job writes a checkpoint every tau
seconds of progress, which takes delta; after a failure it starts again from the last one, which
takes R. A segment is repeated until no failure falls into it, and failures also fall into restarts
and checkpoints. The expected time of a segment is then (Daly 2006, A higher order estimate of the
optimum checkpoint interval for restart dumps, Future Generation Computer Systems 22, equation 20)

    M exp(R/M) (exp((tau + delta)/M) - 1)

and goodput is tau over that. Its best tau solves (1 - tau/M) exp((tau + delta)/M) = 1:

    tau = M (1 + W(-exp(-1 - delta/M)))

W is Lambert's function. To first order that is Young's sqrt(2 delta M) (Young 1974).

Not modelled of failures: nodes that run out (spares are there), work that is lost between a failure
and its detection (count it into the restart), failures that come in groups, checkpoints that
overlap with compute (count only the time that they stop the job).

The compute of a step waits for the slowest of n workers, whose times are independent draws from a
distribution. Only its shape counts: the step's own compute time is the mean. So compute takes
E[largest of n] / E[one] times as long, which `Distribution.order_statistic` gives.

Not modelled of stragglers: communication that a slow worker's wait would hide, and workers that are
slow for many steps (that is the `--slow` of a simulation).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from simreduce.engine.calibrate import load_calibration
from simreduce.engine.setup import BY_STRATEGY, read_runtime
from simreduce.errors import InputError, ScenarioError, quote
from simreduce.files import parse_toml, read_text
from simreduce.files.formats import (
    ANYTHING,
    LINE,
    Field,
    FieldValues,
    Format,
    OneOrMore,
    Scalar,
    TableOf,
    TablesOf,
    choice,
    number,
    text_of,
    whole,
)
from simreduce.files.formats.syntax import Faults, inside
from simreduce.study.capacity.choose import COPY, COST, HOURLY, OBJECTIVES, CapacityTarget
from simreduce.study.capacity.options import (
    MOST_NODES,
    OPTION,
    CapacityOption,
    check_step,
    expand,
    expand_jobs,
)
from simreduce.study.capacity.price_list import (
    HOURLY as PER_HOUR,
    MONEY,
    PERIOD,
    SOME_PERIOD,
    Money,
    PriceList,
    join,
    load_prices,
    parse_prices,
)
from simreduce.study.job_files import NOT_FREE, build_mix
from simreduce.study.scenario_files import beside, read_scenario_file
from simreduce.study.sweep import MESH
from simreduce.topology.loader import CLASSES
from simreduce.training import load_model
from simreduce.training.distributions import Distribution
from simreduce.training.replicas import ComputeTime
from simreduce.training.step_table import MOST_SAMPLES
from simreduce.workload.loader import load_decoder

GPU, NODE = "gpu", "node"


FAILURES = Format(
    "failures",
    "How often nodes fail and what a failure costs.",
    Field("mtbf", SOME_PERIOD, "Mean time between failures of one node.", required=True),
    Field("checkpoint", PERIOD, "Time that writing a checkpoint stops the job.", required=True),
    Field(
        "restart",
        PERIOD,
        "Time from a failure until the job computes again, detection included.",
        required=True,
    ),
    Field(
        "interval",
        SOME_PERIOD,
        "Time of progress between two checkpoints.",
        default_words="the best for each number of nodes",
    ),
)


def _has_mean(values: FieldValues, faults: Faults, path: str) -> None:
    times: Distribution | None = values["compute"]
    faults.check(
        times is None or 0.0 < times.expected < math.inf,
        inside(path, "compute"),
        "must have a mean above 0 s that is finite",
    )


STRAGGLERS = Format(
    "stragglers",
    "How unequal compute times of workers are, step by step.",
    Field("compute", ComputeTime(), "The distribution of a worker's compute time; only its shape"
          " counts.", required=True),
    Field("of", choice((GPU, NODE), "worker"), "What draws a time: every GPU, or every node.",
          NODE),
    check=_has_mean,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Failures:
    """The seconds of failures and checkpoints.

    They are of a node between failures, of a checkpoint, of a restart, and between checkpoints
    (None: the best).
    """

    mtbf: float
    checkpoint: float
    restart: float
    interval: float | None = None

    def between(self, nodes: int) -> float:
        """Seconds between failures of so many nodes."""
        return self.mtbf / nodes

    def best_interval(self, nodes: int) -> float:
        """Seconds of progress between two checkpoints: those given, else those that give the
        highest goodput, 0 where checkpoints cost nothing.
        """
        if self.interval or self.checkpoint == 0.0:
            return self.interval or 0.0
        from scipy.special import lambertw  # noqa: PLC0415 - takes a while to load

        mtbf = self.between(nodes)
        ratio = self.checkpoint / mtbf
        if ratio < 1e-6:  # 1 + W would lose digits; this is its series (Corless et al. 1996, 4.22)
            p = math.sqrt(-2.0 * math.expm1(-ratio))
            return mtbf * p * (1 + p * (-1 / 3 + p * (11 / 72 + p * (-43 / 540 + p * 769 / 17280))))
        return mtbf * (1.0 + float(lambertw(-math.exp(-1.0 - ratio)).real))

    def goodput(self, nodes: int) -> float:
        """The part of the time in which so many nodes make progress, from 0 to 1; see the head of
        this module.
        """
        mtbf, interval = self.between(nodes), self.best_interval(nodes)
        again, segment = self.restart / mtbf, (interval + self.checkpoint) / mtbf
        if again > 700.0 or segment > 700.0:  # beyond what exp can hold: no progress
            return 0.0
        if interval == 0.0:
            return math.exp(-again) if self.checkpoint == 0.0 else 0.0
        return interval / mtbf / (math.exp(again) * math.expm1(segment))


@dataclass(frozen=True, slots=True)
class Stragglers:
    """A distribution of compute times of each GPU or node."""

    compute: Distribution
    of: str = NODE

    def factor(self, nodes: int, devices: int) -> float:
        """Times as long as the mean that the slowest worker computes."""
        workers = nodes if self.of == NODE else devices
        return self.compute.order_statistic(workers, workers) / self.compute.expected


def _text_or_table(value: object) -> str | dict[str, Any]:
    if isinstance(value, (str, dict)):
        return value
    raise ValueError(f"must be {_PRICES.words}")


_PRICES: Scalar[str | dict[str, Any]] = Scalar(
    "the name or the file of a price list, or a table with one",
    {"anyOf": [{"type": "string"}, {"type": "object"}]},
    _text_or_table,
)
"""A price list by name or file, or as a table."""


_LEAST = {
    "samples": 1.0,
    "tokens": 1.0,
    "samples_per_second": 1e-9,  # one in 30 years
    "tokens_per_second": 1e-9,
}


_OF_JOBS = ("slowdown", "copies", COPY)
"""Targets of jobs."""
_WITH_JOBS = (
    "title", "jobs", "prices", "target", "options", "name", "machine", "nodes", "network", "nic",
    "hourly", *_OF_JOBS,
)  # fmt: skip
"""Keys of all tables that go with `jobs`."""


def _large_enough(values: FieldValues, faults: Faults, path: str) -> None:
    for key, least in _LEAST.items():
        words = f"must be at least {least:g}, got {quote(values[key])}"
        faults.check(values[key] is None or values[key] >= least, inside(path, key), words)
    runs = [key for key in ("samples", "tokens") if key in values.given]
    need = next((key for key in ("time", "budget") if key in values.given), "")
    words = f"{need} is that of a run; give samples or tokens, how many it takes"
    faults.check(not need or runs or "slowdown" in values.given, path, words)
    faults.check(len(runs) < 2, path, "give one of samples, tokens; it has both")


TARGET = Format(
    "target",
    "What a configuration must meet, all of it, and what to minimise.",
    Field("samples", number(0.0), "Samples of the run whose time and cost count.",
          default_words="no run: prices of an hour and of a million count"),
    Field("tokens", number(0.0), "Tokens of the run, instead of samples."),
    Field("step_time", SOME_PERIOD, "Time of a step at most, stragglers included."),
    Field("efficiency", number(0.0, 1.0), "Samples a second over those if nothing moved and none"
          " waited, at least: `0.9` for 90 %; stragglers and failures count."),
    Field("samples_per_second", number(0.0), "Samples a second at least, failures included."),
    Field("tokens_per_second", number(0.0), "Tokens a second at least, failures included."),
    Field("cost_per_million_tokens", MONEY, "Cost of a million tokens at most."),
    Field("time", SOME_PERIOD, "Time of the run at most."),
    Field("budget", MONEY, "Cost of the run at most."),
    Field("hourly", PER_HOUR, "Price per hour at most."),
    Field("minimise", choice(OBJECTIVES, "objective"), "`cost` of the run, `hourly` price, or"
          " `time` of the run; without a run, cost and time are those of a million.",
          default_words="`cost`; `hourly` without a run"),
    Field("slowdown", number(1.0, 1e6), "Of `jobs`: how many times as long as alone none may take"
          " more than."),
    Field("copies", whole(1, MOST_NODES), "Of `jobs`: copies that must fit.",
          default_words="one, and the price per hour and copy is minimised"),
    Field("hourly_per_copy", PER_HOUR, "Of `jobs`: price per hour and copy at most."),
    check=_large_enough,
)  # fmt: skip


def _file_beside(text: str) -> str:
    if not text or text == ".." or Path(text).name != text:
        raise ValueError("must be the name of a file beside this one, without a folder")
    return text


def _one_question(values: FieldValues, faults: Faults, path: str) -> None:
    """Note what does not go with jobs, and what does only with them."""
    target = values["target"] or FieldValues()
    if "jobs" not in values.given:
        words = f"missing; must be {LINE.words}, or give jobs"
        faults.check("workload" in values.given, inside(path, "workload"), words)
        for key in sorted(target.given & {*_OF_JOBS}):
            faults.add(f"target.{key}", "is for jobs; give their file as jobs")
        return
    words = "missing; how many times as long as alone no job may take more than, such as 1.1"
    faults.check("slowdown" in target.given, "target.slowdown", words)
    for place, table in {
        "": values,
        "target": target,
        **{f"options[{i}]": each for i, each in enumerate(values["options"] or ())},
    }.items():
        for key in [key for key in table if key in table.given and key not in _WITH_JOBS]:
            faults.add(inside(place, key), "is for one training step; leave it out beside jobs")


SENSITIVITY = Format(
    "sensitivity",
    "How to look for the values at which the answer changes.",
    Field("tolerance", number(1e-4, 0.5), "Relative width to which simulations narrow a rate.",
          0.01),
    Field("patience", SOME_PERIOD, "Time after which the search at rates stops with what it knows.",
          300.0, default_words="`5 min`"),
    Field("within", number(1.01, 100.0), "Factor up and down within which rates are tried.",
          4.0),
)  # fmt: skip
CAPACITY = Format(
    "capacity",
    "Which machines, how many of them, on which network, for which money.",
    Field("title", LINE, "The title of reports.", default_words="the file's name"),
    Field("workload", LINE, "A shipped model or a file; or `jobs`."),
    Field("jobs", text_of(_file_beside, "the name of a file beside this one", "mix.toml"),
          "Instead of a workload: the file of a mix of jobs, as `simreduce jobs` reads it, of which"
          " copies are to fit. Options are its machines; what it says of its own does not count."),
    Field("calibration", LINE, "A shipped calibration or a file.", "nominal"),
    Field("runtime", LINE, "The runtime of all strategies.", "by_strategy"),
    Field("global_batch", whole(1, MOST_SAMPLES), "Samples of a step of all GPUs together: each"
          " gets its part, and a number of GPUs that does not divide it is no option.",
          default_words="`step.batch` for each GPU; `step.global_batch` of meshes"),
    Field("tokens_per_sample", whole(1, MOST_SAMPLES), "Tokens of a sample.",
          default_words="the model's sequence, if it has one"),
    Field("prices", OneOrMore(_PRICES), "A shipped price list, a file, a table `[prices]`, or a"
          " list of them, which join: of a price that two have, the first counts.",
          required=True),
    Field("target", TableOf(TARGET), "What to meet."),
    Field("step", ANYTHING, "Keys of `[step]` of a scenario, for all options. With a `mesh`, its"
          " fastest that fits counts, on each number of machines."),
    Field("options", TablesOf(OPTION), "Configurations to choose from.", required=True),
    Field("failures", TableOf(FAILURES), "How nodes fail.", default_words="they do not"),
    Field("fails", OneOrMore(choice(CLASSES, "part")), "Parts of the choice to lose, one of them"
          " at a time, to see what is left of its rate.", [], default_words="none"),
    Field("stragglers", TableOf(STRAGGLERS), "How unequal compute times are.",
          default_words="all equal"),
    Field("sensitivity", TableOf(SENSITIVITY), "How to look for flips.",
          default_words="as below"),
    check=_one_question,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CapacityQuestion:
    """The question of a capacity file. Files that options name are looked for in `folder` first.
    The `workload` is a model, or the file of jobs where the target has a `slowdown`.
    """

    name: str
    title: str
    folder: str
    workload: str
    prices: PriceList
    target: CapacityTarget
    options: tuple[CapacityOption, ...]
    failures: Failures | None = None
    stragglers: Stragglers | None = None
    tolerance: float = 0.01
    within: float = 4.0
    patience: float = 300.0
    global_batch: int | None = None
    fails: tuple[str, ...] = ()


def load_question(text: str, prices: Sequence[str] = ()) -> CapacityQuestion:
    """The question in a file, with other price lists if some are given.

    InputError lists every fault.
    """
    path = Path(text)
    document = parse_toml(text, read_text(path, InputError), InputError)
    faults = Faults(text, options={"prices": "--prices"} if prices else None)
    if prices:
        document = {**document, "prices": [*prices]}
    values = CAPACITY.read(document, faults)
    folder, given = str(path.parent), values["prices"] or ()
    listed = _prices(given, str if prices else partial(beside, path), faults)
    read = _read_jobs if "jobs" in values.given else _read_steps
    target, options = read(values, listed, folder, faults)
    _check_options(options, listed, values, faults)
    if faults.problems or listed is None:  # options of several machines have the same ones
        raise InputError([*dict.fromkeys(faults.problems)])
    losses, waits = values["failures"], values["stragglers"]
    return CapacityQuestion(
        path.stem, values["title"] or path.stem, folder, values["workload"] or values["jobs"],
        listed, target, tuple(options),
        losses and Failures(**losses), waits and Stragglers(**waits),
        global_batch=values["global_batch"], fails=tuple(values["fails"]),
        **(values["sensitivity"] or {}),
    )  # fmt: skip


def _read_steps(
    values: FieldValues, prices: PriceList | None, folder: str, faults: Faults
) -> tuple[CapacityTarget, list[CapacityOption]]:
    """The target and the options for a training step."""
    near = partial(beside, Path(folder, "-"))
    steps = [{**_table(values["step"]), **_table(o["step"])} for o in values["options"] or ()]
    on_meshes = [MESH in step for step in steps]
    named = near(values["workload"]) if values["workload"] else ""
    meshed, plain = any(on_meshes), not (on_meshes and all(on_meshes))
    decoder = faults.attempt("workload", load_decoder, named) if named and meshed else None
    model = faults.attempt("workload", load_model, named) if named and plain else None
    words = "steps on a mesh are not simulated without a part of the machine"
    faults.check(not (any(on_meshes) and values["fails"]), "fails", words)
    known = decoder or model
    tokens = values["tokens_per_sample"] or (known.tokens if known else 0)
    target = _target(values["target"], prices, tokens, faults)
    of_tokens = ("tokens", "tokens_per_second", "cost_per_million_tokens")
    wanted = [key for key in of_tokens if values["target"] and key in values["target"].given]
    if wanted and known is not None and not tokens and "tokens_per_sample" not in values.given:
        words = f"nobody says how many tokens a sample of {known.name} has; give tokens_per_sample"
        faults.add(f"target.{wanted[0]}", words)
    faults.attempt("calibration", load_calibration, near(values["calibration"] or "nominal"))
    faults.attempt("runtime", read_runtime, values["runtime"] or BY_STRATEGY)
    check_step(values["step"], faults, "step")
    common = {key: values[key] for key in ("workload", "calibration", "runtime")}
    return target, [
        option
        for i, table in enumerate(values["options"] or ())
        for option in expand(
            i, table, common, values["step"], values["global_batch"], model, decoder, folder, faults
        )
    ]


def _read_jobs(
    values: FieldValues, prices: PriceList | None, folder: str, faults: Faults
) -> tuple[CapacityTarget, list[CapacityOption]]:
    """The target and the options for a mix of jobs. What is wrong with the mix on all machines is
    wrong with it; what is wrong on some of them makes these no options.
    """
    target = _target(values["target"], prices, 0, faults)
    jobs = values["jobs"] and str(Path(folder, values["jobs"]))
    mix = faults.attempt("jobs", read_scenario_file, jobs) if jobs else None
    options = [
        option
        for i, table in enumerate(values["options"] or ())
        for option in expand_jobs(
            i, table, mix[1] if mix else {}, target.slowdown or 1.0, folder, faults
        )
    ]
    if mix:
        _check_mix(mix[0], options, faults)
    return target, options


def _check_mix(path: Path, options: Sequence[CapacityOption], faults: Faults) -> None:
    """Note what is wrong with a mix on the largest option of every machine. Machines that cannot be
    built are no options.
    """
    wrong = list[Sequence[str]]()
    for option in {o.key.machine: o for o in sorted(options, key=lambda o: o.nodes)}.values():
        try:
            build_mix(path, option.scenario)
        except ScenarioError as error:
            wrong.append(error.problems)
        else:
            return
    for problem in wrong[0] if wrong else ():
        of_machines = problem.startswith(f"{path}: topology: ") or problem.endswith(NOT_FREE)
        faults.check(of_machines or not all(problem in each for each in wrong), "jobs", problem)


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _prices(given: Sequence[Any], near: Callable[[str], str], faults: Faults) -> PriceList | None:
    """The lists that `prices` names, as one; None if one has a fault."""
    paths = [f"prices[{i}]" for i in range(len(given))] if len(given) > 1 else ["prices"]
    lists = [
        faults.attempt(path, load_prices, near(each))
        if isinstance(each, str)
        else parse_prices(each, faults, path)
        for path, each in zip(paths, given, strict=False)
    ]
    known = [each for each in lists if each is not None]
    return faults.attempt("prices", join, known) if known and len(known) == len(lists) else None


def _target(
    values: FieldValues | None, prices: PriceList | None, tokens: int, faults: Faults
) -> CapacityTarget:
    if values is None:
        return CapacityTarget(minimise=HOURLY, tokens=tokens)
    found = dict(values)
    for key in ("budget", "hourly", "cost_per_million_tokens", COPY):
        money: Money | None = values[key]
        if money and prices:
            faults.check(
                money.currency == prices.currency,
                f"target.{key}",
                f"is in {money.currency}, prices are in {prices.currency}; convert it",
            )
        found[key] = money and money.amount
    if (run := found.pop("tokens")) is not None:
        found["samples"] = run / (tokens or 1)
    usual = HOURLY if found["samples"] is None else COST
    if values["slowdown"] is not None and values["copies"] is None:
        usual = COPY
    found["minimise"] = values["minimise"] or usual
    return CapacityTarget(**found, tokens=tokens)


def _check_options(
    options: list[CapacityOption], prices: PriceList | None, values: FieldValues, faults: Faults
) -> None:
    """Note that there are none, machines without a price, and configurations named twice."""
    faults.check(values["options"] != [], "options", "name at least one")
    for machine in dict.fromkeys(
        o.key.machine for o in options if prices and prices.lacks(o.key.machine)
    ):
        faults.add("prices", prices.lacks(machine) if prices else "")
    seen: dict[tuple[str, ...], int] = {}
    for option in options:
        if seen.setdefault(option.key, option.group) != option.group:
            faults.add(
                f"options[{option.group}]",
                f"{option.key.label} has what options[{seen[option.key]}] has;"
                " give one of them a name",
            )
            return
