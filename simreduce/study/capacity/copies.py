"""Which options hold copies of a mix of jobs, none slower than promised, and the best of them."""

from __future__ import annotations

from simreduce.study.capacity.answer import (
    Evaluate,
    RankedOptions,
    cell_of,
    notes_on,
    quantities_of,
)
from simreduce.study.capacity.choose import CopiesOffer, JobsCluster, offer_copies, rank_copies
from simreduce.study.capacity.question import CapacityQuestion
from simreduce.study.sweep.columns import DONE


def answer_copies(question: CapacityQuestion, evaluate: Evaluate) -> RankedOptions[CopiesOffer]:
    """Find how many copies every option holds, and choose."""
    rows = evaluate([cell_of(option, question.folder) for option in question.options])
    offers, refused, waiting = list[CopiesOffer](), list[tuple[str, str]](), list[str]()
    for option, row in zip(question.options, rows, strict=True):
        if row is None:
            waiting.append(option.label)
            continue
        if row.state != DONE:
            refused.append((option.label, str(row.reason or row.state)))
            continue
        pays = quantities_of(question, option)  # of a machine that was just loaded
        cluster = JobsCluster(option.key, option.nodes, option.devices, pays, row)
        offers.append(offer_copies(cluster, question.prices, question.target))
    return RankedOptions(
        question, tuple(offers), tuple(rank_copies(offers, question.target.minimise)),
        tuple(refused), tuple(waiting), notes_on(question, offers),
    )  # fmt: skip
