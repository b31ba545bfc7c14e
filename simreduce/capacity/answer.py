"""The answer to a capacity question: every option evaluated, the choice, and what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from simreduce.capacity.choose import (
    Candidate,
    Key,
    Offer,
    Reach,
    choose,
    frontier,
    offer,
    rank_offers,
    reaches,
)
from simreduce.capacity.flips import (
    Answer as At,
    Assumption,
    error_flips,
    formula_flip,
    price_flips,
)
from simreduce.capacity.options import NAMES, Option, classes_of, label, pieces, with_rates
from simreduce.capacity.question import Question
from simreduce.capacity.rates import Rate, rate_flips
from simreduce.errors import InputError
from simreduce.sweep import STEP, Cell, Row, make_cell
from simreduce.training.memory import Fit

Evaluate = Callable[[Sequence[Cell]], Sequence[Row]]
"""The rows of cells, in their order."""


@dataclass(frozen=True, slots=True)
class Part:
    """What takes a share of the time of the run: `compute`, `exposed communication` and so on."""

    name: str
    share: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Offers in the file's order, `ranked` those that meet the target, best first, and `chosen` the
    best. `refused` has labels and reasons. `frontier` holds offers that none beats in both cost and
    time.
    """

    question: Question
    offers: tuple[Offer, ...]
    ranked: tuple[Offer, ...]
    refused: tuple[tuple[str, str], ...]
    frontier: tuple[Offer, ...]
    reaches: tuple[Reach, ...]
    assumptions: tuple[Assumption, ...]
    notes: tuple[str, ...]

    @property
    def chosen(self) -> Offer | None:
        """The best that meets the target."""
        return self.ranked[0] if self.ranked else None


def cell_of(option: Option, folder: str) -> Cell:
    """The cell that asks for an option's step."""
    return make_cell(STEP, {"scenario": dict(option.scenario)}, folder)


def answer(question: Question, evaluate: Evaluate, *, sensitivity: bool = True) -> Answer:
    """Evaluate every option and choose. `sensitivity` also looks for the values at which the choice
    changes, which takes further simulations for rates.
    """
    able = [option for option in question.options if not option.refused]
    rows = evaluate([cell_of(option, question.folder) for option in able])
    candidates: list[Candidate] = []
    refused = [(o.label, o.refused) for o in question.options if o.refused]
    by_key = {}
    for option, row in zip(able, rows, strict=True):
        found = _candidate(question, option, row)
        if isinstance(found, str):
            refused.append((option.label, found))
        else:
            candidates.append(found)
            by_key[option.key] = option
    prices, target = question.prices, question.target
    offers = [offer(c, prices, target) for c in candidates]
    ranked = rank_offers(offers, target.minimise)
    flips: list[Assumption] = []
    if sensitivity and ranked:
        flips += price_flips(candidates, prices, target)
        flips += error_flips(candidates, prices, target, ranked[0])
        flips += _failure_flips(question, candidates)
        flips += _rate_flips(question, candidates, by_key, evaluate, ranked[0].candidate)
    far = () if target.efficiency is None else tuple(reaches(candidates, NAMES, target.efficiency))
    return Answer(
        question, tuple(offers), tuple(ranked), tuple(refused), tuple(frontier(offers)), far,
        tuple(flips), tuple(_notes(question, offers)),
    )  # fmt: skip


def candidate_of(question: Question, option: Option, row: Row) -> Candidate:
    """The candidate of an option whose step was simulated."""
    counted = any(name.startswith("networks.") for name in question.prices.items)
    made = pieces(option, question.folder, counted=counted)
    step, compute = row.seconds or 0.0, row.compute or 0.0
    slow = 1.0
    if question.stragglers is not None:
        slow = question.stragglers.factor(option.nodes, option.devices)
    samples = round(step * (row.samples_per_second or 0.0))
    return Candidate(
        key=option.key,
        machine=option.machine,
        nodes=option.nodes,
        devices=row.ranks or option.devices,
        samples=samples,
        step=step + (slow - 1.0) * compute,
        simulated=step,
        compute=compute,
        exposed=row.exposed or 0.0,
        communication=row.communication or 0.0,
        singly=(row.efficiency or 1.0) * step,
        goodput=question.failures.goodput(option.nodes) if question.failures else 1.0,
        quantities=question.prices.quantities(made),
        bound=row.link or "",
        low=row.low,
        high=row.high,
        topology=row.topology or "",
        digest=row.topology_digest or "",
    )


def _candidate(question: Question, option: Option, row: Row) -> Candidate | str:
    """The candidate, or why the option is none."""
    if row.state != "done":
        return row.reason or row.state
    if row.wrong:
        return f"{row.wrong} elements are wrong"
    fit = Fit(row.memory or 0, option.memory)
    if fit.fits is False:
        return f"a GPU {fit.words}"
    try:
        return candidate_of(question, option, row)
    except InputError as error:
        return "; ".join(error.problems)


def parts(chosen: Candidate) -> list[Part]:
    """What takes the time of the run, largest share first."""
    rest = chosen.simulated - chosen.compute - chosen.exposed
    seconds = {
        "compute": chosen.compute,
        "exposed communication": chosen.exposed,
        "update and launch": max(rest, 0.0),
        "stragglers": chosen.step - chosen.simulated,
    }
    found = [
        Part(name, each / chosen.step * chosen.goodput) for name, each in seconds.items() if each
    ]
    if chosen.goodput < 1.0:
        found.append(Part("failures and checkpoints", 1.0 - chosen.goodput))
    return sorted(found, key=lambda part: -part.share)


def _failure_flips(question: Question, candidates: Sequence[Candidate]) -> list[Assumption]:
    failures = question.failures
    if failures is None:
        return []

    def at(key: str) -> At:
        def chosen(value: float) -> tuple[str, ...] | None:
            changed = replace(failures, **{key: value})
            moved = [replace(c, goodput=changed.goodput(c.nodes)) for c in candidates]
            found = choose(moved, question.prices, question.target)
            return None if found is None else found.candidate.key

        return chosen

    return [
        formula_flip(f"failures.{key}", getattr(failures, key), "s", at(key))
        for key in ("mtbf", "checkpoint", "restart")
        if getattr(failures, key)
    ]


def _rate_flips(
    question: Question,
    candidates: Sequence[Candidate],
    by_key: Mapping[Key, Option],
    evaluate: Evaluate,
    chosen: Candidate,
) -> list[Assumption]:
    """The rates of computing of every machine, of every class of network, and of the link that
    binds the choice.
    """
    options = [by_key[c.key] for c in candidates]
    rates = [
        Rate(f"compute of {machine}", tuple(o for o in options if o.machine == machine))
        for machine in dict.fromkeys(o.machine for o in options)
        if all(with_rates(o, 1.5) for o in options if o.machine == machine)
    ]
    classes = {o.key: classes_of(o, question.folder) for o in options}
    networks = dict.fromkeys(each.network for each in classes.values() if each.network)
    # A name of a link ends in its class.
    bound = [name for name in chosen.bound.split()[-1:] if name in classes[chosen.key].all]
    for name in dict.fromkeys([*networks, *bound]):
        having = tuple(o for o in options if name in classes[o.key].all)
        rates.append(Rate(f"links {name}", having, name))

    def simulate(option: Option) -> Candidate | None:
        (row,) = evaluate([cell_of(option, question.folder)])
        found = _candidate(question, option, row)
        return None if isinstance(found, str) else found

    return rate_flips(question, candidates, rates, simulate)


def _notes(question: Question, offers: Sequence[Offer]) -> list[str]:
    """What a reader should know about prices."""
    prices = question.prices
    notes = []
    if prices.date:
        notes.append(f"prices of {prices.date}: they age, look yours up")
    bought = [name for name, item in prices.items.items() if item.unit == prices.currency]
    joined = [each.candidate for each in offers if each.candidate.nodes > 1]
    free = [c for c in joined if not any(name.startswith("networks.") for name in c.quantities)]
    if bought and free:
        notes.append("networks without a price cost nothing here")
    return notes


__all__ = ["Answer", "Part", "answer", "candidate_of", "cell_of", "label", "parts"]
