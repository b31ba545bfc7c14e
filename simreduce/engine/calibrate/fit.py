"""Fits of constants: robust least squares on what the simulator predicts for measured plans.

Measured times come from logs of nccl-tests and of p2pBandwidthLatencyTest, amid what mpirun prints
or as JSON of `-J`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.errors import CalibrationError, quote
from simreduce.files.formats.syntax import Faults, read_json

INLIER = 0.05
"""Residuals, as a part of the time, from which a measurement pulls less than in proportion."""

VAGUE = 0.5
"""A standard error of more than this part of its constant: the measurements hardly determine it."""

PULL = 0.02
"""The residual of a constant that is ten times its start: enough to settle undetermined ones."""

_UNKNOWN = np.log(10)
_EXACT = 1e-4
"""Residuals are taken to be no less: measurements without noise would know everything."""

_NOTHING = 1e-12
"""Of squared slopes: no measurement depends on such a constant."""

_TELLING = 0.05
"""The slope from which on a measurement depends on a constant: log(seconds) by log(constant)."""

_WIDER, _FARTHEST = 1e2, 1e6
"""By how much bounds move at a time, and how far they are from the start at most, as factors."""

_STEP, _ENOUGH, _MOST = 1e-3, 1e-5, 30

_ROUGH = 8
"""Evaluations of a rough fit."""


@dataclass(frozen=True, slots=True)
class FreeConstant:
    """`name` as in the file, such as `links.cable.bandwidth`.

    The fit begins at `start` and stays between `low` and `high`, in SI units. `hard` bounds are
    values like others (a number of cores is 1 or more), while nothing is found at one that is only
    far away. `pull` is the residual of a value that is ten times `start`. Bounds that are `guessed`
    move away where a measurement depends on the constant. A constant that is `known` takes `start`
    where the measurements hardly determine it and do not contradict that.
    """

    name: str
    start: float
    low: float
    high: float
    hard: bool = False
    pull: float = PULL
    guessed: bool = False
    known: bool = False

    @staticmethod
    def about(
        name: str, start: float, factor: float = 1e3, pull: float = PULL, *, known: bool = False
    ) -> FreeConstant:
        """A constant whose size is thought to be known up to a factor."""
        return FreeConstant(name, start, start / factor, start * factor, False, pull, True, known)


@dataclass(frozen=True, slots=True)
class Fit:
    """`values` and their standard errors by name, in SI units.

    `vague` gives a reason for each constant that the measurements hardly determine, with or without
    a value; one that was held at its start has no standard error.
    `residuals` are log(predicted / measured), in the order of the measurements.
    """

    values: Mapping[str, float]
    errors: Mapping[str, float]
    vague: Mapping[str, str]
    residuals: tuple[float, ...]


def fit_constants(
    constants: Sequence[FreeConstant],
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    measured: Sequence[float],
    inlier: float = INLIER,
) -> Fit:
    """The constants for which `predict` comes nearest to `measured` seconds.

    Residuals are logarithms of ratios, so that microseconds count as much as seconds, and count
    less beyond `inlier` (the loss is 2(sqrt(1 + z) - 1)). Constants are fitted as logarithms: they
    are above 0 and their errors are parts of them. Standard errors come from linear least squares
    at the solution, with constants known to a factor of ten before: so they have a limit also where
    constants can replace each other. A constant that nothing depends on, or that fits best at a
    bound that is only far away, has no value: the rest is fitted again without it. Of the `known`
    constants that are hardly determined, the least certain takes its start, unless that fits
    certainly worse; the rest is fitted again, until no such constant is left.
    """
    goal, held, refuted = np.log(np.array(measured)), dict[str, float](), set[str]()
    reasons: dict[str, str] = {}

    def settle(free: list[FreeConstant], first: _Settled, held: Mapping[str, float]) -> _Settled:
        return _settle(free, first, lambda found: predict({**found, **held}), goal, inlier)

    begin = _Settled([], {c.name: c.start for c in constants}, {}, np.zeros(0), {})
    now = settle(list(constants), begin, held)
    while True:
        hardly = {
            n: f"standard error {now.errors[n] / v:.0%}"
            for n, v in now.values.items()
            if now.errors[n] > VAGUE * v
        }
        doubtful = [c for c in now.free if c.known and c.name in hardly.keys() - refuted]
        if not doubtful:
            break
        worst = max(doubtful, key=lambda c: now.errors[c.name] / now.values[c.name])
        usual = {**held, worst.name: worst.start}
        then = settle([c for c in now.free if c != worst], now, usual)
        if _refutes(now, then, inlier):
            refuted.add(worst.name)
            continue
        reasons[worst.name] = f"{hardly[worst.name]}, so it keeps its usual value"
        now, held = then, usual
    return Fit(
        {**now.values, **held},
        now.errors,
        now.without | reasons | hardly,
        tuple(now.residuals.tolist()),
    )


@dataclass(frozen=True, slots=True)
class _Settled:
    """A fit of the constants that are `free`; those `without` a value have a reason."""

    free: list[FreeConstant]
    values: Mapping[str, float]
    errors: Mapping[str, float]
    residuals: Floats
    without: dict[str, str]


def _settle(
    free: list[FreeConstant],
    first: _Settled,
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    goal: Floats,
    inlier: float,
) -> _Settled:
    """The fit from `first` on, with wider bounds and without constants until none is at a bound
    that is only far away.
    """
    values, without = first.values, dict(first.without)
    while True:
        found = _solve(free, values, predict, goal, inlier)
        values, errors, residuals, bound, slopes = found
        wide = [_widened(c) if bound[c.name] and slopes[c.name] > _TELLING else c for c in free]
        if wide != free:
            free = wide
            continue
        for constant in free:
            if bound[constant.name] and not constant.hard:
                without[constant.name] = (
                    f"no value from {constant.low:.3g} to {constant.high:.3g} fits best"
                )
            elif not np.isfinite(errors[constant.name]):
                without[constant.name] = "nothing that was measured depends on it"
        if not without.keys() & {c.name for c in free}:
            return _Settled(free, values, errors, residuals, without)
        free = [c for c in free if c.name not in without]


def _refutes(now: _Settled, then: _Settled, inlier: float) -> bool:
    """Whether a constant's usual value, held in `then`, is more than two standard errors away: by
    the F-test of the two losses, as constants far below their start are not linear.
    """
    before, after = (
        inlier**2 * float(_soft_l1((each.residuals / inlier) ** 2)[0].sum()) for each in (now, then)
    )
    freedom = max(len(now.residuals) - len(now.free), 1)
    return after - before > 4 * max(before / freedom, _EXACT**2)


def fit_roughly(
    constants: Sequence[FreeConstant],
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    measured: Sequence[float],
) -> Fit:
    """The constants after the first `_ROUGH` steps of `fit_constants`, without standard errors."""
    first, goal = {c.name: c.start for c in constants}, np.log(np.array(measured))
    logs, residuals, *_ = _search(constants, first, predict, goal, INLIER, _ROUGH)
    values = dict(zip(first, np.exp(logs).tolist(), strict=True))
    return Fit(values, {}, {}, tuple(residuals(logs).tolist()))


def _search(
    free: Sequence[FreeConstant],
    first: Mapping[str, float],
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    goal: Floats,
    inlier: float,
    steps: int,
) -> tuple[Floats, Callable[[Floats], Floats], Floats, Floats]:
    """Logarithms of the best constants after so many steps, the residuals by such logarithms, and
    the bounds of these.
    """
    begin = np.log([c.start for c in free])
    pull = np.array([c.pull for c in free]) / _UNKNOWN

    def residuals(logs: Floats) -> Floats:
        predicted: Floats = np.array(
            predict({c.name: float(np.exp(x)) for c, x in zip(free, logs, strict=True)})
        )
        return np.log(predicted) - goal

    def with_pull(logs: Floats) -> Floats:
        return np.concatenate([residuals(logs), pull * (logs - begin)])

    low, high = (np.log([getattr(c, edge) for c in free]) for edge in ("low", "high"))
    from scipy.optimize import least_squares  # noqa: PLC0415 - takes a second to load

    found = least_squares(
        with_pull,
        np.clip(np.log([first[c.name] for c in free]), low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss=_soft_l1,
        f_scale=inlier,
        diff_step=_STEP,
        xtol=_ENOUGH,
        ftol=_ENOUGH,
        max_nfev=steps,
    )
    return found.x, residuals, low, high


def _solve(
    free: Sequence[FreeConstant],
    first: Mapping[str, float],
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    goal: Floats,
    inlier: float,
) -> tuple[dict[str, float], dict[str, float], Floats, dict[str, bool], dict[str, float]]:
    if not free:
        return {}, {}, np.log(np.array(predict({}))) - goal, {}, {}
    logs, residuals, low, high = _search(free, first, predict, goal, inlier, _MOST)
    last = residuals(logs)
    slopes = find_slopes(residuals, logs)
    errors = _standard_errors(slopes, last, inlier)
    names = [c.name for c in free]
    steepest = dict(zip(names, np.abs(slopes).max(axis=0, initial=0.0).tolist(), strict=True))
    at_bound = [bool(x - a < 1e-3 or b - x < 1e-3) for x, a, b in zip(logs, low, high, strict=True)]
    values = dict(zip(names, np.exp(logs).tolist(), strict=True))
    spread = {
        name: values[name] * error for name, error in zip(names, errors.tolist(), strict=True)
    }
    return values, spread, last, dict(zip(names, at_bound, strict=True)), steepest


def _widened(constant: FreeConstant) -> FreeConstant:
    """The constant with bounds that are farther away, if they are guessed and not far yet."""
    low, high = constant.start / _FARTHEST, constant.start * _FARTHEST
    if not constant.guessed or constant.high >= high:
        return constant
    return replace(
        constant,
        low=max(constant.low / _WIDER, low),
        high=min(constant.high * _WIDER, high),
    )


def _soft_l1(z: Floats) -> Floats:
    """The loss of squared scaled residuals and its two derivatives."""
    t = 1 + z
    return np.stack([2 * (t**0.5 - 1), t**-0.5, -0.5 * t**-1.5])


def weights(residuals: Floats, inlier: float = INLIER) -> Floats:
    """The weight of each measurement in the fit: 1 for small residuals, less beyond `inlier`."""
    _, weight, _ = _soft_l1((residuals / inlier) ** 2)
    return np.asarray(weight)


def find_slopes(residuals: Callable[[Floats], Floats], at: Floats) -> Floats:
    """The slope of every residual by every constant, from both sides."""
    steps = 0.02 * np.eye(len(at))
    columns = [(residuals(at + step) - residuals(at - step)) / 0.04 for step in steps]
    return np.stack(columns, axis=1)


def _standard_errors(slopes: Floats, residuals: Floats, inlier: float) -> Floats:
    """Standard errors, weighted as in the loss; infinite where nothing depends on a constant."""
    weight = weights(residuals, inlier)
    freedom = max(len(residuals) - slopes.shape[1], 1)
    variance = max(float((weight * residuals**2).sum()) / freedom, _EXACT**2)
    normal = slopes.T @ (weight[:, None] * slopes)
    known = np.diag(normal) > _NOTHING
    errors = np.full(len(known), np.inf)
    information = normal[np.ix_(known, known)] / variance + np.eye(int(known.sum())) / _UNKNOWN**2
    errors[known] = np.sqrt(np.diag(np.linalg.inv(information)))
    return errors


_TITLES = {
    "Unidirectional P2P=Disabled": ("one_way", False),
    "Unidirectional P2P=Enabled": ("one_way", True),
    "Bidirectional P2P=Disabled": ("both_ways", False),
    "Bidirectional P2P=Enabled": ("both_ways", True),
    "P2P=Disabled Latency": ("latency", False),
    "P2P=Enabled Latency": ("latency", True),
}
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
ROW = re.compile(r"^\s*\d{1,18}\s+\d{1,18}\s+[a-z][a-z0-9_]{2,15}(\s|$)")
"""How a line of nccl-tests begins: size, count and type. What follows may be damaged."""
_MOST_GPUS = 256
_MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class MeasuredMatrix:
    """One matrix of p2pBandwidthLatencyTest, in bytes/s or seconds; None on the diagonal.

    `kind` is one_way, both_ways or latency. `reads`: the receiving GPU drove the copies.
    """

    kind: str
    peer_access: bool
    reads: bool
    rows: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One line of nccl-tests, out of place: bytes, seconds, bytes/s; `collective` is "" where the
    log does not say which.
    """

    size: int
    count: int
    dtype: str
    redop: str
    time: float
    algbw: float
    busbw: float
    collective: str = ""


NVBANDWIDTH = re.compile(r"^memcpy CE GPU\(row\) (->|<-) GPU\(column\) bandwidth", re.MULTILINE)
"""What nvbandwidth (0.8) prints above a matrix of copies between GPUs, all with peer access: the
arrow says which way they go.
"""
_ONE_WAY = re.compile(r"Running (device_to_device_memcpy_(read|write)_ce)\.")


def _read_nvbandwidth(lines: Sequence[str], faults: Faults) -> Iterator[MeasuredMatrix]:
    """Matrices of copies in one direction; those of other tests are left out."""
    running = None
    for number, line in enumerate(lines):
        running = (_ONE_WAY.match(line) or running) if line.startswith("Running ") else running
        title = NVBANDWIDTH.match(line)
        if not title or not running:
            continue
        # Its heads have no corner, and its diagonals no figures.
        head = ["GPU", *lines[number + 1].split()] if number + 1 < len(lines) else []
        table = (line.replace("N/A", "-") for line in lines[number + 2 : number + 1 + len(head)])
        rows, fault = _matrix([" ".join(head), *table])
        if faults.check(not fault, f"line {number + 1}", fault):
            scaled = [tuple(cell and cell * 1e9 for cell in row) for row in rows]
            sent = tuple(scaled) if title[1] == "->" else tuple(zip(*scaled, strict=True))
            yield MeasuredMatrix("one_way", True, running[2] == "read", sent)
        running = None


def read_p2p_test(text: str, name: str) -> tuple[MeasuredMatrix, ...]:
    """The matrices of a log, or of nvbandwidth's; CPU latencies are left out.

    Raises `CalibrationError` with every fault.
    """
    faults = Faults(name)
    lines = text.splitlines()
    found = [*_read_nvbandwidth(lines, faults)]
    for number, line in enumerate(lines):
        title = next((key for key in _TITLES if key in line), None)
        if title is None or "Matrix" not in line:
            continue
        kind, peers = _TITLES[title]
        rows, fault = _matrix(lines[number + 1 : number + 2 + _MOST_GPUS])
        if not faults.check(not fault, f"line {number + 1}", fault):
            continue
        scale = 1e-6 if kind == "latency" else 1e9
        scaled = tuple(
            tuple(None if i == j or cell is None else cell * scale for j, cell in enumerate(row))
            for i, row in enumerate(rows)
        )
        found.append(MeasuredMatrix(kind, peers, "(P2P Reads)" in line, scaled))
    faults.check(
        found or faults.problems, "", "no matrix of p2pBandwidthLatencyTest or nvbandwidth in it"
    )
    faults.check(
        len({len(matrix.rows) for matrix in found}) <= 1,
        "",
        "the matrices are not of the same number of GPUs",
    )
    faults.raise_any(CalibrationError)
    return tuple(found)


def _matrix(lines: Sequence[str]) -> tuple[list[list[float | None]], str]:
    """The rows below a title, and what is wrong with them."""
    head = lines[0].split() if lines else []
    size = len(head) - 1
    if (
        not head
        or head[0] not in ("D\\D", "GPU", "CPU")
        or head[1:] != [str(i) for i in range(size)]
    ):
        return [], "no row of GPU numbers below the title"
    if head[0] == "CPU":
        return [], "this is the CPU's latency"
    rows: list[list[float | None]] = []
    for i in range(size):
        fields = lines[i + 1].split() if i + 1 < len(lines) else []
        wrong = [cell for cell in fields[1:] if not _NUMBER.fullmatch(cell) and cell != "-"]
        if len(fields) != size + 1 or fields[0] != str(i) or wrong:
            return [], f"row {i} must be its number and {size} numbers" + (
                f", not {quote(wrong[0])}" if wrong else ""
            )
        rows.append([None if cell == "-" else float(cell) for cell in fields[1:]])
    return rows, "" if rows else "an empty matrix"


def read_nccl_tests(
    text: str, name: str, note: Callable[[str], None] | None = None
) -> tuple[MeasuredRow, ...]:
    """Read the table of an nccl-tests program.

    A line that another process wrote into is left out where there is a `note` to take. Raises
    `CalibrationError` when there is no table or a line is damaged.
    """
    faults = Faults(name)
    found: list[MeasuredRow] = []
    has_root = re.search(r"^#.*\broot\b", text, re.MULTILINE) is not None  # since version 2.9
    counts_wrong = re.search(r"^#.*\s#wrong", text, re.MULTILINE) is not None  # before, an error
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        numbered = len(fields) >= 8 and fields[0].isascii() and fields[0].isdigit()
        if not (numbered or ROW.match(line)):
            continue
        # size count type redop root time algbw busbw ...; all_gather and others print none, or
        # nothing, as redop.
        rest = fields[2:]
        words = [cell for cell in rest[:2] if not _is_number(cell)]
        numbers = rest[len(words) + has_root :]
        torn = len(numbers) < 3 or any(
            re.search(r"[A-Za-z]", each) for each in numbers[:3] if each not in _NO_TIMES
        )
        if torn and note:
            note(f"{name}: line {number} is torn and left out: {quote(line.strip())}")
            continue
        if (
            len(numbers) < 3
            or not all(map(_is_number, numbers[:3]))
            or not words
            or any(word.strip("-") in ("nan", "inf") for word in words)
            or not fields[1].isdigit()
            or len(fields[0]) > 18
            or len(fields[1]) > 18
        ):
            faults.add(f"line {number}", f"not a line of nccl-tests: {quote(line.strip())}")
            continue
        time, algbw, busbw = (float(cell) for cell in numbers[:3])
        if not faults.check(
            time > 0 and algbw >= 0 and busbw >= 0, f"line {number}", f"a time of {numbers[0]} us"
        ):
            continue
        # With -c 0 nothing is checked.
        if counts_wrong and (numbers[3:4] or ["0"])[0].strip("0") not in ("", "N/A"):
            faults.add(f"line {number}", f"{quote(numbers[3])} wrong elements")
            continue
        found.append(
            MeasuredRow(
                size=int(fields[0]),
                count=int(fields[1]),
                dtype=words[0],
                redop=words[1] if len(words) > 1 else "none",
                time=time * 1e-6,
                algbw=algbw * 1e9,
                busbw=busbw * 1e9,
            )
        )
        if not faults.check(len(found) <= _MOST_ROWS, "", f"more than {_MOST_ROWS} lines"):
            break
    faults.check(found or faults.problems, "", "no line of nccl-tests in it")
    faults.raise_any(CalibrationError)
    return tuple(found)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,9})?(e[+-]?[0-9]{1,2})?", text) is not None


_NO_TIMES = ("nan", "-nan", "inf", "-inf", "N/A")
_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \S+"
_PREFIX = re.compile(
    rf"^({_STAMP}" r"|\[[^\]]{1,40}\](<std(out|err)>)?:?|[\w.-]{1,64}:|<std(out|err)>:?)\s*"
)
"""A prefix that mpirun (`[1,0]<stdout>:`), srun (`0:`) or pdsh (`node1:`) puts before a line, or a
time stamp of a container's log or of syslog.
"""
_RANK = re.compile(r"Rank\s+(\d{1,6})\b.{0,60}?\b[Pp]id\s+(\d{1,10})\s+on\s+(\S{1,80})\s")
_LAUNCH = re.compile(
    r"^# nThread (\d{1,6}) nGpus (\d{1,6})\b.* warmup iters: \d+ iters: (\d{1,9})\b", re.MULTILINE
)
_PROGRAM = re.compile(r"\b([a-z]+(?:_[a-z]+)*)_perf\b")
COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "sendrecv": "send_receive",
}
"""Our names of the programs."""
_TORN = re.compile(r"\s+\d+[A-Za-z]\S*:\d+:\d+ .*NCCL INFO")
"""A size that NCCL's own line follows."""
_OTHERS = ("gather", "scatter", "hypercube")
"""Programs of collectives that have no name here."""
_CONFIG = ("nthreads", "ngpus", "iterations")


@dataclass(frozen=True, slots=True)
class NcclTestsLog:
    """One log. `collective` is "" and counts are 0 where it does not say them. `programs` are the
    names of programs that it has, such as `all_reduce_perf`.

    `ranks` are on `hosts`, in `processes` of `nthreads` threads, which drive `ngpus` GPUs each. A
    time is of one of `iterations` calls in a row.
    """

    name: str
    collective: str
    programs: tuple[str, ...]
    ranks: int
    hosts: int
    processes: int
    rows: tuple[MeasuredRow, ...]
    nthreads: int = 0
    ngpus: int = 0
    iterations: int = 0

    @property
    def gpus_of_a_thread(self) -> int:
        """GPUs that one thread drives; 0 where each GPU has a process or a thread."""
        alone = self.processes and self.ranks // self.processes
        found = self.ngpus or alone
        return found if found > 1 else 0


def read_launch(text: str) -> tuple[int, int, int]:
    """The threads of a process, the GPUs of a thread and the iterations by a log's header; 0, 0, 0
    without one.
    """
    found = _LAUNCH.search(text)
    nthreads, ngpus, iterations = map(int, found.groups()) if found else (0, 0, 0)
    return nthreads, ngpus, iterations


def read_nccl_logs(
    text: str, name: str, note: Callable[[str], None] | None = None
) -> tuple[NcclTestsLog, ...]:
    """The logs of programs of nccl-tests in one file, one after the other; see `read_nccl_log`."""
    if text.lstrip().startswith("{"):
        return (_read_json(text, name),)
    parts, running = [list[str]()], ""
    for number, whole in enumerate(text.splitlines()):
        line = _strip(whole)
        if note and _TORN.match(whole):
            note(f"{name}: line {number + 1} is torn and left out: {quote(whole.strip())}")
        found = _PROGRAM.search(line)
        if found and found[1] in (*COLLECTIVES, *_OTHERS) and found[1] != running:
            if running:
                parts.append([""] * number)
            running = found[1]
        parts[-1].append(line)
    tables = [part for part in parts if any(map(ROW.match, part))] or parts[:1]
    return tuple(_read_log(part, name, note) for part in tables)


def read_nccl_log(text: str, name: str) -> NcclTestsLog:
    """The log of one program of nccl-tests, the first where there are several; raises
    `CalibrationError` when it has no table.
    """
    return read_nccl_logs(text, name)[0]


def _read_log(lines: Sequence[str], name: str, note: Callable[[str], None] | None) -> NcclTestsLog:
    # Lines keep their numbers.
    table = "\n".join(line if line.startswith("#") or ROW.match(line) else "" for line in lines)
    found = [match.groups() for line in lines if (match := _RANK.search(line))]
    programs = [match[1] for line in lines for match in [_PROGRAM.search(line)] if match]
    collective = next((COLLECTIVES[each] for each in programs if each in COLLECTIVES), "")
    rows = read_nccl_tests(table, name, note)
    return NcclTestsLog(
        name,
        collective,
        tuple(f"{each}_perf" for each in dict.fromkeys(programs)),
        len({rank for rank, _, _ in found}),
        len({host for _, _, host in found}),
        len({(pid, host) for _, pid, host in found}),
        tuple(replace(row, collective=collective) for row in rows),
        *read_launch(table),
    )


def _strip(line: str) -> str:
    """A line without what launchers put before it."""
    line = line.strip()
    while not line.startswith("#") and not ROW.match(line) and (match := _PREFIX.match(line)):
        line = line[match.end() :]
    return line


def _read_json(text: str, name: str) -> NcclTestsLog:
    document = read_json(text, f"{name}: is no JSON", CalibrationError)
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list) or not results:
        raise CalibrationError(f"{name}: has no results of nccl-tests")
    rows = tuple(_row(result, f"{name}: results[{i}]") for i, result in enumerate(results))
    devices = document.get("devices")
    devices = [each for each in devices or () if isinstance(each, dict)]
    hosts = [str(each.get("hostname", "")) for each in devices]
    pids = zip([each.get("pid") for each in devices], hosts, strict=True)
    processes = len({(pid, host) for pid, host in pids if pid is not None})
    args = document.get("args")
    config = document.get("config")
    launch = [config.get(key, 0) for key in _CONFIG] if isinstance(config, dict) else []
    if any(type(each) is not int or each < 0 for each in launch):
        raise CalibrationError(f"{name}: config: {', '.join(_CONFIG)} must be counts")
    program = PurePath(str(args[0])).name if isinstance(args, list) and args else ""
    match = _PROGRAM.search(program)
    return NcclTestsLog(
        name,
        COLLECTIVES.get(match[1], "") if match else "",
        (program,) if program else (),
        max(len(devices), processes * math.prod(launch[:2])),  # a line of each process
        len({*hosts} - {""}),
        processes,
        rows,
        *launch,
    )


def _row(result: Any, place: str) -> MeasuredRow:
    try:
        out = result["out_of_place"]
        time, algbw, busbw = (float(out[key]) for key in ("time", "alg_bw", "bus_bw"))
        wrong = int(out.get("nwrong") or 0)
        row = MeasuredRow(
            int(result["size"]), int(result["count"]), str(result["type"]),
            str(result.get("redop", "none")), time * 1e-6, algbw * 1e9, busbw * 1e9,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        raise CalibrationError(f"{place}: is no result of nccl-tests") from None
    if wrong:
        raise CalibrationError(f"{place}: {wrong} wrong elements")
    rates = 0 <= row.algbw < math.inf and 0 <= row.busbw < math.inf
    if not (rates and 0 < row.time < 1e9 and 0 < row.size < 1 << 60):
        raise CalibrationError(f"{place}: {row.size} bytes in {time} us")
    return row
