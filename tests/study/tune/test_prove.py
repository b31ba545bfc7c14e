"""What `verify` does over device counts, machines and sizes."""

from __future__ import annotations

import pytest

from simreduce.errors import OptionNotTaken, StrategyError
from simreduce.planners.algorithms import ALGORITHMS, COLLECTIVES, TWO_LEVEL, Algorithm
from simreduce.study.tune.prove import (
    ACROSS,
    BY_NCCL,
    COUNTS,
    ON_LINKS,
    RANKS,
    REAL,
    SUMMED,
    TASKS,
    Proof,
    ProofCase,
    everything,
    machines,
    prove_all,
)
from simreduce.study.tune.rank import COMMON
from simreduce.training.variable_update import MODES
from tests.faulty import FORGETFUL

# From Python 3.12 on, worker processes are told to be a risk beside numpy's threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def forgetful(monkeypatch):
    """A planner with a fault, and `ring`, as all that there is."""
    monkeypatch.setattr(
        "simreduce.study.tune.prove.ALGORITHMS",
        {"ring": ALGORITHMS["ring"], "forgetful": FORGETFUL},
    )
    monkeypatch.setitem(ALGORITHMS, "forgetful", FORGETFUL)
    return "forgetful"


def test_each_count_is_proven_alone_and_all_of_them_together():
    """One plan per count, and one with a gradient of each."""
    assert Proof("ring", 4, 1, 3) == ProofCase("ring", 4).prove((1, 7))
    assert Proof("ring", 4, 1, 1) == ProofCase("ring", 4).prove((7,))
    assert Proof("ring", 4, 2, 3) == ProofCase("ring", 4, 2).prove((1, 7))


def test_a_refusal_is_no_problem():
    """It says why."""
    name = "hierarchical_copy_gcp_v100"

    assert Proof(name, 3, 1, 0, refused=("needs exactly 8 devices, not 3",) * 3) == ProofCase(
        name, 3
    ).prove((1, 7))


def test_some_lists_may_be_refused(monkeypatch):
    """The others are proven all the same."""

    def picky(b, layout, tensors, options):
        if len(tensors) > 1:
            raise StrategyError("one tensor only")
        return ALGORITHMS["ring"].plan(b, layout, tensors, options)

    monkeypatch.setitem(ALGORITHMS, "picky", Algorithm("picky", picky, "takes one"))

    assert Proof("picky", 2, 1, 2, refused=("one tensor only",)) == ProofCase("picky", 2).prove(
        (1, 7)
    )


@pytest.mark.parametrize(
    "text",
    ["ring#2", "ring+chunk=4k", "pscpu#0", "collective#3", "ring+merge=2", "chain:1k:ring#2"],
)
def test_what_is_taken_on_no_machine_is_a_fault(text):
    """Not a refusal, which another machine might not give."""
    with pytest.raises(OptionNotTaken):
        ProofCase(text, 4).prove((1, 2000))


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("tasks", [1, 3])
def test_a_plan_that_sums_wrong_is_told_with_its_rank(tasks):
    """For every size at which it fails, in words."""
    proof = ProofCase("forgetful", 3, tasks).prove((5,))
    gpus = [f"n{i}.gpu0" for i in range(3)] if tasks == 3 else [f"n0.gpu{i}" for i in range(3)]

    assert ((), 1, tasks) == (proof.refused, proof.plans, proof.tasks)
    assert (
        tuple(f"5 elements: wrong sum: {gpu} [0, 5): rank 2 is missing" for gpu in gpus)
        == proof.problems
    )


def test_what_upstream_does_is_proven_when_asked_for():
    """Its hierarchical copy leaves out the last of three GPUs."""
    assert () == ProofCase("hierarchical_copy", 3).prove((5,)).problems
    assert tuple(
        f"5 elements: wrong sum: n0.gpu{i} [0, 5): rank 2 is missing" for i in range(3)
    ) == ProofCase("hierarchical_copy", 3, faithful=True).prove((5,)).problems  # fmt: skip


def test_what_cannot_be_read_is_a_fault():
    """A misspelt strategy is not a refusal."""
    with pytest.raises(StrategyError, match="did you mean 'ring'"):
        ProofCase("rng", 4).prove((1,))


def test_machines_share_the_gpus_evenly():
    """Each has a CPU, and links within it only."""
    shape = machines(4, 2)

    assert ("n0.gpu0", "n0.gpu1", "n1.gpu0", "n1.gpu1") == shape.ranks
    assert (((0, 1), (2, 3)), ("n0.cpu0", "n1.cpu0")) == (shape.tasks, shape.hosts)
    assert ((0, 1, 0, 0), (1, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0)) == shape.links
    for tasks in (0, 3):
        with pytest.raises(ValueError, match=f"4 GPUs cannot be shared evenly by {tasks} machines"):
            machines(4, tasks)


def test_everything_is_every_strategy_on_every_number_of_gpus_and_machines(monkeypatch):
    """Every algorithm with the shards it would try, alone and in packs; every packer; every mode;
    every other collective with two roots; each once.
    """
    asked = []
    monkeypatch.setattr("simreduce.study.tune.prove.REAL", ())
    monkeypatch.setattr("simreduce.study.tune.prove.ACROSS", ())
    monkeypatch.setattr("simreduce.study.tune.prove.SUMMED", ())
    monkeypatch.setattr(
        ProofCase,
        "prove",
        lambda case, counts: asked.append(
            (case.collective, f"mode {case.text}" if case.is_mode else case.text, case.ranks,
             case.tasks, case.root, counts)
        ),
    )  # fmt: skip
    cases = everything()
    assert {(place, None) for place in range(len(cases))} == set(prove_all(cases, COUNTS))
    shapes = [(ranks, tasks) for ranks in RANKS for tasks in TASKS if ranks % tasks == 0]
    expected = [
        (name + (f"#{shards}" if shards > 1 else "") + option, *shape)
        for name in (*ALGORITHMS, *TWO_LEVEL)
        for algorithm in [ALGORITHMS[name]]
        for shape in shapes
        for choices in [set(algorithm.choices(machines(*shape)))]
        for shards in (choices | {2} if choices and algorithm.shards else choices)
        for option in ("", "+packs=3", *(["+chunk=100"] if algorithm.pipelined else []))
    ]
    expected += [
        (text, *shape)
        for text in (*COMMON, *BY_NCCL, *(f"mode {mode}" for mode in MODES))
        for shape in shapes
    ]

    assert {*range(1, 18), 24, 32, 64} == set(RANKS)
    assert {1, 2, 4} == set(TASKS)
    assert sorted(("all_reduce", *question, 0, COUNTS) for question in expected) == sorted(
        question for question in asked if question[0] == "all_reduce"
    )
    assert sorted(
        (collective, name + option, ranks, ranks if name == "nccl:pat" else 1, root, COUNTS)
        for collective, known in COLLECTIVES.items()
        if collective != "all_reduce"
        for name, algorithm in known.items()
        for option in ("", *(["+chunk=100"] if algorithm.pipelined else []))
        for ranks in RANKS
        for root in ({0, ranks - 1} if collective in ("broadcast", "reduce") else {0})
    ) == sorted(question for question in asked if question[0] != "all_reduce")


def test_what_is_added_is_among_everything_and_is_found_out(forgetful, monkeypatch):
    """Alone and in packs, on every number of GPUs but one; nothing else is wrong."""
    monkeypatch.setattr("simreduce.study.tune.prove.REAL", ())
    monkeypatch.setattr("simreduce.study.tune.prove.ACROSS", ())
    monkeypatch.setattr("simreduce.study.tune.prove.SUMMED", ())
    monkeypatch.setattr("simreduce.study.tune.prove.RANKS", (1, 2, 3, 4))
    monkeypatch.setattr("simreduce.study.tune.prove.TASKS", (1, 2))
    monkeypatch.setattr("simreduce.study.tune.prove.TWO_LEVEL", ())
    monkeypatch.setattr("simreduce.study.tune.prove.COLLECTIVES", {"all_reduce": {}})
    proofs = [proof for _, proof in prove_all(everything(), (7,))]
    shapes = [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1), (4, 2)]
    names = [name + packs for name in ("ring", forgetful) for packs in ("", "+packs=3")]
    names += [*COMMON, *BY_NCCL, *(f"--variable_update={mode}" for mode in MODES)]

    assert sorted((name, *shape) for name in names for shape in shapes) == sorted(
        (p.strategy, p.ranks, p.tasks) for p in proofs
    )
    assert {
        (name, *shape) for name in (forgetful, f"{forgetful}+packs=3") for shape in shapes[1:]
    } == {(p.strategy, p.ranks, p.tasks) for p in proofs if p.problems}
    for proof in proofs:
        assert all(f"rank {proof.ranks - 1} is missing" in problem for problem in proof.problems)


def test_what_looks_at_links_is_proven_on_real_ones(monkeypatch):
    """On both DGX-1s, whose links have several lanes and do not join every pair; NCCL's trees, also
    with switches that sum, across machines that have these and a NIC for each GPU.
    """
    monkeypatch.setattr("simreduce.study.tune.prove.RANKS", ())
    proofs = [
        proof for _, proof in sorted(prove_all(everything(), COUNTS), key=lambda found: found[0])
    ]

    across = [(name, 24, 3, 5, ()) for name in ACROSS]
    across += [("nccl:collnet+channels=16", 24, 3, 5, ())] * len(SUMMED)
    assert [*across, *((name, 8, 1, 5, ()) for _ in REAL for name in ON_LINKS)] == [
        (p.strategy, p.ranks, p.tasks, p.plans, p.problems) for p in proofs
    ]


def test_processes_prove_what_one_does():
    """Each case once, in any order, with its place."""
    cases = [
        ProofCase(text, ranks, tasks)
        for text in ("ring", "trees", "best_ring")
        for ranks, tasks in ((3, 1), (8, 4))
    ]
    cases += [
        ProofCase("trees", 3, collective="reduce", root=2),
        ProofCase("replicated", 4, 2, is_mode=True),
        ProofCase("nccl", 8, machine="dgx1v"),
    ]
    alone = dict(prove_all(cases, (5, 64)))

    assert sorted(alone) == list(range(len(cases)))
    assert dict(prove_all(cases, (5, 64), workers=2)) == alone
    assert not any(proof.problems for proof in alone.values())
    assert {proof.plans for proof in alone.values()} >= {3}


def test_the_same_search_is_asked_of_one_process():
    """Rings of one graph, whatever is done with them; not those of another machine."""
    rings = ProofCase("best_ring+packs=3", 8, 2)

    assert rings.search == ProofCase("multi_ring", 8, 2).search
    assert rings.search != ProofCase("multi_ring", 8, 4).search
    assert rings.search != ProofCase("ring", 8, 2).search
