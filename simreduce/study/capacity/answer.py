"""The answer to a capacity question: every option evaluated, the choice, and what it rests on.

What is left of a choice when a node, a NIC or a switch fails, and until it is repaired.

The job starts again on what is left: NCCL searches the machine anew, a node that is gone takes no
samples, and every other GPU keeps its batch. Prices stay. Parts that links tell apart are
simulated, the first of each kind and `MOST_TRIED` kinds at most; the worst stands for its class.

Which options hold copies of a mix of jobs, none slower than promised, and the best of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from simreduce import units
from simreduce.errors import InputError
from simreduce.study.capacity import CapacityQuestion
from simreduce.study.capacity.choose import (
    RATES,
    CapacityCandidate,
    Configuration,
    CopiesOffer,
    EvaluatedCluster,
    Offer,
    P,
    WithinTarget,
    choice,
    frontier,
    near_miss,
    offer,
    offer_copies,
    rank_offers,
    rivals,
    within_target,
)
from simreduce.study.capacity.flips import (
    Assumption,
    Rate,
    Simulate,
    bound_compute,
    error_flips,
    formula_flip,
    price_flips,
    rate_flips,
)
from simreduce.study.capacity.options import CapacityOption, links_of, plain, product
from simreduce.study.capacity.price_list import ENERGY, Pieces, period_of
from simreduce.study.ranking import Ending
from simreduce.study.scenario_files import beside
from simreduce.study.sweep import DONE, JOBS, MESH, STEP, Cell, Figures, make_cell
from simreduce.study.sweep.store import Planned
from simreduce.topology import load_topology
from simreduce.topology.loader import MOST_TRIED, distinct, members
from simreduce.training.mesh.mesh_table import AUTO
from simreduce.training.simulation import MemoryFit
from simreduce.training.step import NOT_COUNTED, SPENT_ON, Activations


@dataclass(frozen=True, slots=True)
class Failure:
    """A class of parts, one of which fails.

    `part` is the worst that was tried, of `kinds` that differ and `parts` in all; "" where the
    machine has none. `left` is a part of the rate, 0 where the job cannot go on, for a `reason`.
    """

    fails: str
    part: str = ""
    parts: int = 0
    kinds: int = 0
    offer: Offer | None = None
    left: float = 0.0
    reason: str = ""

    @property
    def meets(self) -> bool:
        """Whether the target still holds."""
        return self.offer is not None and self.offer.meets


def failures(
    question: CapacityQuestion,
    option: CapacityOption,
    chosen: CapacityCandidate,
    simulate: Simulate,
) -> Iterator[Failure]:
    """For each class that the question names, the worst failure. What was stopped is left out."""
    machine = load_topology(beside(Path(question.folder, "-"), str(option.scenario["topology"])))
    kinds = distinct(machine, question.fails)
    asked = [(kind, name) for kind, names in kinds.items() for name in names[:MOST_TRIED]]
    without = [replace(option, scenario={**option.scenario, "fails": name}) for _, name in asked]
    replies = dict(zip(asked, simulate(without), strict=True))
    for kind in question.fails:
        if not (count := len(members(machine, kind))):
            yield Failure(kind)
        yield from sorted(
            [
                _failure(question, Failure(kind, name, count, len(kinds[kind])), chosen, c)
                for (each, name), c in replies.items()
                if each == kind and c is not None
            ],
            key=lambda each: each.left,
        )[:1]


def _failure(
    question: CapacityQuestion,
    bare: Failure,
    chosen: CapacityCandidate,
    found: CapacityCandidate | str,
) -> Failure:
    """What a part leaves."""
    if isinstance(found, str):
        return replace(bare, reason=found.partition("; ")[0])  # not where the fault is written
    return replace(
        bare,
        offer=offer(found, question.prices, question.target),
        left=found.rate / chosen.rate if chosen.rate else 0.0,
    )


T = TypeVar("T", bound=CapacityCandidate | CopiesOffer)
Evaluate = Callable[[Sequence[Cell]], Sequence[Figures | None]]
"""The rows of cells, in their order; None for those that a user's stop left out."""
Make = Callable[[CapacityQuestion, CapacityOption, Figures], T | str]
"""What the row of an option makes of it; or why it is no option."""


@dataclass(frozen=True, slots=True)
class TimePart:
    """A share of the time of the run: `compute`, `exposed communication` and so on."""

    name: str
    share: float


@dataclass(frozen=True, slots=True)
class AtRate:
    """The choice where GPUs compute `factor` times as fast as assumed, at `flops` FLOP/s.

    No simulation is done for it: the step is the longest possible one at a lower rate, and the
    shortest possible one at a higher rate. `flops` is None where GPUs differ.
    """

    factor: float
    flops: float | None
    offer: Offer


@dataclass(frozen=True, slots=True)
class RankedOptions(Ending, Generic[P]):
    """The options of a question at their prices: offers in the file's order, and the `chosen` one.

    `ranked` are the offers that meet the target, best first, and `chosen` is the best. `refused`
    has labels and reasons. `waiting` has the labels of options that were not simulated when a user
    stopped.
    """

    question: CapacityQuestion
    offers: tuple[P, ...]
    ranked: tuple[P, ...]
    refused: tuple[tuple[str, str], ...]
    waiting: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def varied(self) -> Collection[str]:
        """The parts of keys in which options differ."""
        keys = [each.candidate.key for each in self.offers]
        fields = enumerate(Configuration._fields)
        return {name for i, name in fields if len({key[i] for key in keys} - {""}) > 1}

    def plain(self, key: Configuration) -> str:
        """A configuration in plain words."""
        return plain(key, self.varied)

    def verb(self, key: Configuration) -> str:
        """`buy` if the machine has a price of the piece, `rent` if it has one per time."""
        return "buy" if self.question.prices.machines[key.machine].bought else "rent"

    @property
    def paid_off(self) -> str:
        """How the prices of machines that are bought became prices per hour; "" if none is."""
        kinds = dict.fromkeys((each.candidate.key.machine, self.verb(each.candidate.key))
                              for each in self.offers)  # fmt: skip
        if not (bought := [machine for machine, verb in kinds if verb == "buy"]):
            return ""
        rented = [product(machine) for machine, verb in kinds if verb == "rent"]
        each = [
            f"{product(machine)} at {price.value:,.0f} {price.unit}, paid off over {price.spread}"
            for machine, price in self.question.prices.machines.items()
            if machine in bought
        ]
        power = ", with energy" if ENERGY in self.question.prices.items else ", without energy"
        words = f"bought: {'; '.join(each)}{power}; staff, space and interest are not counted"
        if not rented:
            return words
        also = ", ".join(rented)
        return f"rented machines are compared with bought ones; rented: {also}; {words}"

    @property
    def complete(self) -> bool:
        """Whether all was simulated that should be."""
        return not self.waiting

    @property
    def chosen(self) -> P | None:
        """The best that meets the target."""
        return self.ranked[0] if self.ranked else None


@dataclass(frozen=True, slots=True)
class CapacityAnswer(RankedOptions[Offer]):
    """The answer for a training step.

    `frontier` holds offers that none beats in both cost and time. `at_rates` has the choice at
    other rates of computing, if its rate is assumed, today's among them; `sensitivity` says whether
    changes of the choice were looked for. `failures` say what is left of the choice when a part of
    it fails.
    """

    frontier: tuple[Offer, ...]
    reaches: tuple[WithinTarget, ...]
    assumptions: tuple[Assumption, ...]
    at_rates: tuple[AtRate, ...] = ()
    sensitivity: bool = True
    failures: tuple[Failure, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all was simulated that should be."""
        left = self.waiting or any(each.candidate.first for each in self.offers)
        return not left and all(each.complete for each in self.assumptions)

    @property
    def near(self) -> Offer | None:
        """An offer that nearly meets the target and is better than the choice, or all there is."""
        return near_miss(self.offers, self.chosen, self.question.target.minimise)

    @property
    def rivals(self) -> list[Offer]:
        """What is not told apart from the choice."""
        if self.chosen is None:
            return []
        return rivals(self.offers, self.chosen, self.question.target.minimise)

    @property
    def kernels(self) -> list[str]:
        """Whose constants kernels have, where those of some options are of other GPUs; that rates
        of computing are assumed, where several are.
        """
        return _kernels(self.offers)


def cell_of(option: CapacityOption, folder: str, *, first: bool = False) -> Cell:
    """The cell that asks for an option's step, or for the copies of jobs that it holds. Of many
    meshes it asks for the best, or for the `first` alone.
    """
    document: dict[str, Any] = {
        "scenario": dict(option.scenario),
        **({"first": True} if first else {}),
    }
    if option.slowdown is not None:
        return make_cell(JOBS, {**document, "slowdown": option.slowdown}, folder)
    if option.batch is not None and option.batch != option.scenario["step"]["batch"]:
        document["batch"] = option.batch
    return make_cell(STEP, document, folder)


def plan_of(question: CapacityQuestion) -> list[Planned]:
    """Every option as a place of a sweep, by the parts of its key."""
    return [
        Planned(
            {**o.key._asdict(), "nodes": o.nodes},
            None if o.refused else cell_of(o, question.folder),
            o.refused,
        )
        for o in question.options
    ]


def answer(
    question: CapacityQuestion, evaluate: Evaluate, *, sensitivity: bool = True
) -> CapacityAnswer:
    """Evaluate every option and choose.

    Where all meshes are tried, one of each option comes first, then all of the option that promises
    most; after a stop, the first one counts. `sensitivity` also looks for the values at which the
    choice changes, which takes further simulations for rates.
    """
    known = _first_candidates(question, evaluate)
    found, refused, waiting = _evaluate(question, evaluate, _candidate, known)
    simulate = partial(_simulate, question, evaluate, make=_candidate)
    candidates, by_key = [c for _, c in found], {option.key: option for option, _ in found}
    prices, target = question.prices, question.target
    offers = [offer(c, prices, target) for c in candidates]
    ranked = rank_offers(offers, target.minimise)
    lost, flips = list[Failure](), list[Assumption]()
    if ranked and not waiting and not any(each.first for each in candidates):
        best = ranked[0].candidate
        if question.fails:
            lost += failures(question, by_key[best.key], best, simulate)
        if sensitivity:
            flips += [
                *price_flips(candidates, prices, target),
                *error_flips(candidates, prices, target, ranked[0]),
                *_failure_flips(question, candidates),
                *_rate_flips(question, candidates, by_key, simulate, best),
            ]
    differ = ("nodes", "batch") if question.global_batch else ("nodes",)
    least = target.efficiency
    far = [] if least is None else within_target(candidates, least, differ)
    at = _at_rates(question, by_key[ranked[0].candidate.key], ranked[0]) if ranked else ()
    return CapacityAnswer(
        question, tuple(offers), tuple(ranked), refused, waiting,
        notes_on(question, offers), tuple(frontier(offers)), tuple(far), tuple(flips), tuple(at),
        sensitivity, tuple(lost),
    )  # fmt: skip


def _evaluate(
    question: CapacityQuestion,
    evaluate: Evaluate,
    make: Make[T],
    known: Mapping[Configuration, T] = MappingProxyType({}),
) -> tuple[list[tuple[CapacityOption, T]], tuple[tuple[str, str], ...], tuple[str, ...]]:
    """What `make` makes of the row of each option, why others have none, and the labels of those
    that a user's stop left out. Those of which something is `known` come last, in its order, and
    keep it after a stop.
    """
    refused = [(o.key.label, o.refused) for o in question.options if o.refused]
    able = [option for option in question.options if not option.refused]
    turns = {key: turn for turn, key in enumerate(known)}
    order = sorted(able, key=lambda option: turns.get(option.key, -1))
    by_key = dict(
        zip((o.key for o in order), _simulate(question, evaluate, order, make), strict=True)
    )
    made = [(o, known.get(o.key) if (row := by_key[o.key]) is None else row) for o in able]
    refused += [(o.key.label, each) for o, each in made if isinstance(each, str)]
    return (
        [(o, each) for o, each in made if each is not None and not isinstance(each, str)],
        tuple(refused),
        tuple(o.key.label for o, each in made if each is None),
    )


def _first_candidates(
    question: CapacityQuestion, evaluate: Evaluate
) -> dict[Configuration, CapacityCandidate]:
    """One mesh of each option that tries all, the most promising option first."""
    prices, target = question.prices, question.target
    able = [option for option in question.options if not option.refused]
    many = [each for each in able if AUTO in each.scenario["step"].get(MESH, ())]
    made = _simulate(question, evaluate, many, _candidate, first=True)
    found = (replace(each, first=True) for each in made if isinstance(each, CapacityCandidate))
    offers = sorted(
        (offer(each, prices, target) for each in found),
        key=lambda each: (not each.meets, *each.values(target.minimise)),
    )
    return {each.candidate.key: each.candidate for each in offers}


def _at_rates(question: CapacityQuestion, option: CapacityOption, chosen: Offer) -> list[AtRate]:
    """The choice at other rates of computing, slowest first; none if its rate is not assumed."""
    step = option.scenario["step"]
    if "rate" not in step:
        return []  # a time or a profile that somebody measured
    rate = step["rate"]
    flops = units.flops(rate) * step.get("speed", 1.0) if isinstance(rate, str) else None
    moved = {at: bound_compute(chosen.candidate, at, best=at > 1.0) for at in RATES}
    offers = {at: offer(each, question.prices, question.target) for at, each in moved.items()}
    offers[1.0] = chosen
    return [AtRate(at, flops and flops * at, offers[at]) for at in sorted(offers)]


def candidate_of(
    question: CapacityQuestion, option: CapacityOption, row: Figures
) -> CapacityCandidate:
    """The candidate of an option whose step was simulated."""
    step, compute = row.seconds or 0.0, row.compute or 0.0
    waits = question.stragglers
    slow = 1.0 if waits is None else waits.factor(option.nodes, option.devices)
    return CapacityCandidate(
        key=option.key,
        nodes=option.nodes,
        devices=row.ranks or option.devices,
        samples=round(step * (row.samples_per_second or 0.0)),
        step=step + (slow - 1.0) * compute,
        simulated=step,
        compute=compute,
        exposed=row.exposed or 0.0,
        communication=step if row.method == MESH else row.communication or 0.0,
        unmoved=(row.efficiency or 1.0) * step,
        goodput=question.failures.goodput(option.nodes) if question.failures else 1.0,
        quantities=quantities_of(question, option),
        row=row,
        assumed=str(option.scenario["step"].get("rate", "")),
    )


def quantities_of(question: CapacityQuestion, option: CapacityOption) -> dict[str, float]:
    """How much of each price an option pays for; cables and ports are counted where they have one.
    InputError if it cannot be built.
    """
    prices = question.prices
    counted = option.nodes > 1 and any(name.startswith("networks.") for name in prices.items)
    links = links_of(option, question.folder) if counted else Pieces("", 0)
    return prices.quantities(replace(links, machine=option.key.machine, nodes=option.nodes))


def fit_of(option: CapacityOption, row: Figures) -> MemoryFit:
    """What a GPU holds in an option's step, and its memory."""
    return MemoryFit(
        row.memory or 0,
        option.memory,
        Activations(row.activations or 0, row.activations_source or NOT_COUNTED),
    )


def _candidate(
    question: CapacityQuestion, option: CapacityOption, row: Figures
) -> CapacityCandidate | str:
    """The candidate, or why the option is none."""
    if row.state != "done":
        return str(row.reason or row.state)
    if row.wrong:
        return f"{row.wrong} elements are wrong"
    fit = fit_of(option, row)
    if fit.fits is False:
        return f"a GPU {fit.words}"
    try:
        return candidate_of(question, option, row)
    except InputError as error:
        return "; ".join(error.problems)


def parts(chosen: CapacityCandidate) -> list[TimePart]:
    """Return the parts of the time of the run, largest share first."""
    row = chosen.row
    waits = {
        SPENT_ON["tp"]: row.tensor,
        SPENT_ON["cp"]: row.context,
        "experts": row.expert,
        SPENT_ON["pipeline"]: row.pipeline,
        SPENT_ON["data"]: row.data,
    }
    if row.method != MESH:
        waits = {"exposed communication": chosen.exposed}
    waits[SPENT_ON["interference"]] = row.interference
    rest = chosen.simulated - chosen.compute - sum(each or 0.0 for each in waits.values())
    found = [
        TimePart(name, each / chosen.step * chosen.goodput)
        for name, each in {
            "compute": chosen.compute,
            **waits,
            "update and launch": max(rest, 0.0),
            "stragglers": max(chosen.step - chosen.simulated, 0.0),
        }.items()
        if each
    ]
    if chosen.goodput < 1.0:
        found.append(TimePart("failures and checkpoints", 1.0 - chosen.goodput))
    return sorted(found, key=lambda part: -part.share)


def _failure_flips(
    question: CapacityQuestion, candidates: Sequence[CapacityCandidate]
) -> list[Assumption]:
    if (failures := question.failures) is None:
        return []

    def chosen(key: str, value: float) -> Configuration | None:
        changed = replace(failures, **{key: value})
        return choice(
            [replace(c, goodput=changed.goodput(c.nodes)) for c in candidates],
            question.prices,
            question.target,
        )

    return [
        formula_flip(f"failures.{key}", getattr(failures, key), "s", partial(chosen, key))
        for key in ("mtbf", "checkpoint", "restart")
        if getattr(failures, key)
    ]


def _rate_flips(
    question: CapacityQuestion,
    candidates: Sequence[CapacityCandidate],
    by_key: Mapping[Configuration, CapacityOption],
    simulate: Simulate,
    chosen: CapacityCandidate,
) -> list[Assumption]:
    """The flips of rates: of computing, networks and the link that binds the choice.

    Computing has a rate for every machine, and each class of network has one.
    """
    options = [by_key[c.key] for c in candidates]
    rates = [
        Rate(f"compute of {machine}", tuple(o for o in options if o.key.machine == machine))
        for machine in dict.fromkeys(o.key.machine for o in options)
    ]
    links = {o.key: links_of(o, question.folder) for o in options}
    networks = dict.fromkeys(each.network for each in links.values() if each.network)
    # A name of a link ends in its class.
    bound = [
        name for name in (chosen.row.link or "").split()[-1:] if name in links[chosen.key].classes
    ]
    rates += [
        Rate(f"links {name}", tuple(o for o in options if name in links[o.key].classes), name)
        for name in dict.fromkeys([*networks, *bound])
    ]
    return rate_flips(question, candidates, rates, simulate)


def _simulate(
    question: CapacityQuestion, evaluate: Evaluate, options: Sequence[CapacityOption],
    make: Make[T], *, first: bool = False,
) -> list[T | str | None]:  # fmt: skip
    """What `make` makes of the row of each option; None of those that a user's stop left out."""
    rows = evaluate([cell_of(option, question.folder, first=first) for option in options])
    return [
        None if row is None else make(question, option, row)
        for option, row in zip(options, rows, strict=True)
    ]


def notes_on(
    question: CapacityQuestion, offers: Sequence[Offer] | Sequence[CopiesOffer]
) -> tuple[str, ...]:
    """Return notes on the prices for the reader."""
    prices = question.prices
    notes = [
        *prices.notes,
        *dict.fromkeys(
            f"{each.candidate.key.machine}: {warning}"
            for each in offers
            if (warning := each.candidate.row.warning)
        ),
    ]
    used = [prices.items[name] for each in offers for name in each.candidate.quantities]
    dated = period_of(item.date for item in used)
    bought = any(item.bought for item in prices.items.values())
    joined = [each.candidate.quantities for each in offers if each.candidate.nodes > 1]
    free = any(not any(name.startswith("networks.") for name in each) for each in joined)
    more = {
        f"prices of {dated}: they age, look yours up": bool(dated),
        "networks without a price cost nothing here": bought and free,
        "activations are not counted of this model; step.activations says how many":
            NOT_COUNTED in {each.candidate.row.activations_source for each in offers},
    }  # fmt: skip
    notes += [words for words, holds in more.items() if holds]
    nominal = (re.split("; (?=kernels of )", e.candidate.row.nominal or "") for e in offers)
    said = ("", *_kernels(offers))  # in the answer
    return (*notes, *(e for e in dict.fromkeys(chain.from_iterable(nominal)) if e not in said))


def _kernels(offers: Iterable[Any]) -> list[str]:
    """As `CapacityAnswer.kernels`, of these offers."""
    known = [each.candidate for each in offers]
    found = dict.fromkeys(each.row.constants for each in known)
    if len({getattr(each, "assumed", None) for each in known}) > 1:  # copies of jobs have none
        return ["rates of computing are assumed, not measured"]
    return [*filter(None, found)] if len(found) > 1 else []


def answer_copies(question: CapacityQuestion, evaluate: Evaluate) -> RankedOptions[CopiesOffer]:
    """Find how many copies every option holds, and choose."""
    found, refused, waiting = _evaluate(question, evaluate, _offer_of_copies)
    offers = [each for _, each in found]
    ranked = rank_offers(offers, question.target.minimise)
    return RankedOptions(
        question, tuple(offers), tuple(ranked), refused, waiting, notes_on(question, offers)
    )


def _offer_of_copies(
    question: CapacityQuestion, option: CapacityOption, row: Figures
) -> CopiesOffer | str:
    if row.state != DONE:
        return str(row.reason or row.state)
    pays = quantities_of(question, option)  # of a machine that was just loaded
    return offer_copies(
        EvaluatedCluster(option.key, option.nodes, option.devices, pays, row),
        question.prices,
        question.target,
    )
