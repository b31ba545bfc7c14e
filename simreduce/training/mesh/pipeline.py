"""Schedules of a pipeline: what each of its ranks does, in which order, as data.

An action is written as PyTorch's pipelining writes it (`torch.distributed.pipelining`): `0F3` is
the forward pass of stage 0 with micro batch 3, `0B3` its backward pass; `0I3` is the part of that
for inputs and `0W3` the part for weights, where they are apart. `(4F7;3B2)OVERLAP_F_B` is both at
once. A schedule in a file is CSV, one line for each rank.

    gpipe          all forward passes, then all backward passes (Huang et al. 2019)
    1f1b           one forward, one backward (Narayanan et al. 2019)
    interleaved    the same with several stages on a GPU (Narayanan et al. 2021, arXiv 2104.04473)
    zero_bubble    backward for weights fills the bubble: ZB-H1 (Qi et al. 2023, arXiv 2401.10241)
    zbv            stages in a V, so that the first and the last are on one GPU (the same paper)
    dualpipe       a V whose passes overlap (DeepSeek-V3, arXiv 2412.19437; DualPipeV)
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import mul
from pathlib import Path
from typing import NamedTuple

from simreduce.errors import Deadlock, InputError, near_or_all, refuse
from simreduce.files import exists, read_text
from simreduce.files.formats.syntax import Faults

FORWARD, BACKWARD, INPUTS, WEIGHTS = KINDS = ("F", "B", "I", "W")
_OVERLAP = "OVERLAP_F_B"
_ACTION = re.compile(r"(\d{1,7})([FBIW])(\d{1,7})")
_PAIR = re.compile(rf"\((\w+);(\w+)\){_OVERLAP}")
_OTHERS = re.compile(r"\d*(SEND|RECV)_[FB]\d*|\d+(UNSHARD|RESHARD|REDUCE_GRAD)\d*")
"""What PyTorch's runtime adds to the actions, which here follows from them."""
MOST_ACTIONS = 1 << 22


class Action(NamedTuple):
    """A pass of a stage with a micro batch. One that is `beside` another runs at once with it."""

    stage: int
    kind: str
    micro: int
    beside: Action | None = None

    def __str__(self) -> str:
        plain = f"{self.stage}{self.kind}{self.micro}"
        return f"({plain};{self.beside}){_OVERLAP}" if self.beside else plain

    @property
    def parts(self) -> tuple[Action, ...]:
        """The passes by themselves."""
        return (self._replace(beside=None), self.beside) if self.beside else (self,)


@dataclass(frozen=True)
class Schedule:
    """The actions of each pipeline rank in order, of so many stages and micro batches."""

    name: str
    rows: tuple[tuple[Action, ...], ...]
    stages: int
    micros: int

    @property
    def home(self) -> Mapping[int, int]:
        """The rank of each stage."""
        return {
            part.stage: rank
            for rank, row in enumerate(self.rows)
            for action in row
            for part in action.parts
        }


def _passes(rank: int, p: int, v: int, m: int) -> tuple[list[Action], list[Action]]:
    """The order of the forward and of the backward passes of a rank, by rounds of micro batches."""
    rounds = max(m // p, 1) if v > 1 else 1
    each = m // rounds
    order = [
        (chunk, number * each + i)
        for number in range(rounds)
        for chunk in range(v)
        for i in range(each)
    ]
    forward = [Action(chunk * p + rank, FORWARD, micro) for chunk, micro in order]
    backward = [Action((v - 1 - chunk) * p + rank, BACKWARD, micro) for chunk, micro in order]
    return forward, backward


def _one_by_one(rank: int, p: int, v: int, m: int) -> list[Action]:
    forward, backward = _passes(rank, p, v, m)
    warm_up = p - 1 - rank if v == 1 else (v - 1) * (m // max(m // p, 1)) + 2 * (p - 1 - rank)
    return _alternate(forward, backward, warm_up)


def _alternate(forward: Sequence[Action], backward: Sequence[Action], warm_up: int) -> list[Action]:
    warm_up = min(warm_up, len(forward))
    steady = zip(forward[warm_up:], backward, strict=False)
    return [*forward[:warm_up], *chain(*steady), *backward[len(forward) - warm_up :]]


def _zero_bubble(rank: int, p: int, v: int, m: int) -> list[Action]:
    """As 1F1B, with backward for weights as many passes behind as there are ranks before."""
    forward, backward = _passes(rank, p, v, m)
    warm_up = (v - 1) * (m // max(m // p, 1)) + p - 1 - rank
    inputs = [each._replace(kind=INPUTS) for each in backward]
    found, done = list[Action](), 0
    weights = deque(each._replace(kind=WEIGHTS) for each in backward)
    for each in _alternate(forward, inputs, warm_up):
        found.append(each)
        if each.kind == INPUTS:
            done += 1
            if done > rank:
                found.append(weights.popleft())
    return [*found, *weights]


_Phases = Sequence[tuple[tuple[int, int, int, int], str]]
"""Phases of a rank r: how often, as factors of p, r, m and 1, and the passes of its first stage (0)
and its second (1) in a V. `W` is the oldest that is left."""
_ZBV: _Phases = (
    ((2, -2, 0, -1), "F0"),
    ((0, 1, 0, 0), "F1 F0"),
    ((1, -1, 0, 0), "F1 I1 W1"),
    ((-1, 0, 1, 0), "F0 I0 W0 F1 I1 W1"),
    ((0, 1, 0, 0), "I0 I1"),
    ((1, -1, 0, 0), "I0 W0"),
    ((0, 1, 0, 0), "W1"),
    ((0, 1, 0, 0), "W0"),
)
_DUALPIPE: _Phases = (
    ((2, -2, 0, -2), "F0"),
    ((0, 1, 0, 1), "F0 F1"),
    ((1, -1, 0, -1), "I1 W F1"),
    ((-2, 1, 1, 1), "F0+B1 F1+B0"),
    ((1, -1, 0, -1), "B1 F1+B0"),
    ((0, 1, 0, 1), "B1 B0"),
    ((1, -1, 0, -1), "W I0"),
    ((0, 1, 0, 1), "W"),
)


def _in_a_v(rank: int, p: int, _each: int, m: int, phases: _Phases) -> list[Action]:
    counts, left, found = Counter[str](), deque[Action](), list[Action]()
    stages = rank, 2 * p - 1 - rank

    def one(cell: str) -> Action:
        if cell == WEIGHTS:
            return left.popleft()
        kind, chunk = cell[0], int(cell[1])
        key = f"{INPUTS if kind == BACKWARD else kind}{chunk}"
        counts[key] += 1
        if kind == BACKWARD:
            counts[f"{WEIGHTS}{chunk}"] += 1
        action = Action(stages[chunk], kind, counts[key] - 1)
        if kind == INPUTS:
            left.append(action._replace(kind=WEIGHTS))
        return action

    for phase, (factors, pattern) in enumerate(phases):
        for i in range(sum(map(mul, factors, (p, rank, m, 1)))):
            for cell in pattern.split():
                split = phases is _DUALPIPE and pattern == "B1 B0" and _splits(rank, i, cell)
                first, _, second = cell.partition("+")
                action = one(f"{INPUTS}{cell[1]}" if split else first)
                if second and phase == 3 and i == 0 and rank == p - 1 and first == "F0":
                    found += [action, one(second)]  # the bubble is smaller with these two apart
                else:
                    found.append(action._replace(beside=one(second)) if second else action)
    return found


def _splits(rank: int, i: int, cell: str) -> bool:
    """Whether backward of the last but two phases leaves its weights for later."""
    half = (rank + 1) // 2
    return i > half or (i == half and (rank % 2 == 1 or cell == "B0"))


def _zbv(rank: int, p: int, v: int, m: int) -> list[Action]:
    return [each for each in _in_a_v(rank, p, v, max(m, 2 * p - 1), _ZBV) if each.micro < m]


_WRITERS: Mapping[str, Callable[[int, int, int, int], list[Action]]] = {
    "gpipe": lambda *shape: [*chain(*_passes(*shape))],
    "1f1b": _one_by_one,
    "interleaved": _one_by_one,
    "zero_bubble": _zero_bubble,
    "zbv": _zbv,
    "dualpipe": partial(_in_a_v, phases=_DUALPIPE),
}
NAMES = tuple(_WRITERS)
IN_A_V = ("zbv", "dualpipe")
ONE_STAGE = ("gpipe", "1f1b")


def why_not(name: str, p: int, v: int, m: int) -> Iterator[str]:
    """Why a schedule is not for so many ranks, stages of a rank, and micro batches."""
    near, in_rounds = m // p * p, v > 1 and name in ("interleaved", "zero_bubble")
    rules = (
        (name in ONE_STAGE and v != 1,
         f"{name} has one stage on a GPU; interleaved and zero_bubble take virtual = {v}"),
        (name in IN_A_V and v != 2, f"{name} has two stages on a GPU: virtual = 2"),
        (name == "interleaved" and v < 2,
         "interleaved needs two stages on a GPU or more: virtual = 2"),
        (in_rounds and m % max(m // p, 1),
         f"{m} micro batches are no whole rounds of {p} ranks; {near} or {near + p} are"),
        (name == "dualpipe" and m < 2 * p,
         f"dualpipe needs as many micro batches as stages: {2 * p} or more, not {m}"),
    )  # fmt: skip
    return (why for broken, why in rules if broken)


def write_schedule(name: str, p: int, v: int, m: int) -> Schedule:
    """The schedule of that name; InputError with every reason why there is none."""
    refuse(why_not(name, p, v, m))
    rows = tuple(tuple(_WRITERS[name](rank, p, v, m)) for rank in range(p))
    return Schedule(name, rows, p * v, m)


def check_schedule(text: str, path: str = "") -> None:
    """InputError if it is no name, nor a file, which is at `path` unless that is ""."""
    if text not in NAMES and not exists(path or text):
        near = near_or_all(text, NAMES)
        raise InputError(f"no schedule {text!r}{near}; or a file with a line for each rank")


def load_schedule(text: str, p: int, v: int, m: int) -> Schedule:
    """The schedule of that name or in that file, for so many ranks, stages and micro batches.

    InputError with every fault of a file, or with the grid of one that cannot end.
    """
    if text in _WRITERS:
        return write_schedule(text, p, v, m)
    check_schedule(text)
    found = parse_schedule(text, read_text(Path(text), InputError))
    if len(found.rows) != p or found.stages != p * v or found.micros != m:
        raise InputError(
            f"{text}: has {len(found.rows)} ranks, {found.stages} stages and {found.micros} micro "
            f"batches; the mesh has {p}, {p * v} and {m}"
        )
    try:
        grid(found)
    except Deadlock as stuck:
        raise InputError(str(stuck)) from None
    return found


def parse_schedule(name: str, content: str) -> Schedule:
    """The schedule of a file; InputError lists every fault."""
    faults, rows = Faults(name), list[tuple[Action, ...]]()
    for number, line in enumerate(filter(str.strip, content.splitlines()), 1):
        row = list[Action]()
        for cell in (each.strip() for each in line.split(",")):
            if not cell or _OTHERS.fullmatch(cell):
                continue
            pair = _PAIR.fullmatch(cell)
            found = [_ACTION.fullmatch(each) for each in (pair.groups() if pair else (cell,))]
            actions = [Action(int(f[1]), f[2], int(f[3])) for f in found if f]
            if len(actions) < len(found):
                faults.add(f"line {number}", f"{cell!r} is no action such as 0F3, 0B3, 0I3 or 0W3")
            else:
                row.append(actions[0]._replace(beside=actions[1]) if pair else actions[0])
        rows.append(tuple(row))
    faults.raise_any()
    parts = [part for row in rows for action in row for part in action.parts]
    if not parts:
        raise InputError(f"{name}: has no action")
    stages = 1 + max(part.stage for part in parts)
    schedule = Schedule(name, tuple(rows), stages, 1 + max(part.micro for part in parts))
    _check(schedule, faults)
    faults.raise_any()
    return schedule


def _check(schedule: Schedule, faults: Faults) -> None:
    """Note passes that are missing, double, or on two ranks."""
    if not faults.check(
        schedule.stages * schedule.micros <= MOST_ACTIONS, "", f"more than {MOST_ACTIONS} passes"
    ):
        return
    seen, homes = Counter[tuple[int, str, int]](), dict[int, set[int]]()
    for rank, row in enumerate(schedule.rows):
        for part in chain.from_iterable(action.parts for action in row):
            seen[part[:3]] += 1
            homes.setdefault(part.stage, set()).add(rank)
    for stage in range(schedule.stages):
        if len(ranks := homes.get(stage, set())) != 1:
            lines = " and ".join(f"line {rank + 1}" for rank in sorted(ranks)) or "no line"
            faults.add("", f"stage {stage} is in {lines}; it takes one")
        for micro in range(schedule.micros):
            f, b, i, w = (seen[stage, kind, micro] for kind in KINDS)
            faults.check(f == 1, "", f"{stage}F{micro} occurs {f} times; it takes one")
            faults.check(
                (b, i, w) in ((1, 0, 0), (0, 1, 1)),
                "",
                f"{stage}B{micro} occurs {b} times, its I {i} times and its W {w} times"
                "; it takes B once, or I and W once each",
            )
            if len(faults.problems) > 5:
                return


def needs(part: Action, stages: int) -> list[tuple[int, str, int]]:
    """The passes before a pass; backward of the next stage by inputs counts as that."""
    stage, kind, micro, _ = part
    if kind == FORWARD:
        return [(stage - 1, FORWARD, micro)] if stage else []
    if kind == WEIGHTS:
        return [(stage, INPUTS, micro)]
    before = [(stage, FORWARD, micro)]
    return [*before, (stage + 1, INPUTS, micro)] if stage < stages - 1 else before


def grid(schedule: Schedule, ticks: Mapping[str, int] | None = None) -> list[list[str]]:
    """Who does what when, if passes take whole numbers of ticks and sends none.

    Deadlock with the grid up to there if ranks wait for each other for ever.
    """
    lasts = ticks or {FORWARD: 1, BACKWARD: 2, INPUTS: 1, WEIGHTS: 1}
    ended: dict[tuple[int, str, int], int] = {}
    rows: list[list[str]] = [[] for _ in schedule.rows]
    at = [0] * len(rows)
    while any(place < len(row) for place, row in zip(at, schedule.rows, strict=True)):
        moved = False
        for rank, row in enumerate(schedule.rows):
            while at[rank] < len(row):
                parts = row[at[rank]].parts
                own = {part[:3] for part in parts}
                before = [n for part in parts for n in needs(part, schedule.stages)]
                if any(need not in ended and need not in own for need in before):
                    break
                start = max([len(rows[rank]), *(ended.get(need, 0) for need in before)])
                rows[rank] += [""] * (start - len(rows[rank]))
                for part in parts:
                    rows[rank] += [str(part)] * lasts[part.kind]
                    kind = INPUTS if part.kind == BACKWARD else part.kind
                    ended[part.stage, kind, part.micro] = len(rows[rank])
                at[rank] += 1
                moved = True
        if not moved:
            raise Deadlock(_stuck(schedule, rows, at))
    return rows


def _stuck(schedule: Schedule, rows: Sequence[Sequence[str]], at: Sequence[int]) -> str:
    lines = [f"{schedule.name}: its ranks wait for each other for ever:"]
    for rank, (row, place) in enumerate(zip(schedule.rows, at, strict=True)):
        done = " ".join(cell or "." for cell in rows[rank][-8:])
        waits = f"waits for its turn at {row[place]}" if place < len(row) else "is done"
        lines.append(f"  rank {rank}: {done} | {waits}")
    return "\n".join(lines)
