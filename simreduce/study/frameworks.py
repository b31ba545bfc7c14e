"""What frameworks do unless they are told, and what to tell them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache, partial
from math import inf
from typing import Any

from simreduce import units
from simreduce.engine.calibrate.intervals import NcclCall
from simreduce.errors import StrategyError
from simreduce.export import StrategySettings, export, settings, why_not
from simreduce.export.framework import METHODS, REPLICATED, Choice, changes
from simreduce.export.frameworks import FRAMEWORKS
from simreduce.export.frameworks.nccl import ENVIRONMENT
from simreduce.planners.packing.arrangement import BF16, FP16
from simreduce.planners.strategy import Strategy, parse_strategy, resolve
from simreduce.study.advice import (
    Advised,
    Calls,
    Doubt,
    Option,
    decide,
    difference_error,
    strategy_of,
)
from simreduce.study.ranking import ask, choice_of, lasting
from simreduce.study.scenario import Scenario

_NEW = 80
"""The compute capability of the first GPUs of PyTorch's time, 8.0."""

_COPIES = 3
"""Times that a sharded method copies all parameters or gradients in a step: into the flat gradient
and out of two gathers. They are not simulated.
"""

SCALES = 0.5, 2.0
"""Times the stated cost of a call with which a change has to be worth it too."""

MISFIT = "Nothing that was tried fits a GPU; the nearest is"
"""What advice begins with where a GPU has too little memory for all."""

Files = Callable[[Option], Mapping[str, str] | None]
"""The files that set a framework to an option; None if it has no setting for it."""


def names_for(scenario: Scenario) -> tuple[str, ...]:
    """The framework that a scenario names, or all that may run its job, on older machines those
    first that were published first.
    """
    if scenario.framework:
        return (scenario.framework,)
    found, setup = [each for each in FRAMEWORKS.values() if each.published], scenario.setup
    if setup.runtime.name == "tensorflow" or setup.capability < _NEW:
        found.sort(key=lambda each: each.published)
    return tuple(each.name for each in found)


def default_text(name: str, scenario: Scenario) -> str:
    """The strategy that a framework runs unless it is told; "" if it has none here."""
    return FRAMEWORKS[name].default(
        Choice(scenario.setup, scenario.workload, parse_strategy("nccl"))
    )


def packings_of(name: str, scenario: Scenario) -> list[tuple[str, int]]:
    """The packings of a framework with the bytes of a bucket, that of its default first."""
    packings = FRAMEWORKS[name].packings
    default = default_text(name, scenario).removeprefix("nccl")
    return [(default, 0), *packings(scenario.workload)] if packings else []


def today_words(name: str, method: str = "") -> str:
    """What a framework does unless it is told, in words."""
    framework, way = FRAMEWORKS[name], _method_words(name, method)
    whose = f"{framework.title}'s".replace("s's", "s'")
    said = way and (f" ({way})" if method == REPLICATED else f" with {way}")
    return framework.default_words or f"{whose} defaults{said}"


def _method_words(name: str, method: str) -> str:
    """A method's title, in the words for a framework that has several; else ""."""
    framework = FRAMEWORKS[name]
    return METHODS.get(method, "") if framework.title and framework.methods[1:] else ""


def files_of(
    name: str, scenario: Scenario, strategy: Strategy, method: str = ""
) -> Mapping[str, str] | None:
    """The files that set a framework to a strategy; None if it has no setting for it."""
    try:
        choice = choice_of(ask(scenario, strategy), scenario.step, method)
        return None if why_not(name, choice) else export(name, choice)
    except StrategyError:
        return None


def advise(
    name: str,
    options: Iterable[Option],
    today: Option | None,
    files: Files,
    scenario: Scenario,
    *,
    method: Callable[[Option], str] = lambda _: "",
    calls: Calls[Option] = lambda _: None,
    count: Callable[[Option], int] = lambda _: 0,
) -> Advised | None:
    """Decide what to do for a framework; None if it has a setting for none of the options.

    The time of an option hangs on some `calls` of NCCL, and it `count`s all that it makes.
    """
    error = partial(difference_error, scenario.setup, calls=calls)
    of_calls = doubt_of_calls(scenario, count)
    files = cache(files)  # TensorFlow's take a compiled plan
    now = today.name if today else ""
    packing, strategy = now.rpartition("+")[2].split("=")[0], strategy_of(now) if now else None

    def simplicity(each: Option) -> tuple[bool, int, int, str]:
        """Today's packing first, with few other settings, then fewer words."""
        changed = count_changes(strategy_of(each.name), strategy)
        return packing not in each.name, changed, len(each.name), each.name

    options = [
        each if each is today else replace(each, simplicity=simplicity(each))
        for each in in_full_precision(options, scenario)
    ]
    ranked = sorted(options, key=lambda each: (each.misfit, lasting(each)))
    known = _with_files(scenario.worth, ranked, files)
    if not known:
        return None
    own = [today] if today is not None and all(each is not today for each in known) else []

    def doubt(one: Option, other: Option) -> str:
        late = calls(one) and calls(other) and starts_late(scenario, one.name, other.name)
        return late or not_told_apart(one, other, error(one, other)) or of_calls(one, other)

    option, fastest, reason = decide([*known, *own], today, scenario.worth, doubt)
    if today and option is today and lasting(fastest) <= lasting(today) * (1 - scenario.worth):
        # Those near the fastest are in doubt; another may be sure.
        known = [
            each for each in ranked if lasting(each) < lasting(today) and files(each) is not None
        ]
        option, fastest, reason = decide([*known, today], today, scenario.worth, doubt)
    usual = (files(today) if today else _usual_files(name, scenario)) or {}

    def words(each: Option) -> str:
        told = files(each) or {}
        plain = (ENVIRONMENT in told and files_of("nccl", scenario, parse_strategy("nccl"))) or {}
        other = today and method(today) != method(each)
        before = {**told, **plain} if other else {**plain, **usual}
        return words_of(name, told, before, method(each), strategy_of(each.name))

    other = fastest if option is today else option
    return phrase(
        name,
        option,
        today,
        fastest,
        reason,
        words,
        today_words(name, method(today or option)),
        error=error(other, today) if today else None,
        more=untried_words(name, scenario, [each.name for each in options]),
        caveat="" if option is today else caveat_of(scenario, option.name, now),
    )


def untried_words(name: str, scenario: Scenario, tried: Iterable[str]) -> str:
    """What `tune` tries for a framework besides what was `tried`."""
    parts = [each.rpartition(", ") for each in tried]
    texts, ways = {text for *_, text in parts}, {way or "ddp" for way, *_ in parts}
    if not (packings := packings_of(name, scenario)):
        return "more algorithms, packings and orders of the GPUs"
    left = sum(f"nccl{text}" not in texts for text, _ in packings)
    found = [f"up to {units.plural(left, 'other packing')}"] * bool(left)
    if scenario.step and scenario.step.sharding is None:
        found += [METHODS[way] for way in FRAMEWORKS[name].methods if way not in ways]
    return ", ".join([*found, "NCCL's algorithms, protocols and channels"])


def phrase(
    name: str,
    option: Option,
    today: Option | None,
    fastest: Option,
    reason: str,
    words: Callable[[Option], str],
    standing: str,
    error: float | None = None,
    more: str = "",
    caveat: str = "",
) -> Advised:
    """What is decided, in the `words` for each option, or else its name; `standing` for today's."""

    def say(each: Option) -> str:
        return standing if each is today else words(each) or each.name

    what, title = say(option), FRAMEWORKS[name].title if name else ""
    verb = "Keep" if option is today else "Set" if re.match(r"[-\w]+=", what) else "Use"
    if option.misfit:
        verb = MISFIT
    return Advised(
        name, title, option, today, fastest, reason,
        f"{verb} {what}", standing if today else "", say(fastest), error, more, caveat,
    )  # fmt: skip


def count_changes(strategy: Strategy | None, usual: Strategy | None) -> int:
    """How many settings of its packing differ from those of the usual one."""
    packer: Any = strategy and strategy.packer
    other = usual and usual.packer
    return sum(
        getattr(packer, each.name) != getattr(other, each.name, None)
        for each in (fields(packer) if packer else ())
    )


def in_full_precision(options: Iterable[Option], scenario: Scenario) -> list[Option]:
    """The options without those in half precision that the scenario does not name.

    Training in it may end elsewhere, so nobody is advised to who did not ask.
    """
    asked = {each.text for each in scenario.strategies or ()}
    known = [(each, strategy_of(each.name)) for each in options]
    return [each for each, how in known if in_full(how) or (how and how.text in asked)]


def in_full(strategy: Strategy | None) -> bool:
    """Whether a strategy moves gradients as they are, not in half precision."""
    return strategy is None or not {FP16, BF16}.intersection(strategy.packing.split(","))


def advise_each(
    scenario: Scenario, options: Sequence[Option], advise_for: Callable[[str], Advised | None]
) -> tuple[Advised, ...]:
    """The advice for each framework of a scenario, those of the machine's time first.

    Of several, those whose default was not simulated are left out, unless that is all of them.
    Where no framework has a setting for any of the options, the fastest; none without one.
    """
    found = [each for name in names_for(scenario) if (each := advise_for(name))]
    if found or not options:
        return tuple([each for each in found if each.today] or found)
    _, best, _ = decide(
        in_full_precision(options, scenario) or options, None, 0.0, lambda _one, _other: ""
    )
    do = f"Run {best.name}"
    if scenario.framework:
        do += f", as {FRAMEWORKS[scenario.framework].title} has no setting for any of these"
    caveat = caveat_of(scenario, best.name, "")
    return (Advised("", "", best, None, best, "", do, fastest_words=best.name, caveat=caveat),)


def without_default(advice: Sequence[Advised]) -> str:
    """The first framework of advice that knows what none of them does today; "" if some is known,
    or no framework has a setting.
    """
    return "" if any(each.today for each in advice) or not advice else advice[0].framework


def call_words(strategy: Strategy | None) -> str:
    """The frameworks that have no setting for a strategy but a call, with that: `PyTorch has it as
    torch...`; "" if none has.
    """
    spec = strategy.spec if strategy else ""
    found = {each.title: each.switches.get(spec) for each in FRAMEWORKS.values() if each.trains}
    return " and ".join(f"{title} has it as {call}" for title, call in found.items() if call)


def words_of(
    name: str,
    files: Mapping[str, str],
    before: Mapping[str, str],
    method: str = "",
    strategy: Strategy | None = None,
) -> str:
    """The settings of files that those `before` lack, in words; "" if there are none.

    Half precision of the strategy is the program's to set, so it is in no line of the files.
    """
    told, way = changes(files, before), _method_words(name, method)
    if files and strategy and not in_full(strategy):
        half = half_words(name, method, bf16=BF16 in strategy.packing.split(","))
        told = f"{told} with {half}" if told else half
    return f"{told} ({way})" if told and way else told or way


def half_words(name: str, method: str, *, bf16: bool) -> str:
    """Gradients in half precision, with what to type for it; fp16 where that is all it has."""
    known = FRAMEWORKS[name].in_half if name else {}
    text = known.get(method, known.get("", ""))
    half = "bf16" if bf16 and ("{" in text or not text) else "fp16"
    typed = text.format(half=half, dtype="bfloat16" if half == "bf16" else "float16")
    return f"gradients in {half}{f' ({typed})' * bool(typed)}"


def typed_files(name: str, typed: StrategySettings) -> Mapping[str, str] | None:
    """What to type for TensorFlow or tf_cnn_benchmarks as a file, a flag on each line."""
    text = getattr(typed, name)
    return {name: text.replace(" --", "\n--")} if text else None


def _usual_files(name: str, scenario: Scenario) -> Mapping[str, str] | None:
    """The files of a default that was not simulated."""
    if not (text := default_text(name, scenario)):
        return None
    if FRAMEWORKS[name].has_typed:  # its files take a compiled plan
        return typed_files(name, settings(parse_strategy(text), scenario.setup.layout))
    return files_of(name, scenario, parse_strategy(text))


def _with_files(worth: float, ranked: Sequence[Option], files: Files) -> list[Option]:
    """The options with a setting up to the first whose time is no lower bound, and those near it.

    The fastest without unsimulated copies is among them; all, if none of them fits.
    """
    found, limit = list[Option](), inf
    for each in ranked:
        enough = lasting(each) > limit and not found[0].misfit
        if enough and any(not other.unsimulated for other in found):
            break
        if files(each) is not None:
            found.append(each)
            if not each.undispatched and limit == inf:
                limit = lasting(each) * (1 + worth)
    return found


def not_told_apart(option: Option, today: Option, error: float | None) -> str:
    """The doubt that predictions of NCCL are too far off to tell which is faster: by `error`
    seconds, if that is known.
    """
    return (
        "less than the error of these predictions: measure both"
        if (error is not None and today.seconds - option.seconds <= error)
        else ""
    )


def caveat_of(scenario: Scenario, option: str, today: str) -> str:
    """What the time of an option that replaces today's does not show."""
    half = "but half precision changes numerics" * (not in_full(strategy_of(option)))
    return ", ".join(filter(None, (half, starts_late(scenario, option, today))))


def starts_late(scenario: Scenario, option: str, today: str) -> str:
    """The doubt that larger packs than today's wait for more gradients, which an all-reduce alone
    does not show. Without a strategy of today, only one pack of all is larger.
    """
    gradients, now = scenario.workload.gradients, strategy_of(today)
    packs, before = (
        _packs_of(scenario, each) if each else () for each in (strategy_of(option), now)
    )
    if scenario.step or len(gradients) < 2 or max(packs, default=0) <= max(before, default=0):
        return ""
    if len(packs) == 1:
        return "but one pack starts after back-propagation, which takes a [step] to compare"
    larger = "but larger buckets start later in back-propagation, which takes a [step] to compare"
    return larger if now else ""


def _packs_of(scenario: Scenario, strategy: Strategy) -> list[int]:
    """Bytes of the gradients that each pack of a strategy waits for; none if it refuses them."""
    gradients = scenario.workload.gradients
    with suppress(StrategyError):
        packer = resolve(strategy, scenario.setup.layout).packer
        groups = packer.arrange(gradients).groups
        return [sum(gradients[i].nbytes for i in group) for group in groups]
    return []


def copies_of(scenario: Scenario, method: str) -> float:
    """Seconds of copies that a sharded method makes and no step simulates.

    Those are `_COPIES` of all parameters, in and out of the memory of the slowest GPU.
    """
    if method == "ddp":
        return 0.0
    nodes, ranks = scenario.setup.topology.nodes, scenario.setup.layout.ranks
    return (
        _COPIES * 2 * scenario.workload.nbytes / min(nodes[rank].memory_bandwidth for rank in ranks)
    )


def doubt_of_calls(scenario: Scenario, calls: Callable[[Option], int]) -> Doubt:
    """The doubt that a gain is less than what the costs of all `calls` may be off by.

    They may cost half or twice of what is stated.
    """
    cost = scenario.setup.call_cost

    def doubt(option: Option, today: Option) -> str:
        off = max((most - 1) * calls(option), (1 - least) * calls(today)) * cost
        if lasting(today) - lasting(option) - off >= scenario.worth * lasting(today):
            return ""
        return f"but {units.format_duration(off)} of calls may cost half or twice of that"

    least, most = SCALES
    return doubt


def calls_of(scenario: Scenario, strategy: Strategy | None) -> list[NcclCall] | None:
    """Calls of NCCL that a strategy makes for a workload, about; None if others move bytes."""
    if strategy is None or not strategy.reduced_by_nccl:
        return None
    return scenario.setup.calls_of(strategy, scenario.workload) or None
