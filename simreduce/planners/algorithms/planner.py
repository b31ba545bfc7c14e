"""The arguments and the results of every planner, and how it plans many tensors at once.

Tensors that are alike are planned once where a planner takes one tensor (`plan_each`). Planners
that do array arithmetic take all tensors in a few calls (`plan_together`). The plan is the same as
from one call for each tensor, op by op.

Algorithm families: collectives over groups of devices, all groups in lockstep.

A family's functions are given a `Values` of shape (groups, n): entry [g, p] is what position p of
group g gives. Groups share no device, and one call plans all of them by array arithmetic, so that a
two-level algorithm over 512 machines is a few calls. Every stream they use has a channel from
`knobs.channel` on.

A family is *symmetric* if every position does the same as position 0, shifted: what position p has
of position q depends on where q is as seen from p (q - p, or p XOR q), and so do the steps. Its
all-reduce then plans one of `knobs.machines` equal machines for all of them. It is written once: it
takes the number of positions from `size`, its parts from `parts`, numbers positions from 0 to n - 1
whether or not they are here, and gets what others have by `pull`.

Algorithms from outside the package: other packages name them as entry points.

What their planners do wrong is a StrategyError.
"""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

import numpy as np

from simreduce import dtypes
from simreduce.computing import grouped
from simreduce.computing.arrays import Ints
from simreduce.errors import InputError, PlanError, StrategyError, UnevenParts, quote
from simreduce.plan import PlanBuilder, SeparateBuilder, Value, Values, ValueTable
from simreduce.plan.composition import Alike
from simreduce.plan.ops import Numbers, most_ops, too_large
from simreduce.plan.plan import NO_STREAM
from simreduce.planners.layouts import OPEN, Decision, Layout

Tensors: TypeAlias = Sequence[Sequence[Value]]
"""`tensors[i][r]` is the value of tensor i (after packing) on rank r; rank r is device r of the
builder.
"""

Results: TypeAlias = Sequence[Sequence[Value]]
"""`results[i][r]` is the value on rank r that holds the sum of tensor i; of other collectives, the
values that hold the results of tensor i in any order.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """`shards` is the k of `#k`; `faithful` asks for upstream's quirks instead of what a user
    intends. `chunk` is the most bytes that a pipeline sends as one piece (0: no limit), `root` the
    rank of a rooted collective. `nccl` is what the strategy says of how NCCL does it.
    """

    shards: int = 1
    faithful: bool = False
    chunk: int = 0
    root: int = 0
    nccl: Decision = OPEN


Planner: TypeAlias = Callable[[PlanBuilder, Layout, Tensors, Options], Results]


def plan_each(
    b: PlanBuilder,
    tensors: Tensors,
    plan_one: Callable[[Sequence[Value], int], Sequence[Value]],
    turns: int = 1,
) -> Results:
    """`plan_one` of every tensor in order, from its values, by rank, and its turn to the values
    that hold its result; tensor i has the turn i mod `turns`.

    It must plan each tensor by itself, and treat tensors of the same sizes, dtype and turn alike.
    """
    given = ValueTable.of(tensors)
    return Alike(b, given, lambda i, _: plan_one(given[i], i % turns)).plan_all(turns)


def plan_chain(
    b: PlanBuilder,
    tensors: Tensors,
    plan_next: Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]],
) -> Results:
    """`plan_next` of every tensor in order, from its values, by rank, and the results of the tensor
    before it. It must treat tensors of the same sizes and dtype
    alike, and may wait for the results before.
    """
    given = ValueTable.of(tensors)
    return Alike(b, given, lambda i, before: plan_next(given[i], before), chained=True).plan_all(1)


PlanMany: TypeAlias = Callable[[PlanBuilder, Values], Values]
"""From shape (tensors, ranks) to shape (tensors, results)."""

Shape: TypeAlias = Callable[[Values], Hashable]
"""From the values of one tensor, by rank, to what decides which ops it takes."""

_AT_ONCE = 1 << 20
"""Upper limit of tensors planned at once, times about as many as the ops of each."""

_LARGE = 512
"""Tensors of more than about this many ops are planned one by one.

There the ops take the time, not the calls, and the ops of equal tensors need only be copied.
"""

_REPEATED = 16
"""Tensors are also planned one by one if so many of them are equal, on average."""


def plan_together(
    b: PlanBuilder,
    tensors: Tensors,
    plan: PlanMany,
    chunk: int = 0,
    shape: Shape = lambda _: None,
) -> Results:
    """`plan` of all tensors in a few calls, in the order of one call after another.

    It must do the same ops for tensors of one dtype that are equal in `shape`, or in all sizes if
    they are sent in chunks of `chunk` bytes.
    """
    given = ValueTable.of(tensors)
    ranks, most = max(given.shape[1], 1), int((given.hi - given.lo).max(initial=0))
    pieces = most * max(dtypes.SIZES) // chunk if chunk else 1
    ops = ranks * max(ranks, pieces)
    size = given.hi[:, 0] - given.lo[:, 0] if given.shape[1] else given.dtype
    kinds = len(np.unique(size * len(dtypes.SIZES) + given.dtype))  # of sizes and dtypes
    if ops > _LARGE or _REPEATED * kinds <= len(given):
        return plan_each(b, given, lambda tensor, _: plan(b, Values.of(tensor)[None, :])[0, :])
    step = max(_AT_ONCE // ops, 1)
    parts = [given[first : first + step] for first in range(0, len(given), step)]
    alike: Shape = (lambda tensor: tensor.elements.tobytes()) if chunk else shape
    made = [_plan_some(b, part, plan, alike) for part in parts]
    return ValueTable.concatenate(made) if made else given


def _plan_some(b: PlanBuilder, given: ValueTable, plan: PlanMany, shape: Shape) -> ValueTable:
    places = grouped(((tensor.dtype, shape(tensor)), i) for i, tensor in enumerate(given))
    separate, made = SeparateBuilder(b, len(given)), []
    for those in places.values():
        at = np.array(those)
        (stacked,) = given[at].by_dtype()
        made.append(plan(separate, separate.lift(stacked, at[:, None])))
    separate.settle()
    settled = [ValueTable.stacked(separate.settled(values)) for values in made]
    return ValueTable.concatenate(settled)[np.argsort(np.concatenate([*places.values()]))]


NAMES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "reduce",
    "broadcast",
    "all_to_all",
    "send_receive",
)
"""The collectives."""

After: TypeAlias = "Sequence[int] | Ints"
"""Ops to wait for."""

Pull: TypeAlias = Callable[[Values, Values, After], Values]
Connect: TypeAlias = Callable[..., Pull]
"""`puller`, or what takes its place."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """Options of one collective of a family.

    `channel` is the first stream channel to take, `chunk` the most elements that a pipeline sends
    as one piece (0: no limit), `root` the position where a rooted collective starts or ends. With
    `machines` equal machines, the values are the positions of the first one; the next machine has
    the next positions.
    """

    channel: int = 0
    chunk: int = 0
    root: int = 0
    machines: int = 1


Collective: TypeAlias = Callable[[PlanBuilder, Values, Knobs], Values]
"""From shape (groups, n) to

- all_reduce: (groups, n), the sum over the group, on every position;
- reduce_scatter: (groups, n), part p of the sum on position p, cut as `Values.cut(n)` cuts;
- all_gather: (groups, n), the whole on every position; position p gave part p;
- reduce: (groups, 1), the sum on the root;
- broadcast: (groups, n), the root's value on every position; other entries only name devices;
- all_to_all: (groups, n, n), at [g, q, p] the part that p gave for q; position p gave one value,
  which `cut(n)` cuts into the parts;
- send_receive: (groups, n), at position p what position p - 1 gave, at 0 what the last one gave.
"""


@dataclass(frozen=True, slots=True)
class Family:
    """The collectives that one idea gives; None where it gives none.

    It uses at most `channels` stream channels. `pipelined` families heed `Knobs.chunk`;
    `symmetric` ones have a symmetric all-reduce.
    """

    name: str
    summary: str
    all_reduce: Collective | None = None
    reduce_scatter: Collective | None = None
    all_gather: Collective | None = None
    reduce: Collective | None = None
    broadcast: Collective | None = None
    all_to_all: Collective | None = None
    send_receive: Collective | None = None
    channels: int = 1
    pipelined: bool = False
    symmetric: bool = False


def knobs(options: Options, dtype: int, root: int = 0) -> Knobs:
    """The knobs that a user's options mean for tensors of `dtype`; a chunk has at least one
    element.
    """
    chunk = max(options.chunk // dtypes.SIZES[dtype], 1) if options.chunk else 0
    return Knobs(chunk=chunk, root=root)


def size(values: Values, knobs: Knobs) -> int:
    """The number of positions, including the positions of other machines."""
    return values.shape[1] * knobs.machines


def parts(values: Values, knobs: Knobs) -> Values:
    """Every value in as many parts as there are positions, along a new axis. StrategyError if
    machines that do not do the same would be taken for one.
    """
    _check_even(values, knobs)
    return values.cut(size(values, knobs))


def common_parts(values: Values, knobs: Knobs) -> Values:
    """Return `parts` of position 0's value, by group and part.

    They are the parts of every position where all have one interval. With many positions, the parts
    of each would take gigabytes.
    """
    _check_even(values, knobs)
    return values[:, 0].cut(size(values, knobs))


def _check_even(values: Values, knobs: Knobs) -> None:
    n = size(values, knobs)
    uneven = values.elements[values.elements % n > 0]
    if knobs.machines > 1 and len(uneven):
        raise UnevenParts(
            f"{uneven[0]} elements are no {n} equal parts, so the machines do not do the same and "
            f"cannot be folded; try a size that {n} divides"
        )


def everyones(shards: Values, knobs: Knobs) -> Values:
    """The shards of all positions; on this machine, position p's is at p.

    The shards of other machines have the same size and differ by their intervals only.
    """
    if knobs.machines == 1:
        return shards
    lo = shards.lo[:, :1] + shards.elements[:, :1] * np.arange(size(shards, knobs))
    return shards[:, np.zeros(lo.shape[1], dtype=np.int64)].view(lo, lo + shards.elements[:, :1])


def by_row(collective: Collective, b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """A collective of the groups along the last axis."""
    made = collective(b, values.reshape(-1, values.shape[-1]), knobs)
    return made.reshape(*values.shape[:-1], made.shape[-1])


def pull(
    b: PlanBuilder, values: Values, source: Ints, wanted: Values, *,
    stream: Numbers = NO_STREAM, after: After = (),
) -> Values:  # fmt: skip
    """Copies to the devices of `wanted` of its intervals, each from the value of position `source`:
    along axis 1 of `values`, or beyond it on another machine.
    """
    return puller(b, values.device, source, stream=stream)(values, wanted, after)


def puller(
    b: PlanBuilder,
    device: Ints,
    source: Ints,
    *,
    channel: int | None = None,
    stream: Numbers = NO_STREAM,
) -> Pull:
    """`pull` of any values on `device`, as a function of them, of `wanted` and of `after`: for
    families that pull from the same positions step by step. They leave by the sender's stream of
    `channel`, if one is given.
    """
    away, sender = np.divmod(source, device.shape[1])
    machines: Numbers = away if away.any() else 0
    if channel is not None:
        stream = b.streams(device[:, sender], channel)

    def step(values: Values, wanted: Values, after: After) -> Values:
        given = wanted.with_ops(values.op[:, sender])
        return b.copies(given, wanted.device, stream=stream, after=after, away=machines)

    return step


def chunk_count(elements: int, chunk: int, each: int) -> int:
    """How many chunks of at most `chunk` elements (0: no limit) there are; PlanTooLarge if, at
    `each` ops a chunk, they are more than a plan may hold.
    """
    count = max(-(-elements // chunk), 1) if chunk else 1
    check_chunks(count, each)
    return count


def check_chunks(count: int, each: int) -> None:
    """PlanTooLarge if chunks of `each` ops are more than a plan may hold."""
    if count * each > most_ops():
        raise too_large(count * each)


GROUP = "simreduce.algorithms"

_unloaded: dict[str, str] = {}
_warned: set[str] = set()


def load_plugins() -> None:
    """Import what other packages name as entry points, whose planners register themselves."""
    for entry in entry_points(group=GROUP):
        try:
            # Not `entry.load()`: the module may be what imports us, and is half done then.
            import_module(entry.module)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it does wrong, exits included
            words = f"{type(error).__name__}: {' '.join(str(error).split())}"
            _unloaded[entry.name] = f"{entry.value} cannot be imported: {words}"


def why_unloaded(name: str) -> str:
    """Why the plug-in of that name is no algorithm; "" if there is none or it was imported."""
    return _unloaded.get(name, "")


def warn_of_unloaded() -> None:
    """Warn once, in a line, of each plug-in that cannot be imported."""
    for name, why in _unloaded.items():
        if name not in _warned:
            _warned.add(name)
            # At no line of a file, so that none is printed after it.
            warnings.warn_explicit(f"algorithm {name}: {why}", UserWarning, "simreduce", 0)


Choices = Callable[[Layout], Sequence[int]]
_OURS = f"{__name__.partition('.')[0]}."


def guard(planner: Planner, collective: str) -> Planner:
    """The planner, with StrategyError for every fault of its own and of its results."""

    @functools.wraps(planner)
    def plan(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
        try:
            results = planner(b, layout, [tuple(tensor) for tensor in tensors], options)
        except (InputError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise StrategyError(f"raised {_describe(error)}") from error
        try:
            b.check()
        except (PlanError, TypeError, ValueError) as error:
            raise StrategyError(f"made a faulty plan: {_in_a_line(error)}") from error
        each = layout.n if collective == "all_reduce" else 0
        if wrong := _wrong(results, len(tensors), each, len(b)):
            raise StrategyError(wrong)
        return results

    return plan


def guard_choices(choices: Choices) -> Choices:
    """The shard counts; only 1 where `choices` fails or returns none that are whole numbers."""

    @functools.wraps(choices)
    def choose(layout: Layout) -> Sequence[int]:
        try:
            found = list(choices(layout))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - whatever another package does wrong
            return (1,)
        return found if all(isinstance(each, (int, np.integer)) for each in found) else (1,)

    return choose


def _wrong(results: object, tensors: int, ranks: int, ops: int) -> str:
    """Say what is wrong with a planner's results; `ranks` 0 allows any number per tensor."""
    if not isinstance(results, Sequence):
        return f"must return one list of values per tensor, returned {quote(results)}"
    if len(results) != tensors:
        return f"must return one list of values per tensor: {tensors}, returned {len(results)}"
    for i, values in enumerate(results):
        if not isinstance(values, Sequence):
            return f"must return one list of values per tensor, returned {quote(values)} in it"
        if ranks and len(values) != ranks:
            return (
                f"must return {ranks} values for tensor {i}, one per rank, returned {len(values)}"
            )
        foreign = [v for v in values if not isinstance(v, Value) or not 0 <= v.op < ops]
        if foreign:
            return f"must return values of the builder, returned {quote(foreign[0])} in a list"
    return ""


def _describe(error: BaseException) -> str:
    """`KeyError: 'x' (my_package/mine.py:12)`, in one line."""
    text = _in_a_line(error)
    return f"{type(error).__name__}{': ' * bool(text)}{text}{_place(error.__traceback__)}"


def _in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _place(trace: TracebackType | None) -> str:
    """The last line that is not simreduce's, with as many folders as the module has packages."""
    place = ""
    for frame, line in traceback.walk_tb(trace):
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(_OURS):
            path = Path(frame.f_code.co_filename)
            parts = path.parts[-1 - module.count(".") - (path.name == "__init__.py") :]
            place = f" ({'/'.join(parts)}:{line})"
    return place
