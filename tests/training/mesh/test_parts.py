"""What ranks of each axis exchange, in bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from simreduce.training.executions import COLLECTIVE, RECEIVE, SEND
from simreduce.training.gpus import Kernels
from simreduce.training.mesh import Mesh
from simreduce.training.mesh.held import rank_parameters
from simreduce.training.mesh.parts import MeshCall, Parts
from simreduce.training.mesh.passes import MeshPasses
from simreduce.training.mesh.pipeline import load_schedule
from simreduce.training.mesh.write import write_step
from tests.training.mesh.jobs import EXPERTS, GPT, GPU, LLAMA, Free, job

S, B, H = 32, 2, 64
WHOLE = 2 * S * B * H
"""Bytes of a micro batch's hidden state."""


def _calls(calls: tuple[MeshCall, ...]) -> list[tuple[str, str, int, int]]:
    return [call[:4] for call in calls]


def test_tensor_parallel_ranks_sum_hidden_states():
    """An all-reduce after each part, forward and backward (Shoeybi et al. 2019)."""
    parts = Parts(job(Mesh(tp=4)))
    for part in (parts.attention, parts.feed_forward):
        assert [("tp", "all_reduce", WHOLE, 1)] == _calls(part.forward) == _calls(part.backward)


def test_sequence_parallelism_scatters_and_gathers():
    """As many bytes as an all-reduce; backward gathers inputs once more (Korthikanti et al. 2022,
    section 4.2.2). A rank gives its part to a gather, and all to a reduction.
    """
    parts = Parts(job(Mesh(tp=4), sequence_parallel=True))
    gather, reduce = ("tp", "all_gather", WHOLE // 4, 1), ("tp", "reduce_scatter", WHOLE, 1)
    for part in (parts.attention, parts.feed_forward):
        assert [gather, reduce] == _calls(part.forward)
        assert [gather, gather, reduce] == _calls(part.backward)


def test_one_rank_exchanges_nothing():
    """On no axis."""
    parts = Parts(job(Mesh(), EXPERTS))
    assert not any(part.forward + part.backward for part in parts.of_stage(0))


@pytest.mark.parametrize(("text", "keys"), [(GPT, H), (LLAMA, 32)])
def test_context_parallel_ranks_pass_keys_and_values_on(text, keys):
    """Their own to the next, c - 1 times; backward with gradients, which are as large."""
    attention = Parts(job(Mesh(cp=4), text)).attention
    nbytes = 2 * (S * B // 4) * keys * 2

    assert [("cp", "send_receive", nbytes, 3)] == _calls(attention.forward)
    assert [("cp", "send_receive", 2 * nbytes, 3)] == _calls(attention.backward)


def test_context_and_tensor_parallel_ranks():
    """Each has keys of its heads, and sums its tokens."""
    attention = Parts(job(Mesh(cp=2, tp=2))).attention

    assert [
        ("cp", "send_receive", 2 * (S * B // 2) * (H // 2) * 2, 1),
        ("tp", "all_reduce", WHOLE // 2, 1),
    ] == sorted(_calls(attention.forward))


@pytest.mark.parametrize(("imbalance", "factor"), [(1.0, 1), (1.5, 1.5)])
def test_tokens_go_to_their_experts_and_back(imbalance, factor):
    """Each token twice, as two experts have it."""
    experts = Parts(job(Mesh(ep=4, dp=4), EXPERTS, imbalance=imbalance)).experts
    expected = [("ep", "all_to_all", int(2 * WHOLE * factor), 2)]

    assert expected == _calls(experts.forward) == _calls(experts.backward)


def test_deepep_knows_how_many_experts_a_token_has():
    """It sends a copy for each machine and rank of them."""
    experts = Parts(job(Mesh(ep=4, dp=4), EXPERTS, dispatch="deepep")).experts
    (there,) = experts.forward[-1:]

    assert ("ep", "dispatch", 2 * WHOLE, 2) == there[:4]
    assert (8, 2, 1, 1) == there.spread


def test_tensor_parallel_ranks_send_their_own_tokens_to_experts():
    """With sequence parallelism; those that share an expert gather what came, and scatter it."""
    mesh = Mesh(tp=2, ep=2, dp=4)
    found = _calls(Parts(job(mesh, EXPERTS, sequence_parallel=True)).experts.forward)

    assert [("ep", "all_to_all", WHOLE, 2)] == [call for call in found if call[0] == "ep"]
    assert [
        ("etp", "all_gather", WHOLE, 1), ("etp", "reduce_scatter", 2 * WHOLE, 1),
    ] == [call for call in found if call[0] == "etp"]  # fmt: skip


@pytest.mark.parametrize(("t", "sent"), [(1, WHOLE), (4, WHOLE // 4)])
def test_stages_send_a_hidden_state(t, sent):
    """A part from each tensor parallel rank (Narayanan et al. 2021, section 4.1)."""
    work = job(Mesh(tp=t, pp=2))
    nodes = _step(work).nodes
    moved = Counter(
        (node.kind, node.nbytes) for row in nodes.values() for node in row if node.tag is not None
        and node.kind in (SEND, RECEIVE)
    )  # fmt: skip

    assert {(SEND, sent): 2 * work.micros, (RECEIVE, sent): 2 * work.micros} == moved


def test_what_came_in_parts_is_gathered():
    """Unless sequences are in parts anyway; the ends of a pipeline receive nothing."""
    plain, parts = (Parts(job(Mesh(tp=4, pp=2), sequence_parallel=each)) for each in (False, True))
    gather = [("tp", "all_gather", WHOLE // 4, 1)]

    assert gather == _calls(plain.arrivals(1, backward=False))
    assert gather == _calls(plain.arrivals(0, backward=True))
    assert not plain.arrivals(0, backward=False)
    assert not plain.arrivals(1, backward=True)
    assert not parts.arrivals(1, backward=False)


def _step(work):
    schedule = load_schedule(work.schedule, work.mesh.pp, work.virtual, work.micros)
    return write_step(work, schedule, MeshPasses(work, Free(work.mesh)), {})


def _moved(work, place: int) -> Counter:
    """Bytes of each collective of a stage's first rank, by axis."""
    rank = work.mesh.groups("pp")[0][place]
    found = Counter()
    for node in _step(work).nodes[rank]:
        if node.kind == COLLECTIVE:
            found[node.lane, node.collective] += node.nbytes
    return found


@pytest.mark.parametrize("overlap", [(), ("grad_reduce",), ("grad_reduce", "param_gather")])
@pytest.mark.parametrize("text", [GPT, EXPERTS])
@pytest.mark.parametrize("pp", [1, 2])
def test_every_gradient_is_reduced_once(overlap, text, pp):
    """Of each stage, in buckets or at the end: 4 bytes of each parameter; experts by themselves."""
    experts = text == EXPERTS
    mesh = Mesh(dp=4, pp=pp, ep=2 if experts else 1)
    for optimizer, kind in (("replicated", "all_reduce"), ("distributed", "reduce_scatter")):
        work = job(mesh, text, optimizer=optimizer, overlap=frozenset(overlap))
        for place in range(pp):
            plain, own = rank_parameters(work, place)
            expected = {("dp+cp", kind): 4 * plain}
            if own:
                expected["edp", kind] = 4 * own
            if work.shape.tied and pp > 1:
                expected["ends", "all_reduce"] = 4 * 512 * H
            if optimizer == "distributed":
                expected["dp+cp", "all_gather"] = 2 * plain // 4
                if own:
                    expected["edp", "all_gather"] = 2 * own // 2
            found = _moved(work, place)
            assert found.keys() == expected.keys()
            for key, nbytes in expected.items():
                assert found[key] == pytest.approx(nbytes, abs=16)  # of buckets that are rounded up
                assert key[1] == "all_gather" or found[key] == nbytes


def test_fsdp_gathers_for_each_pass_and_reduces_after_backward():
    """Parameters of 2 bytes for both passes of each micro batch."""
    work = job(Mesh(dp=4), optimizer="fsdp", micros=3)
    count = rank_parameters(work, 0).all
    found = _moved(work, 0)

    assert 3 * 4 * count == found["dp+cp", "reduce_scatter"]
    assert found["dp+cp", "all_gather"] == pytest.approx(3 * 2 * 2 * count / 4, abs=3 * 2 * 8)


@pytest.mark.parametrize(("text", "mesh"), [(GPT, Mesh(dp=8, copies=2)),
                                            (EXPERTS, Mesh(dp=8, ep=2, copies=2))])  # fmt: skip
def test_hybrid_shards_are_summed_over_their_copies(text, mesh):
    """A rank of four sums a quarter of the gradients with the other copy, in the dtype in which it
    reduced them; of experts half, as two ranks of a copy share them.
    """
    work = job(mesh, text, optimizer="fsdp", micros=3)
    plain, experts = rank_parameters(work, 0)
    found = _moved(work, 0)

    assert 3 * 4 * plain == found["dp+cp", "reduce_scatter"]
    assert found["dp_replicate", "all_reduce"] == pytest.approx(3 * plain, abs=3 * 16)
    assert found["dp+cp", "all_gather"] == pytest.approx(3 * 2 * 2 * plain / 4, abs=3 * 2 * 16)
    if experts:
        assert found["edp_replicate", "all_reduce"] == pytest.approx(3 * 4 * experts / 2, abs=48)


def test_backward_hides_a_gather_and_a_sum():
    """Of sequence parallel ranks, behind both gradients of the first product, as Megatron-LM does.

    Attention's inputs are 64 wide, and its queries, keys and values 24 for each of 8 ranks.
    """
    parts = Parts(job(Mesh(tp=8), sequence_parallel=True, overlap={"tp_grad"}))
    first = Kernels(GPU).linear(64, 64, 24)
    hidden = {call.collective: call.behind for call in parts.attention.backward if call.behind}

    assert {"all_gather": first.inputs, "reduce_scatter": first.weights} == hidden
    assert not any(call.behind for call in parts.attention.forward)
    assert not any(call.behind for call in Parts(replace(parts.job, overlap=())).attention.backward)
    [once] = Parts(replace(parts.job, sequence_parallel=False)).attention.backward
    assert ("all_reduce", first.weights) == (once.collective, once.behind)


def test_a_hidden_call_costs_what_kernels_lose_beside_it():
    """Or what is longer than they are."""
    call = MeshCall("tp", "all_gather", 1, 1, behind=2.0, pieces=4)

    assert 0.25 + 0.75 * 0.4 == pytest.approx(call.exposed(1.0, 0.4))
    assert 2.0 + (6.0 - 1.5) == pytest.approx(call.exposed(8.0, 0.4))
    assert 0.25 == pytest.approx(call._replace(copied=True).exposed(1.0, 0.4))
    assert 1.0 == call._replace(behind=0.0).exposed(1.0, 0.4)
