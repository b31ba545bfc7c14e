"""Synchronous replicas: the time of an update, the best number of backups, and a timeline.

Their page also says what limits updates of workers that do not compute equally long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from simreduce import units
from simreduce.engine import NOMINAL, TENSORFLOW
from simreduce.engine.setup import Setup
from simreduce.files import tables
from simreduce.files.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    INTEGER,
    MICROSECONDS,
    PER_SECOND,
    RATIO,
    TEXT,
    Document,
    Key,
    KeyKind,
    Record,
    list_of,
    or_null,
)
from simreduce.files.tables import Column, Table, percent
from simreduce.report.blocks import (
    IDLE,
    WIDTH,
    Attachments,
    Block,
    Fact,
    Page,
    Paragraph,
    Rows,
    Section,
    TimelineRow,
    Written,
    bars,
    page_text,
    stack,
    timeline_rows,
)
from simreduce.report.explain import change_words, help_section, limit_words, nic_fact
from simreduce.report.headings import CALIBRATION_KEY, DISTURBANCE_KEY, faster
from simreduce.report.plots.axes import Axis
from simreduce.report.sections import (
    calibration_section,
    machine_section,
    repeat_section,
    timeline_section,
    us,
)
from simreduce.study.scenario import Replicas
from simreduce.training.distributions import Constant, Distribution, Empirical
from simreduce.training.replicas import ReplicasJob, ReplicasQuestion
from simreduce.training.replicas.network import Delays
from simreduce.training.replicas.processes import ReplicasRun, WorkerStep
from simreduce.training.stragglers import CONFIDENCE, BackupChoice, Repetitions

_MOST = 8
"""Workers unlike the others that the head names, and workers of a timeline, at most."""


class Updates(NamedTuple):
    """Simulated updates, and the numbers of backups that were tried; not `complete` if the command
    was stopped.
    """

    question: ReplicasQuestion
    spread: Repetitions
    choices: Sequence[BackupChoice] = ()
    scenario: Replicas | None = None
    complete: bool = True

    @property
    def setup(self) -> Setup | None:
        """The machine of the scenario, if it has one."""
        return self.scenario.setup if self.scenario else None


def replicas_text(found: Updates, run: ReplicasRun | None = None) -> str:
    """The report under the job, with a timeline of a `run`, and what was left out by Ctrl-C."""
    question, job, settings = found.question, found.question.job, found.question.job.settings
    document = REPLICAS.write(found)
    page = replicas_report(document)
    about = [
        page.about,
        ", ".join((
            f"{units.plural(settings.tokens_per_step, 'token')} after an update",
            f"{settings.initial_tokens} at first",
            *["no two workers share a link"] * (not document["contention"]),
        )),
        f"times are without the first {units.plural(question.skip, 'update')}, seed {job.seed}",
        *_computing(job),
    ]  # fmt: skip
    header = _header(found.scenario) if found.scenario else []
    lines = [page_text(page, head=[*header, *tables.comments(about), ""])]
    if run and run.updates:
        lines += ["", *replicas_timeline(run, job.names)]
    if not found.complete:
        made, wanted = document["repetitions"], question.repetitions
        when = f"after {made} of {units.plural(wanted, 'repetition')}"
        lines += ["", f"ended {when if made < wanted else 'before all backups were tried'}"]
    return "\n".join(lines)


def replicas_report(document: Written) -> Page:
    """The report on updates, for a terminal and a page."""
    workers, needed = document["workers"], document["replicas_to_aggregate"]
    backups = backups_of(document)
    where = f" on {document['topology']}" if document["topology"] else ""
    repetitions = units.plural(document["repetitions"], "repetition")
    variables = units.plural(document["variables"], "variable")
    sent = f"{document['workload']}, {variables}" if document["workload"] else variables
    return Page(
        title=f"{document['scenario']}: updates of synchronous replicas",
        about=f"{units.plural(workers, 'worker')}{where}, {sent}; an update takes "
        f"{units.plural(needed, 'gradient')}, so {units.plural(backups, 'worker')} "
        f"{units.noun(backups, 'is a backup', 'are backups')}. {repetitions} of "
        f"{document['updates']} updates simulated.",
        answer=_answer(document, backups),
        sure=_sure(document),
        facts=tuple(_facts(document, backups)),
        sections=(Section("choice", "How many backups", (_backups(document, backups),)),),
    )


def backups_of(document: Written) -> int:
    """The workers whose gradients an update does not need."""
    return max(int(document["workers"]) - int(document["replicas_to_aggregate"]), 0)


def _answer(document: Written, backups: int) -> str:
    step, best = document["step_time_us"], document["best_backups"]
    if step["mean"] is None:
        return "Training stops in every repetition: not all updates are ever made."
    took = f"One update takes {us(step['mean'])}"
    if best is None:
        return f"{took} with {units.plural(backups, 'backup')}."
    now, then = (row_of(document, each) for each in (backups, best))
    if best == backups or now is None or then is None:
        return f"Keep {units.plural(backups, 'backup')}: {took[0].lower()}{took[1:]}."
    if now["as_good_as_the_best"]:
        return (
            f"Keep {units.plural(backups, 'backup')}: {took[0].lower()}{took[1:]}. {best} is "
            "better by less than the random times explain."
        )
    mine, other = (each["gradients_per_second"]["mean"] for each in (then, now))
    number = units.plural(best, "backup") if best else "no backups"
    more = f"{mine / other - 1.0:.1%} more" if other else "and training stops less often"
    gain = f"{mine:.1f} gradients enter updates in a second, {more} than with {backups}"
    return f"Use {number}: {gain}."


def row_of(document: Written, backups: int) -> Written | None:
    """The outcome of a number of backups, if it was tried."""
    return next((each for each in document["backups"] if each["backups"] == backups), None)


def _range(step: Written) -> str:
    if step["low"] is None or step["high"] is None:
        return "not known: there is one repetition"
    return f"{us(step['low'])} to {us(step['high'])}"


def _sure(document: Written) -> str:
    step, blocked = document["step_time_us"], document["blocked"]
    repetitions = units.plural(document["repetitions"], "repetition")
    stops = f"In {blocked} of {repetitions} training stops" * bool(blocked)
    if step["mean"] is None:
        return f"{stops}."
    others = f" {stops}; times are those of the others." if stops else ""
    return (
        f"How sure: with {document['confidence']:.0%} confidence the mean of more repetitions is "
        f"{_range(step)}. That is the error of the random compute times alone; no published "
        f"timings say how far off the model of the machine is.{others}"
    )


def _facts(document: Written, backups: int) -> Iterable[Fact]:
    step, share = document["step_time_us"], document["dropped_share"]
    took = "never made" if step["mean"] is None else us(step["mean"])
    some = share is not None  # there are gradients
    dropped = f"{share:.2%} of the gradients come too late and are dropped." if some else ""
    yield Fact("How many backups?", *_choice(document, backups))
    yield Fact(f"How long does an update take with {backups}?", took, dropped)
    if step["mean"] is not None:
        more = f"The mean, with {document['confidence']:.0%} confidence."
        yield Fact("How sure is that?", _range(step), more)


def _choice(document: Written, backups: int) -> tuple[str, str]:
    if not document["backups"]:
        return str(backups), "Given; simreduce step --backups tries others."
    best = document["best_backups"]
    if best is None:
        return "none will do", "Training stops with every number of them."
    equal = [
        str(each["backups"])
        for each in document["backups"]
        if each["as_good_as_the_best"] and each["backups"] != best
    ]
    if str(backups) in equal:
        others = [each for each in equal if each != str(backups)]
        better = f"{best} is better by less than the random times explain."
        return f"{backups}, as now", f"{better}{_as_good(others)}"
    more = _as_good(equal)
    stops = sorted({each["blocked"] for each in document["backups"]})
    tried = (
        f"of those tried{' with which training stops least often' * (len(stops) > 1)}"
        f"{', in the repetitions in which it stops with none of them' * bool(stops[0])}"
    )
    return str(best), f"Most gradients in a second, {tried}.{more}"


def _as_good(numbers: Sequence[str]) -> str:
    return f" {' and '.join(numbers)} may be as good." if numbers else ""


def _backups(document: Written, now: int) -> Block:
    """Updates and gradients over the number of backups."""
    found = document["backups"]
    rated = [each for each in found if each["gradients_per_second"]["mean"] is not None]
    whole = ({**each, "in_update": document["workers"] - each["backups"]} for each in found)
    table = _BACKUPS.table(whole)
    if not rated:
        ask = Paragraph("simreduce step --backups compares numbers of backups.")
        return Rows("Every number that was tried", table) if found else ask
    best = document["best_backups"]
    rows = [
        {
            "name": units.plural(each["backups"], "backup"),
            "rate": each["gradients_per_second"]["mean"],
        }
        for each in rated
    ]
    marks = [1 if each["backups"] == best else 2 * (each["backups"] == now) for each in rated]
    axis = Axis("gradients a second", log=False)
    words = (
        "Gradients that enter updates in a second, with the same random times. Blue: the best; "
        "orange: the scenario's. Fewer gradients in an update make it faster, and worth less."
    )
    return bars(words, table, rows, "name", "rate", marks, axis=axis)


def _computing(job: ReplicasJob) -> list[str]:
    """How long workers compute, and which of them are not as the others."""
    each = "by worker" if isinstance(job.compute, tuple) else _distribution(job.compute)
    odd = [
        f"worker {w} takes {factor:.4g} times as long"
        for w, factor in job.slow.items()
        if factor != 1.0
    ]
    for worker, seconds in job.dies.items():
        back = (
            f", back at {units.format_duration(job.returns[worker])}"
            if worker in job.returns
            else ""
        )
        odd.append(f"worker {worker} stops at {units.format_duration(seconds)}{back}")
    more = [f"and {len(odd) - _MOST} more"] if len(odd) > _MOST else []
    return [f"computing: {each}", *(["; ".join([*odd[:_MOST], *more])] if odd else [])]


def _distribution(times: Distribution) -> str:
    """As the table of a scenario has it."""
    if isinstance(times, Constant):
        return units.format_duration(times.seconds)
    if isinstance(times, Empirical):
        mean = units.format_duration(times.expected)
        return f"one of {units.plural(len(times.seconds), 'measured time')}, {mean} on average"
    figures = {each.name: getattr(times, each.name) for each in fields(times)}  # type: ignore[arg-type]
    words = [
        f"{name} {value:g}" if name == "shape" else f"{name} {units.format_duration(value)}"
        for name, value in figures.items()
        if value or name != "least"
    ]
    return f"{type(times).__name__.lower()}, {', '.join(words)}"


def _header(scenario: Replicas) -> list[str]:
    """The header, with the machine and the workload if the scenario has them."""
    facts: list[tuple[str, str]] = []
    if at := scenario.setup:
        machine, calibration = at.topology, at.calibration
        facts += [
            ("topology", f"{machine.name}: {machine.title}, {machine.digest}"),
            ("runtime", at.runtime.name),
            ("calibration", tables.label(calibration.name, calibration.title)),
            ("disturbed", at.disturbed),
        ]
    if w := scenario.workload:
        gradients = units.plural(len(w.gradients), "gradient")
        facts.append(("workload", f"{w.name}: {gradients}, {units.format_size(w.nbytes)}"))
    return tables.header(scenario.title, [*facts, ("", "faithful to upstream" * scenario.faithful)])


UPDATES = 4
"""That are shown, the last ones of the run."""


def replicas_timeline(run: ReplicasRun, names: Sequence[str], most: int = WIDTH) -> list[str]:
    """A row for every worker, and below, when updates were made; nothing if there is none.

    A character shows what a worker does for most of its span of time.
    """
    if not run.updates:
        return []
    first = max(len(run.updates) - UPDATES, 0)
    begin, end = run.updates[first - 1].time if first else 0.0, run.seconds
    shown = range(len(names)) if len(names) <= _MOST else (*range(_MOST - 1), len(names) - 1)
    steps = (*run.steps, *run.unfinished)
    rows: list[TimelineRow] = [
        (names[worker], [span for step in steps if step.worker == worker for span in _spans(step)])
        for worker in shown
    ]
    marks = [(update.time, update.time, "|") for update in run.updates[first:]]
    numbers = f"updates {first + 1} to {len(run.updates)}"
    more = [f"  ({units.plural(len(names) - _MOST, 'worker')} more)"] if len(names) > _MOST else []
    return [
        f"the first repetition, {numbers}: r reads, C computes, s sends, {IDLE} waits or is gone",
        *timeline_rows([*rows, ("updates", marks)], begin, end, units.format_duration(end), most),
        *more,
    ]


def _spans(step: WorkerStep) -> Iterable[tuple[float, float, str]]:
    """When a worker reads, computes and sends."""
    times = pairwise((step.begun, step.read, step.computed, step.asked))
    return ((since, until, kind) for kind, (since, until) in zip("rCs", times, strict=True))


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _spread(name: str, unit: KeyKind) -> Record:
    return Record(
        name,
        "A mean with its 95 % interval; null without a whole repetition, or with too few.",
        Key("mean", or_null(unit), "The mean of the repetitions.", lambda i: _finite(i.mean)),
        Key("low", or_null(unit), "The lower end.", lambda i: _finite(i.low)),
        Key("high", or_null(unit), "The upper end.", lambda i: _finite(i.high)),
    )


def _mean_columns(name: str, unit: str, factor: float, digits: int) -> tuple[Column, ...]:
    """The mean times `factor`, and how far the upper end of its interval is from it."""

    def show(value: float | None) -> str:
        return "-" if value is None else f"{value * factor:.{digits}f}"

    def show_width(interval: Mapping[str, float | None]) -> str:
        mean, high = interval["mean"], interval["high"]
        return show(None if mean is None or high is None else high - mean)

    return (
        Column(name, unit, show=lambda interval: show(interval["mean"])),
        Column("", "(+-)", show=show_width),
    )


_TIME, _RATE = _spread("interval", MICROSECONDS), _spread("rate", PER_SECOND)
_BACKUPS = Record(
    "backups",
    "The outcome of a number of backup workers.",
    Key("backups", COUNT, "That number.", column=Column("backups")),
    Key(
        "in_update", COUNT, "Gradients of an update.",
        column=Column("in an update", "(gradients)", spare=1), written=False,
    ),
    Key(
        "step_time_us", _TIME, "An update.", "step",
        column=_mean_columns("update", "(ms)", 1e-3, 3),
    ),
    Key(
        "ideal_step_time_us",
        or_null(MICROSECONDS),
        "A step that all workers begin together with free communication; null if workers differ.",
        lambda choice: _finite(choice.ideal),
        column=Column("ideal", "(ms)", spare=3),
    ),
    Key(
        "gradients_per_second", _RATE, "Gradients that enter updates.", "rate",
        column=_mean_columns("gradients", "(1/s)", 1.0, 1),
    ),
    Key(
        "dropped_share", or_null(RATIO), "Stale gradients as a part of all.", "wasted",
        column=Column("dropped", "(share)", show=percent(2)),
    ),
    Key(
        "blocked", COUNT, "Repetitions that did not make all their updates.",
        column=Column("runs that stop", spare=2, show=lambda n: str(n or "-")),
    ),
    Key(
        "as_good_as_the_best", FLAG, "Whether it is not told apart from the best.", "as_good"
    ),
)  # fmt: skip
REPLICAS = Document(
    "step-replicas",
    "`simreduce step --json` of a scenario with `[replicas]`: an update of synchronous replicas, "
    "and the best number of backups.",
    Key("scenario", TEXT, "The scenario's name or file.", "scenario.name"),
    Key(
        "topology", or_null(TEXT), "The name of the machine; null without one.",
        "setup.topology.name",
    ),
    Key(
        "topology_digest", or_null(TEXT), "Names the machine's content; null without one.",
        "setup.topology.digest",
    ),
    Key(
        "workload", or_null(TEXT), "The name of what is reduced; null without one.",
        "scenario.workload.name",
    ),
    Key(
        "size_bytes", or_null(BYTES), "All gradients; null without a workload.",
        "scenario.workload.nbytes",
    ),
    Key(
        "runtime", TEXT, "The system that runs it.",
        lambda found: (found.setup.runtime if found.setup else TENSORFLOW).name,
    ),
    replace(
        CALIBRATION_KEY,
        get=lambda found: (found.setup.calibration if found.setup else NOMINAL).name,
    ),
    replace(
        DISTURBANCE_KEY,
        get=lambda found: found.setup.disturbed if found.setup else "",
    ),
    Key(
        "faithful", FLAG, "Whether it does what upstream does, quirks included.",
        "scenario.faithful",
    ),
    Key("workers", COUNT, "Workers.", "question.job.workers"),
    Key("variables", COUNT, "Variables.", "question.job.variables"),
    Key(
        "replicas_to_aggregate", COUNT, "Gradients in an update.",
        "question.job.settings.replicas_to_aggregate",
    ),
    Key(
        "total_num_replicas", COUNT, "As SyncReplicasOptimizer has it.",
        "question.job.settings.total",
    ),
    Key(
        "num_tokens", INTEGER, "Tokens in the queue at first, as SyncReplicasOptimizer has it.",
        "question.job.settings.initial_tokens",
    ),
    Key(
        "contention", FLAG, "Whether workers share links.",
        lambda found: not isinstance(found.question.job.network, Delays),
    ),
    Key("updates", COUNT, "Updates of a repetition.", "question.updates"),
    Key("skipped", COUNT, "Of these, the first ones that do not count.", "question.skip"),
    Key(
        "repetitions", COUNT, "Repetitions that were simulated.",
        lambda found: len(found.spread.updates),
    ),
    Key("seed", INTEGER, "The seed of random times.", "question.job.seed"),
    Key("confidence", RATIO, "That of all intervals.", lambda _: CONFIDENCE),
    Key(
        "step_time_us", _TIME, "An update.", lambda found: found.spread.step(found.question.skip)
    ),
    Key("dropped_share", or_null(RATIO), "Stale gradients as a part of all.", "spread.wasted"),
    Key(
        "blocked", COUNT, "Repetitions that did not make all their updates.", "spread.blocked"
    ),
    Key(
        "backups", list_of(_BACKUPS),
        "Numbers of backups that `--backups` tried; empty without it.", "choices",
    ),
    Key(
        "best_backups", or_null(COUNT), "The best number; null if none was tried.",
        lambda found: next((each.backups for each in found.choices if each.best), None),
    ),
    Key("complete", FLAG, "False if the command was stopped."),
    command="step",
)  # fmt: skip
"""Of `Updates`."""


_ASK = "A report on the scenario itself simulates it."

_SPENT = {
    "compute": "computing gradients",
    "read": "reading variables",
    "send": "sending gradients",
    "wait": "waiting for a token of the next update",
}


def replicas_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce step --json` for a scenario with `[replicas]`: the report, and what
    limits updates.
    """
    page = replicas_report(document)
    return replace(
        page,
        facts=(*page.facts, *_limits(document, beside)),
        sections=(
            *page.sections,
            *_replicas_spent(beside),
            *help_section(beside),
            *machine_section(beside),
            *timeline_section(
                beside, "What every worker does, and when updates are made, in one repetition."
            ),
            *calibration_section(beside, document),
            *repeat_section(beside, document, [("seed", str(document["seed"]))]),
        ),
    )


def _limits(document: Written, beside: Attachments) -> Iterable[Fact]:
    look = beside.look
    yield Fact("What limits it?", *_limit(document, beside))
    if document["topology"]:
        yield Fact("What would a second NIC buy?", *nic_fact(beside))
    elif look is not None and look["changes"]:
        yield Fact("What would help most?", *_helps(look["changes"][0], look))


def _limit(document: Written, beside: Attachments) -> tuple[str, str]:
    if not (parts := _shares(beside.look)):
        return "not known here", beside.missing or _ASK
    first, words = limit_words(parts, "the workers' time", 0)
    row, step = row_of(document, backups_of(document)), document["step_time_us"]
    ideal = row["ideal_step_time_us"] if row else None
    more = (
        f" An update that all begin together takes {us(ideal)} with free communication."
        if ideal is not None and step["mean"] is not None
        else ""
    )
    return first, f"{words}{more}"


def _shares(look: Written | None) -> list[tuple[str, float]]:
    """What workers spend their time on, with its part, the largest first; empty if nothing is."""
    spent = look["spent"] if look else {}
    found = [(_SPENT.get(name, name), share) for name, share in spent.items()]
    return sorted(found, key=lambda part: -part[1]) if any(spent.values()) else []


def _helps(first: Written, look: Written) -> tuple[str, str]:
    if first["saving_low_us"] <= 0.0:
        return "nothing by itself", "None of the simulated changes makes an update faster for sure."
    words = faster(first["time_us"], look["time_us"])
    return change_words(first), f"An update takes {us(first['time_us'])}: {words}."


def _replicas_spent(beside: Attachments) -> Iterable[Section]:
    """The parts of the workers' time."""
    if not (shown := _shares(beside.look)):
        return
    columns = tables.columns("spent on|of the time", left="spent on")
    table = Table(columns, tuple((name, f"{share:.1%}") for name, share in shown))
    words = "What all workers together spend their time on, after the first updates are skipped."
    chart = stack(words, shown, table, Axis("of the time", "share", log=False))
    yield Section("limits", "What limits it", (chart,))
