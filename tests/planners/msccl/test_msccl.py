"""Plans as algorithms of MSCCL: proved by interpretation, wrong when they are damaged."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.engine.setup import Setup
from simreduce.errors import InputError, StrategyError
from simreduce.planners.algorithms import COLLECTIVES
from simreduce.planners.msccl import (
    KINDS,
    MOST_STEPS,
    ChunkPlace,
    MscclAlgorithm,
    MscclGpu,
    Step,
    ThreadBlock,
    read_algorithm,
    xml_text,
)
from simreduce.planners.msccl.from_plan import algorithm_of
from simreduce.planners.msccl.interpreter import problems_of
from simreduce.workload import Gradient, Workload
from tests.planners.msccl import oracle
from tests.thorough import examples

FAMILIES = {
    "ring": "switch:4",
    "double_tree": "switch:4",
    "halving_doubling": "switch:4",
    "hierarchical_copy": "switch:8",
    "ring/halving_doubling": "a100-mesh-4x2",
    "recursive_doubling": "switch:4",
    "one_shot": "switch:3",
    "blueconnect": "switch:6",
}


@cache
def made(strategy: str, machine: str, collective: str = "all_reduce") -> MscclAlgorithm:
    setup = Setup(machine)
    n = setup.layout.n
    tensor = Workload("one", (Gradient("one", n * (n - 1) * 24),))
    return algorithm_of(setup.compile(strategy, tensor, collective), strategy)


@pytest.mark.parametrize(("strategy", "machine"), FAMILIES.items())
def test_a_plan_is_proved_as_xml_and_sums_right_in_any_order(strategy, machine):
    algorithm = made(strategy, machine)

    assert read_algorithm(xml_text(algorithm), "a.xml") == algorithm
    assert problems_of(algorithm) == []
    assert all(oracle.is_all_reduce(algorithm, seed) for seed in range(3))


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("machine", ["switch:2", "switch:5", "dgx1v"])
def test_every_algorithm_is_proved_or_refused_with_a_reason(collective, machine):
    proved = 0
    for name in COLLECTIVES[collective]:
        try:
            algorithm = made(name, machine, collective)
        except InputError:
            continue
        proved += 1
        assert problems_of(algorithm) == [], name

    assert proved >= 6


def test_a_ring_is_mscclangs():
    """One thread block that sends its first chunk, passes on 2 (n - 1) - 1 and keeps the last."""
    for n in (3, 8):
        algorithm = made("ring", f"switch:{n}")
        assert (algorithm.chunks, algorithm.channels) == (n, 1)
        for rank, gpu in enumerate(algorithm.gpus):
            [block] = gpu.blocks
            assert (block.receive, block.send) == ((rank - 1) % n, (rank + 1) % n)
            kinds = [step.kind for step in block.steps]
            assert kinds == ["s", *["rrcs"] * (n - 1), *["rcs"] * (n - 2), "r"]
            assert gpu.scratch == 0


def test_the_one_pass_algorithm_that_rccl_ships_is_proved():
    """Built by the rule of allreduce-1step-4n-ll-1pass.xml (ROCm/rccl, tools/msccl-algorithms):
    each GPU sends two parts to the three others, on a channel each; then thread blocks add up a
    chunk each, once all of the part is sent and received.
    """
    ranks, part = 4, 4
    gpus = []
    for rank in range(ranks):
        peers = [peer for peer in range(ranks) if peer != rank]
        block_of = {(peer, c): 2 + 2 * i + c for i, peer in enumerate(peers) for c in range(2)}
        blocks: list[ThreadBlock] = []
        for peer in (rank, *peers):
            for c in range(2):
                first = part * c
                slots = [3 * first + part * i for i in range(ranks - 1)]
                steps = []
                if peer != rank:
                    theirs = [other for other in range(ranks) if other != peer].index(rank)
                    there = ChunkPlace("s", 3 * first + part * theirs)
                    here = ChunkPlace("s", slots[peers.index(peer)])
                    steps.append(Step("s", ChunkPlace("i", first), there, part, tells=True))
                    steps.append(Step("r", ChunkPlace("i", first), here, part, tells=True))
                waits = [(block_of[other, c], at) for other in peers if other != peer
                         for at in range(2)]  # fmt: skip
                nowhere = ChunkPlace("i", -1), ChunkPlace("o", -1)
                steps += [Step("nop", *nowhere, 0, wait) for wait in waits[:-1]]
                total = ChunkPlace("i", first + peer)
                for i, slot in enumerate(slots):
                    source = ChunkPlace("s", slot + peer)
                    steps.append(Step("re", source, total, 1, None if i else waits[-1]))
                send = -1 if peer == rank else peer
                blocks.append(ThreadBlock(send, send, c, tuple(steps)))
        gpus.append(MscclGpu(2 * part, 0, 6 * part, tuple(blocks)))
    algorithm = MscclAlgorithm("allpairs", "all_reduce", "LL", 2, 2 * part, tuple(gpus))

    assert problems_of(algorithm) == []
    assert all(oracle.is_all_reduce(algorithm, seed) for seed in range(5))


def test_halving_doubling_sends_as_many_chunks_as_it_must():
    algorithm = made("halving_doubling", "switch:8")
    for gpu in algorithm.gpus:
        sent = sum(s.count for block in gpu.blocks for s in block.steps if s.action.sends)
        assert sent == 2 * 7


@pytest.mark.parametrize(("strategy", "machine"), list(FAMILIES.items())[:5])
def test_an_algorithm_that_lacks_a_step_or_adds_where_it_copies_is_wrong(strategy, machine):
    algorithm = made(strategy, machine)
    instead = {"rrc": "r", "rrcs": "rcs", "re": "cpy", "rcs": "rrs", "r": "rrc", "cpy": "re"}
    for g, gpu in enumerate(algorithm.gpus[:3]):
        for b, block in enumerate(gpu.blocks):
            for s, step in enumerate(block.steps):
                if step.kind == "nop":
                    continue
                assert problems_of(_with(algorithm, g, b, _without(block.steps, s)))
                if step.kind in instead:
                    other = replace(step, kind=instead[step.kind])
                    assert problems_of(_with(algorithm, g, b, _put(block.steps, s, other)))


def test_without_its_waits_an_algorithm_races():
    algorithm = made("halving_doubling", "switch:4")
    found = []
    for g, gpu in enumerate(algorithm.gpus):
        for b, block in enumerate(gpu.blocks):
            for s, step in enumerate(block.steps):
                if step.waits and step.kind != "nop":
                    free = _put(block.steps, s, replace(step, waits=None))
                    found.append(problems_of(_with(algorithm, g, b, free)))

    raced = [problems for problems in found if problems]  # messages order the others
    assert len(raced) >= len(found) // 2 > 0
    assert all(any("races with" in each for each in problems) for problems in raced)


@st.composite
def mutants(draw):
    """An algorithm with one or two random faults."""
    strategy = draw(st.sampled_from(list(FAMILIES)))
    algorithm = made(strategy, FAMILIES[strategy])
    for _ in range(draw(st.integers(1, 2))):
        g = draw(st.integers(0, len(algorithm.gpus) - 1))
        blocks = algorithm.gpus[g].blocks
        b = draw(st.integers(0, len(blocks) - 1))
        steps = blocks[b].steps
        if not steps:
            continue
        s = draw(st.integers(0, len(steps) - 1))
        algorithm = _with(algorithm, g, b, _damage(draw, steps, s, algorithm.chunks))
    return algorithm


def _damage(draw, steps, s, chunks):
    step = steps[s]
    match draw(st.sampled_from(["drop", "kind", "source", "target", "swap", "free", "mute", "count",
                                "wait", "again"])):  # fmt: skip
        case "drop":
            return _without(steps, s)
        case "again":
            return (*steps[:s], step, *steps[s:])
        case "kind":
            return _put(steps, s, replace(step, kind=draw(st.sampled_from(list(KINDS)))))
        case "source":
            return _put(steps, s, replace(step, source=_place(draw, chunks)))
        case "target":
            return _put(steps, s, replace(step, target=_place(draw, chunks)))
        case "swap":
            other = draw(st.integers(0, len(steps) - 1))
            return _put(_put(steps, s, steps[other]), other, step)
        case "free":
            return _put(steps, s, replace(step, waits=None))
        case "mute":
            return _put(steps, s, replace(step, tells=not step.tells))
        case "count":
            return _put(steps, s, replace(step, count=draw(st.integers(1, 3))))
        case _:
            return _put(steps, s, replace(step, waits=(draw(st.integers(0, 2)), 0)))


def _place(draw, chunks):
    return ChunkPlace(draw(st.sampled_from("ios")), draw(st.integers(0, chunks - 1)))


def _put(steps, s, step):
    return (*steps[:s], step, *steps[s + 1 :])


def _without(steps, s):
    return (*steps[:s], *steps[s + 1 :])


def _with(algorithm, g, b, steps):
    gpu = algorithm.gpus[g]
    blocks = list(gpu.blocks)
    blocks[b] = replace(blocks[b], steps=steps)
    gpus = list(algorithm.gpus)
    gpus[g] = replace(gpu, blocks=tuple(blocks))
    return replace(algorithm, gpus=tuple(gpus))


@settings(max_examples=examples(300), deadline=None)
@given(mutants())
def test_a_damaged_algorithm_is_wrong_or_sums_right_in_every_order(algorithm):
    """What the interpreter proves, the naive runs confirm; what it calls a deadlock or a wrong sum,
    they show in every order.
    """
    problems = problems_of(algorithm)
    if not problems:
        assert all(oracle.is_all_reduce(algorithm, seed) for seed in range(6))
        return
    rules = ("races", "ends with a nop")
    if any(
        any(rule in p for rule in rules) or (" step " in p and "waits for ever" not in p)
        for p in problems
    ):
        return  # may go well by chance, or breaks a rule of the format
    for seed in range(3):
        try:
            right = oracle.is_all_reduce(algorithm, seed)
        except oracle.Stuck:
            right = False
        assert not right, problems


def test_a_file_is_read_with_every_fault():
    text = xml_text(made("ring", "switch:3"))
    text = text.replace('cnt="1"', 'cnt="x"', 1).replace('type="r"', 'type="rx"', 1)
    text = text.replace('proto="Simple"', 'proto="simpel"').replace('chan="0"', "", 1)

    with pytest.raises(InputError) as caught:
        read_algorithm(text, "a.xml")

    assert sorted(problem.split(": ", 1)[1] for problem in caught.value.problems) == [
        "line 1: algo proto: unknown 'simpel' (did you mean 'Simple'?)",
        "line 3: tb chan: must be a whole number from 0; it is missing",
        "line 4: step cnt: must be a whole number from 0; got 'x'",
        "line 8: step type: unknown 'rx' (did you mean 'r'?)",
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: replace(a, channels=40), "40 channels; MSCCL has 32"),
        (lambda a: replace(a, in_place=False), "no call would use it"),
        (lambda a: replace(a, chunks=2), "the buffer has 2 chunks"),
        (lambda a: replace(a, chunks=10**11), "at most 65536 can be proved"),
        (
            lambda a: _with(a, 0, 0, (replace(a.gpus[0].blocks[0].steps[0], kind="nop",
                                              count=10**11),)),
            "cnt 100000000000 is not from 0 to 71",
        ),
        (
            lambda a: _with(a, 0, 0, a.gpus[0].blocks[0].steps * MOST_STEPS),
            "MSCCL has 256",
        ),
        (
            lambda a: _with(a, 1, 0, (replace(a.gpus[1].blocks[0].steps[0], waits=(0, 9)),)),
            "waits for tb 0 step 9, which is not there",
        ),
        (
            lambda a: _with(a, 1, 0, (replace(a.gpus[1].blocks[0].steps[0], kind="nop",
                                              waits=(0, 0), tells=True),)),
            "ends with a nop that waits",
        ),
    ],
)  # fmt: skip
def test_the_rules_of_the_format_hold(change, words):
    assert any(words in problem for problem in problems_of(change(made("ring", "switch:3"))))


@pytest.mark.parametrize(
    ("strategy", "machine", "words"),
    [
        ("nccl:ring", "switch:4", "NCCL carries it out itself"),
        ("pscpu", "switch:4", "MSCCL has GPUs only"),
        ("ring+mean", "switch:4", "leave out"),
        ("trees", "dgx1v", "channels; MSCCL has 32"),
    ],
)
def test_what_msccl_has_no_step_for_is_refused(strategy, machine, words):
    with pytest.raises(StrategyError, match=words):
        made(strategy, machine)
