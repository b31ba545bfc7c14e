"""Keeps plans, proofs and predictions of a process, to rank again sooner."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf
from typing import Any, TypeAlias, TypeVar

from simreduce.engine import Summary
from simreduce.engine.setup import Setup
from simreduce.plan import Contract, Plan, repeat, verify, wrong_elements
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import Strategy
from simreduce.planners.synthesis import Network
from simreduce.study.ranking import Question

T = TypeVar("T")

_Asking: TypeAlias = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""What a planner asked: by name, with these arguments."""

MOST_OPS = 1 << 20
"""Default upper limit of ops in all plans that are kept, with their predictions: 100 MB."""

_SMALL = 8
"""Values that need more than this part of the room are not kept."""

_FACT = 64
"""Room of what is no column of ops, in ops."""
_STRATEGIES = 1 << 12
"""Upper limit of strategies whose last prediction is remembered."""


class PlanCache:
    """Plans, proofs and predictions by all that decides them: give it to `rank` again and again.

    It never changes a result. A plan holds for every machine of the same layout where NCCL decides
    the same and planners that look at bandwidth see the same. What was used longest ago goes first.
    """

    def __init__(self, most_ops: int = MOST_OPS) -> None:
        self._most, self._ops = most_ops, 0
        self._kept: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()
        self._made: dict[int, _Made] = {}  # by the `id` of a plan that is kept
        self._took: dict[tuple[str, str], float] = {}

    def compile(self, question: Question) -> Plan:
        """As `Question.compile`."""
        q, layout = question, question.setup.layout
        key = "plan", q.strategy, q.workload, layout, q.root, q.faithful
        made: _Made | None = self._find(key)
        if made is None or not made.holds(layout):
            asked = _Asked(layout)
            plan = replace(q, setup=q.setup.but(part=asked.layout_that_asks())).compile()
            made = _Made(plan, asked.answers)
            self._keep(key, made, len(plan))
        return made.plan

    def quickest_first(self, strategies: Sequence[Strategy], order: Sequence[int]) -> list[int]:
        """Places in order of the last predictions; those without one last, in the given order."""
        took = [self._took.get((each.spec, each.packing), inf) for each in strategies]
        return sorted(order, key=took.__getitem__)

    def note(self, strategy: Strategy, seconds: float) -> None:
        """Remember the last prediction of a strategy, with any chunks, for `quickest_first`."""
        if len(self._took) >= _STRATEGIES:
            self._took.clear()
        self._took[strategy.spec, strategy.packing] = seconds

    def digest(self, plan: Plan) -> str:
        """The digest of a plan."""
        made = self._made.get(id(plan))
        return made.digest if made else plan.digest

    def wrong(self, plan: Plan) -> int:
        """The wrong elements of a plan."""
        return self.once(
            ("wrong", self.digest(plan), _content(plan.contract)),
            lambda: wrong_elements(verify(plan)),
        )

    def summarise(self, setup: Setup, plan: Plan, times: int = 1) -> Summary:
        """The prediction of so many collectives in a row."""
        return self.once(
            ("summary", setup, self.digest(plan), times),
            lambda: setup.summarise(repeat(plan, times) if times > 1 else plan),
            len(plan) * times,
        )

    def once(self, key: Hashable, make: Callable[[], T], ops: int = _FACT) -> T:
        """The result of `make`, called once; it needs about as much room as so many `ops`."""
        found: T | None = self._find(key)
        if found is None:
            found = make()
            self._keep(key, found, ops)
        return found

    def _find(self, key: Hashable) -> Any:
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][1]

    def _keep(self, key: Hashable, value: object, ops: int) -> None:
        if ops > self._most // _SMALL:
            return
        self._drop(key)
        self._kept[key] = ops, value
        self._ops += ops
        if isinstance(value, _Made):
            self._made[id(value.plan)] = value
        while self._ops > self._most:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: Hashable) -> None:
        ops, value = self._kept.pop(key, (0, None))
        self._ops -= ops
        if isinstance(value, _Made):
            del self._made[id(value.plan)]


@dataclass(frozen=True)
class _Made:
    """A plan, with the answers that its planner got beyond what the layout says."""

    plan: Plan
    answers: dict[_Asking, object]

    @cached_property
    def digest(self) -> str:
        return self.plan.digest

    def holds(self, layout: Layout) -> bool:
        """Whether its planner would get the same answers from this layout, equal to its own."""
        asked = _Asked(layout)
        return all(
            asked.ask(name, *given, **dict(how)) == answer
            for (name, given, how), answer in self.answers.items()
        )


@dataclass(frozen=True)
class _Asked:
    """Answers in the place of a layout and its wiring, and remembers what was asked."""

    layout: Layout
    answers: dict[_Asking, object] = field(default_factory=dict)

    def layout_that_asks(self) -> Layout:
        """The layout, with this in the place of what knows more than it says."""
        return replace(
            self.layout,
            decide=partial(self.ask, "decide"),
            wiring=None if self.layout.wiring is None else self,
        )

    def ask(self, name: str, *given: Any, **how: Any) -> Any:
        """What the layout decides, or its wiring knows."""
        knows = self.layout if name == "decide" else self.layout.wiring
        answer = self.answers[name, given, (*how.items(),)] = getattr(knows, name)(*given, **how)
        return answer

    def network(
        self, ranks: tuple[str, ...], tasks: tuple[tuple[int, ...], ...], *, routed: bool
    ) -> Network:
        """The network of these ranks."""
        found: Network = self.ask("network", ranks, tasks, routed=routed)
        return found

    def joined(self, ranks: tuple[str, ...]) -> bool:
        """Whether links of GPUs join these ranks."""
        return bool(self.ask("joined", ranks))


def _content(contract: Contract) -> Hashable:
    """All that a proof of a plan with this contract rests on, besides the plan."""
    columns = (
        contract.device, contract.lo, contract.hi, contract.dtype, contract.members,
        contract.divisor,
    )  # fmt: skip
    return (
        contract.collective,
        *(column.astype("<i8").tobytes() for column in columns),
        contract.sets,
        tuple((home.lo, tuple(sorted(home.device.items()))) for home in contract.homes),
    )
