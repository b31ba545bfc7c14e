"""`tune`: the searches that a target calls for, and their answer.

What to set is the default, or the simplest setting that is worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from simreduce import units
from simreduce.computing.workers import Progress, time_left, within
from simreduce.errors import InputError, did_you_mean, quote
from simreduce.export.frameworks import FRAMEWORKS, USUAL
from simreduce.export.frameworks.pytorch import VIEW
from simreduce.planners.strategy import parse_strategy
from simreduce.study import frameworks
from simreduce.study.advice import Advised, Option, decide
from simreduce.study.ranking import Moved, find_moved, in_order, settle_ties
from simreduce.study.scenario import Scenario, StepScenario, with_step
from simreduce.study.tune.rank import FIRST
from simreduce.study.tune.search.by_methods import ShardedSearch
from simreduce.study.tune.search.by_nccl import NcclSearch
from simreduce.study.tune.search.by_plans import HorovodSearch, ModeSearch, PlanSearch
from simreduce.study.tune.search.search import (
    EFFORT,
    Aim,
    Search,
    SettingRow,
    Tuned,
    files_of,
    join,
    nccl_files,
    sizes_words,
)
from simreduce.study.tune.search.setting import (
    Setting,
    evaluate,
    keeping,
    refusal,
    simulating,
)
from simreduce.study.tune.search.targets import OBJECTIVES, STEP, TIME, size_ranges
from simreduce.study.tune.steps import Pair, case_of, first_fit, other_numerics, predict_step
from simreduce.training.sharded import DDP


def with_advice(found: Tuned, workers: int = 1) -> Tuned:
    """Return the answer with the setting to use, and why that is not the fastest, if it is not.

    Where a change is worth it, simpler settings are simulated too, of the default's method where
    the fastest is in doubt.
    """
    chosen, reason = _decide(found)
    now = found.default
    row = found.by_method.get(now.setting.method, now) if chosen.row == now else chosen.row
    if row.seconds <= now.seconds * (1 - found.scenario.worth) and not found.stopped:
        found = _with_simpler(found, row, workers)
        chosen, reason = _decide(found)
    found, chosen, reason = _with_its_peak(found, chosen, reason)
    found = replace(found, chosen=chosen.row, reason=reason)
    if found.stopped:
        return found
    setting = chosen.row.setting
    more = first_fit(*_step_of(found, setting), found.framework) if chosen.misfit else ""
    return replace(found, fits_with=more, outside=_outside(found, setting))


def _with_its_peak(found: Tuned, chosen: Option, reason: str) -> tuple[Tuned, Option, str]:
    """The answer whose advised setting fits by its whole step, as `step` says it: of others only
    the least is known that a GPU holds.
    """
    looked = set[Setting]()
    while (setting := chosen.row.setting) not in looked and chosen.row.fit:
        looked.add(setting)
        whole = predict_step(*_step_of(found, setting)).fit
        needed = whole.needed if whole else 0
        note = partial(_note_peak, setting, needed)
        rows = tuple(in_order(map(note, found.rows)))
        found = replace(found, rows=rows, default=note(found.default))
        chosen, reason = _decide(found)
    return found, chosen, reason


def _step_of(found: Tuned, setting: Setting) -> tuple[StepScenario, Pair]:
    """What a step by a setting asks."""
    asked = with_step(setting.scenario(found.asked(setting)))
    return asked, (setting.method, setting.parsed)


def _note_peak(setting: Setting, needed: int, row: SettingRow) -> SettingRow:
    """The row, if it is of the setting, with at least so many bytes needed."""
    if row.setting != setting or row.fit is None:
        return row
    return replace(row, fit=row.fit._replace(needed=max(row.fit.needed, needed)))


def _outside(found: Tuned, setting: Setting) -> dict[str, float]:
    """What is gained beside a setting's step with other numerics or another machine."""
    if found.objective != STEP or setting.mode:
        return {}
    asked, pair = _step_of(found, setting)
    case = case_of(asked, pair)
    return case.outside(case.simulate().step, other_numerics(asked, pair, found.framework))


def _decide(found: Tuned) -> tuple[Option, str]:
    """The option to run, and why that is not the fastest, if it is not."""
    options = {row.setting: _option(row, found) for row in (*found.rows, found.default)}
    today = options[found.default.setting]
    best = options[found.best.setting]  # of settings as fast, the one with fewest words
    ordered = [best, *(each for each in options.values() if each is not best)]
    doubt = partial(_doubt, found)
    chosen, _, reason = decide(ordered, today, found.scenario.worth, doubt)
    if chosen is today:
        # More channels alone change nothing that the fastest may be doubted for.
        more = [
            each
            for each in ordered
            if replace(each.row.setting, channels=0) == found.default.setting
        ]
        chosen, *_ = decide(more, today, found.scenario.worth, doubt)
    return chosen, reason


def _option(row: SettingRow, found: Tuned) -> Option:
    strategy = row.setting.parsed
    return Option(
        row.setting.label, row.seconds, row.moved, misfit=row.misfit,
        needed=row.fit.needed if row.fit else 0,
        simplicity=(_words(row.setting, found.default.setting), *row.setting.tie_break),
        undispatched=strategy is not None and found.scenario.setup.undispatched(strategy),
        row=row,
        unsimulated=frameworks.copies_of(found.scenario, row.setting.method),
    )  # fmt: skip


def _words(setting: Setting, default: Setting) -> int:
    """How many settings differ from the default's; a plugin of NCCL counts as two."""
    return sum(
        (
            2 * bool(setting.rules), bool(setting.channels), bool(setting.order),
            len(setting.knobs),
            frameworks.count_changes(setting.parsed, default.parsed),
            setting.cycle not in (None, default.cycle),
            (setting.mode, setting.method) != (default.mode, default.method),
        )
    )  # fmt: skip


def _with_simpler(found: Tuned, row: SettingRow, workers: int) -> Tuned:
    """The answer with the times of simpler settings than a row's that nobody simulated."""
    known, setting = {each.setting for each in found.rows}, row.setting
    # With NCCL's own choice, in NCCL's own order, without views, with one cap, with DDP's own caps.
    plain = _plain(setting)
    texts = [setting.strategy.partition(",")[0], *[f"nccl{VIEW}"] * ("view" in setting.strategy)]
    tried = [plain, *(replace(each, strategy=t) for t in texts for each in (plain, setting))]
    simpler = [each for each in dict.fromkeys(tried) if each not in {*known, setting}]
    with simulating(found.asked(setting), workers) as do:
        times = do(evaluate, simpler)
    rows = [
        replace(row, setting=other, seconds=each.seconds, moved=None)
        for other, each in zip(simpler, times, strict=True)
        if each.seconds < inf
    ]
    return replace(found, rows=tuple(in_order((*found.rows, *rows))))


def _plain(setting: Setting) -> Setting:
    """The setting without what replaces NCCL's own choice."""
    return replace(setting, rules=(), channels=0, order=())


def _doubt(found: Tuned, option: Option, today: Option) -> str:
    """Why the gain of a setting over the default may be none.

    Without what replaces NCCL's own choice, if that gains little by itself.
    """
    row, worth = option.row, found.scenario.worth
    plain = _plain(row.setting)
    for each in found.rows:
        if each.setting == plain != row.setting and row.seconds > each.seconds * (1 - worth):
            return _doubt(found, _option(each, found), today)
    if cycle := found.by_tick(today.row, row):
        return f"less than a cycle of {units.format_duration(cycle)}, whose ticks nobody can time"
    return (
        (all(map(found.hanging_on, (row, today.row))) and _starts_late(found, row))
        or frameworks.not_told_apart(option, today, found.error(today.row, row))
        or _doubt_of_calls(found, option, today)
    )


def _starts_late(found: Tuned, row: SettingRow) -> str:
    """The doubt that its packs start later than the default's, where no step shows that."""
    option, today = row.setting.strategy, found.default.setting.strategy
    return frameworks.starts_late(found.scenario, option, today)


def _doubt_of_calls(found: Tuned, option: Option, today: Option) -> str:
    """Why a setting may not be worth it if calls cost half or twice as much as stated.

    Where the costs of all calls are less than what is gained, nothing needs to be simulated.
    """
    row, default = option.row, today.row
    bound = frameworks.doubt_of_calls(found.scenario, lambda each: _calls(found, each.row))
    if row.setting.mode or default.setting.mode or not bound(option, today):
        return ""
    cost, worth = found.scenario.setup.call_cost, found.scenario.worth
    for scale in frameworks.SCALES:
        took, now = (
            evaluate(found.asked(s).but(call_cost=cost * scale), s).seconds
            for s in (row.setting, default.setting)
        )
        if now - took < worth * now:
            what = units.format_duration(cost * scale)
            least = f"less than {units.format_share(worth)}" if worth else "nothing"
            return f"but {least} if a call costs {what}"
    return ""


def _calls(found: Tuned, row: SettingRow) -> int:
    """Calls of NCCL in a step or all-reduce, about."""
    setting = row.setting
    if setting.sharding is not None:
        return len(found.hanging_on(row) or ())
    return len(frameworks.calls_of(found.asked(setting), setting.parsed) or ())


def advice_of(found: Tuned) -> Advised:
    """The advice in the words of the target."""
    rows: Sequence[SettingRow] = (found.advised, found.default, found.best)
    options = {row.setting: _option(row, found) for row in rows}
    option, today, fastest = (options[row.setting] for row in rows)
    name = found.framework

    words = partial(_words_of, found)
    standing = frameworks.today_words(name, found.default.setting.method) if name else ""
    other = fastest if option is today else option
    return frameworks.phrase(
        name, option, today, fastest, found.reason, words, standing or words(today) or today.name,
        error=found.error(today.row, other.row),
        caveat="" if option is today else ", ".join(filter(None, (
            frameworks.caveat_of(
                found.scenario, option.row.setting.strategy, today.row.setting.strategy
            ),
            sizes_words(found, option.row.setting),
        ))),
    )  # fmt: skip


def _words_of(found: Tuned, option: Option) -> str:
    """A setting in the words of its target; "" if it has none for it."""
    setting: Setting = option.row.setting
    if setting.mode:
        return setting.label
    before = Setting("nccl", method=setting.method)
    if setting.method == found.default.setting.method:
        before = found.default.setting
    elif setting.sharding is not None:
        before = replace(before, sharding=setting.sharding.plain)
    known = {**nccl_files(found), **files_of(found, before)}
    return frameworks.words_of(
        found.target, files_of(found, setting), known, setting.method, setting.parsed
    )


Make = Callable[[Aim[Any], Tuned | None], Search[Any]]
"""Makes a search for an aim, with the answer of the searches before it."""


def tune(
    scenario: Scenario,
    target: str = USUAL,
    objective: str = "",
    *,
    half: bool = False,
    workers: int = 1,
    effort: int = EFFORT,
    progress: Progress = lambda _done, _all: None,
) -> Tuned:
    """The best setting of `scenario` for a target, by one search or several.

    `objective` is `time` of one all-reduce or `step`; by default the step, if the scenario has one.
    What does not train launches CUDA graphs, so that no call costs it anything.
    With `half`, half precision on the wire is tried too. Ctrl-C ends the search with what there is,
    and so does the end of a budget of time (`computing.workers.within`), which the searches share.
    Raises InputError where the question makes no sense.
    """
    if not FRAMEWORKS[target].trains:
        if objective == STEP:
            raise InputError(f"{target} trains nothing; give --objective {TIME}")
        objective, scenario = TIME, scenario.but(call_cost=0.0)
    is_step, found = read_objective(scenario, objective) == STEP, None
    asked = with_step(scenario) if is_step else scenario.without_step()
    aim: Aim[Any] = Aim(asked, target, half, workers, effort, progress)
    searches = _searches(aim)
    for done, search in enumerate(searches):
        found = _extend(found, search(aim, found), time_left() / (len(searches) - done))
        if found.interrupted:
            break
    assert found is not None  # noqa: S101 - a target reduces, or shards
    answer = replace(found, scenario=replace(scenario, setup=found.scenario.setup))
    if answer.objective == TIME and not answer.stopped:
        answer = settle_ties(
            answer,
            FIRST,
            deciding=lambda each: (each.default, each.best),
            plan=lambda row: row.setting,
            find=lambda row: find_moved(
                row.setting.scenario(answer.scenario), row.setting.parsed, row.seconds
            ),
            note=_with_moved,
        )
    if not answer.stopped:
        answer = replace(answer, sizes=size_ranges(target, scenario))
    return with_advice(answer, workers)


def _with_moved(found: Tuned, moved: Moved) -> Tuned:
    """The answer with `moved` of these settings."""

    def note(row: SettingRow) -> SettingRow:
        return replace(row, moved=moved.get(row.setting))

    return replace(found, rows=tuple(map(note, found.rows)), default=note(found.default))


def read_objective(scenario: Scenario | None, objective: str) -> str:
    """The objective; for "", the step if there is one. InputError if there is none to optimise, as
    far as that is known without a scenario.
    """
    if objective not in ("", *OBJECTIVES):
        raise InputError(
            f"must be one of {', '.join(OBJECTIVES)}, got {quote(objective)}"
            f"{did_you_mean(objective, OBJECTIVES)}"
        )
    if scenario is None:
        return objective
    if objective == STEP:
        with_step(scenario)
    if scenario.step is not None and scenario.step.mode and objective != TIME:
        raise InputError(f"{scenario.name}: step.variable_update says how to reduce; leave it out")
    return objective or (STEP if scenario.step else TIME)


def _searches(aim: Aim[Any]) -> list[Make]:
    """The searches that a target and the methods of a step call for, in order."""
    target, step, reduces = FRAMEWORKS[aim.target], aim.scenario.step, DDP in aim.methods
    in_turns = step and step.streams in (None, 1) and step.job.reduces_once
    in_cycles = target.cycles and in_turns and not aim.misfit
    called: tuple[tuple[object, Make], ...] = (
        (reduces and target.packings, HorovodSearch if in_cycles else NcclSearch),
        (reduces and target.by_plans and not aim.misfit, PlanSearch),
        (set(aim.methods) != {DDP}, ShardedSearch),
        (reduces and target.modes and step, ModeSearch),
    )
    return [search for wanted, search in called if wanted]


def _extend(before: Tuned | None, search: Search[Any], seconds: float) -> Tuned:
    """The answer with that of another search, which Ctrl-C ends with what there is, and a budget of
    time after some `seconds`, once it has a default.
    """

    def has_answer() -> bool:
        return before is not None or search.outcome.best < inf

    with within(seconds), keeping(search.scenario, search.aim.workers, has_answer) as (do, ended):
        search.first(do)
        if search.default and search.outcome.best == inf:
            strategy = parse_strategy(search.default.strategy)
            setup, workload = search.scenario.setup.running(strategy), search.scenario.workload
            raise refusal(
                search.default.strategy,
                lambda: setup.summarise(setup.compile(strategy, workload)),
                "the default has no plan on this machine",
            )
        search.run(do)
        found = _join(before, search, {})
        return replace(found, curve=search.curve(found.best.setting, do) or found.curve)
    return _join(before, search, ended)


def _join(before: Tuned | None, search: Search[Any], ended: Mapping[str, Any]) -> Tuned:
    """The answer before a search, if there is one, with its own, which `ended` so."""
    found = replace(search.answer(stopped=bool(ended)), **ended)
    return join(before, found) if before else found
