"""What to set, by the answer of a search: the default, or the simplest setting that is worth it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from simreduce import units
from simreduce.export.frameworks.pytorch import VIEW
from simreduce.study import frameworks
from simreduce.study.advice import Advised, Option, decide
from simreduce.study.ranking import in_order
from simreduce.study.scenario import Scenario, with_step
from simreduce.study.tune.search.by_methods import simulate_whole
from simreduce.study.tune.search.export_choice import files_of, nccl_files
from simreduce.study.tune.search.setting import (
    Setting,
    evaluate,
    reducing_scenario,
    simulating,
)
from simreduce.study.tune.search.targets import STEP, TIME
from simreduce.study.tune.search.tuned import SettingRow, Tuned
from simreduce.training.sharded import Sharding


def with_advice(found: Tuned, workers: int = 1) -> Tuned:
    """Return the answer with the setting to use, and why that is not the fastest, if it is not.

    Where a change is worth it, simpler settings than the fastest are simulated too.
    """
    chosen, _, reason = _decide(found)
    if chosen.row != found.default and not found.stopped:
        found = _with_simpler(found, chosen.row, workers)
        chosen, _, reason = _decide(found)
    return replace(found, chosen=chosen.row, reason=reason)


def _decide(found: Tuned) -> tuple[Option, Option, str]:
    options = {row.setting: _option(row, found) for row in (*found.rows, found.default)}
    today = options[found.default.setting]
    best = options[found.best.setting]  # of settings as fast, the one with fewest words
    ordered = [best, *(each for each in options.values() if each is not best)]
    doubt = partial(_doubt, found)
    chosen, fastest, reason = decide(ordered, today, found.scenario.worth, doubt)
    if chosen is not today:
        return chosen, fastest, reason
    # More channels alone change nothing that the fastest may be doubted for.
    more = [each for each in ordered if _without_channels(each.row) == found.default.setting]
    chosen, *_ = decide(more, today, found.scenario.worth, doubt)
    return chosen, fastest, reason


def _option(row: SettingRow, found: Tuned) -> Option:
    strategy = row.setting.parsed
    return Option(
        row.setting.label, row.seconds, row.moved, misfit=row.misfit,
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
    known = {each.setting for each in found.rows}
    simpler = [each for each in _simpler(row.setting) if each not in known]
    with simulating(_scenario(found, row.setting), workers) as do:
        tried = do(_seconds, simpler)
    rows = [
        replace(row, setting=setting, seconds=seconds, moved=None)
        for setting, seconds in zip(simpler, tried, strict=True)
        if seconds < inf
    ]
    return replace(found, rows=tuple(in_order((*found.rows, *rows))))


def _simpler(setting: Setting) -> Iterator[Setting]:
    """The setting with NCCL's own choice, in NCCL's own order, without views, with one cap, and
    with DDP's own caps.
    """
    plain = _plain(setting)
    texts = [setting.strategy.partition(",")[0], *[f"nccl{VIEW}"] * ("view" in setting.strategy)]
    tried = [plain, *(replace(each, strategy=t) for t in texts for each in (plain, setting))]
    yield from dict.fromkeys(each for each in tried if each != setting)


def _without_channels(row: SettingRow) -> Setting:
    return replace(row.setting, channels=0)


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
    late = ""
    if found.objective == TIME:
        late = frameworks.starts_late(found.hanging_on(row), found.hanging_on(today.row))
    near = frameworks.not_told_apart(option, today, _error(found, option, today))
    return late or near or _doubt_of_calls(found, option, today)


def _error(found: Tuned, option: Option, today: Option) -> float | None:
    """Seconds within which the difference of two settings is with 80 %, if that is known."""
    if found.sureness is None:
        return None
    return found.error(today.row, option.row)


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
            _seconds(_scenario(found, each.setting).but(call_cost=cost * scale), each.setting)
            for each in (row, default)
        )
        if now - took < worth * now:
            what = units.format_duration(cost * scale)
            least = f"less than {units.format_share(worth)}" if worth else "nothing"
            return f"but {least} if a call costs {what}"
    return ""


def _seconds(scenario: Scenario, setting: Setting) -> float:
    """Seconds of a step, or of an all-reduce; infinite where the machine refuses the setting."""
    if setting.sharding is not None:
        return simulate_whole(with_step(scenario), setting).seconds
    return evaluate(scenario, setting).seconds


def _calls(found: Tuned, row: SettingRow) -> int:
    """Calls of NCCL in a step or all-reduce, about."""
    setting = row.setting
    if setting.sharding is not None:
        return len(found.hanging_on(row) or ())
    return len(frameworks.calls_of(_scenario(found, setting), setting.parsed) or ())


def _scenario(found: Tuned, setting: Setting) -> Scenario:
    """The scenario in which a setting was simulated."""
    shards = setting.sharding is not None
    if found.objective == STEP:
        return found.scenario if shards else reducing_scenario(found.scenario)
    return found.scenario.without_step()


def advice_of(found: Tuned) -> Advised:
    """The advice in the words of the target."""
    rows: Sequence[SettingRow] = (found.advised, found.default, found.best)
    options = {row.setting: _option(row, found) for row in rows}
    option, today, fastest = (options[row.setting] for row in rows)
    name = found.target if found.target != "any" else ""

    def words(each: Option) -> str:
        return _words_of(found, each.row.setting)

    standing = frameworks.today_words(name, found.default.setting.method) if name else ""
    advice = frameworks.phrase(
        name, option, today, fastest, found.reason, words, standing or words(today) or today.name
    )
    other = fastest if option is today else option
    return replace(advice, error=_error(found, other, today))


def _words_of(found: Tuned, setting: Setting) -> str:
    """A setting in the words of its target; "" if it has none for it."""
    if setting.mode:
        return setting.label
    files: Mapping[str, str] = files_of(found, setting)
    before = Setting("nccl", method=setting.method)
    if setting.method == found.default.setting.method:
        before = found.default.setting
    elif setting.sharding is not None:
        base = Sharding(
            param_dtype=setting.sharding.param_dtype, reduce_dtype=setting.sharding.reduce_dtype,
            optimizer=setting.sharding.optimizer,
        )  # fmt: skip
        before = replace(before, sharding=base)
    known = {**nccl_files(found), **files_of(found, before)}
    return frameworks.words_of(found.target, files, known, setting.method)
