"""Which ranks share which axis, and meshes that cannot be."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.errors import InputError
from simreduce.training.mesh import AXES, ORDER, Mesh, fill, read_mesh, read_order
from tests.thorough import examples

_WAYS = st.sampled_from([1, 2, 3, 4])
_ORDERS = st.sampled_from(["-".join(each) for each in permutations(AXES)])
_PP_LAST = st.sampled_from(["-".join([*each, "pp"]) for each in permutations(AXES[:-1])])


def _check_partition(mesh: Mesh, groups: tuple[tuple[int, ...], ...], size: int) -> None:
    """Disjoint, complete, and all of one size."""
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.ranks))
    assert {size} == {len(group) for group in groups}
    assert all(tuple(sorted(group)) == group for group in groups)
    assert list(groups) == sorted(groups)


@settings(max_examples=examples(80), deadline=None)
@given(tp=_WAYS, cp=_WAYS, dp=_WAYS, pp=_WAYS, order=_ORDERS)
def test_the_groups_of_an_axis_part_the_ranks(tp, cp, dp, pp, order):
    """Of one axis, and of data and context parallel ranks together, which sum gradients."""
    mesh = Mesh(tp=tp, cp=cp, dp=dp, pp=pp, order=order)
    for axis, size in {"tp": tp, "cp": cp, "dp": dp, "pp": pp}.items():
        _check_partition(mesh, mesh.groups(axis), size)
    _check_partition(mesh, mesh.groups("dp", "cp"), dp * cp)
    for row in mesh.groups("pp"):
        assert sorted(map(mesh.stage_of, row)) == list(range(pp))
    for group in mesh.groups("tp", "cp", "dp"):
        assert 1 == len({mesh.stage_of(rank) for rank in group})


@settings(max_examples=examples(60), deadline=None)
@given(tp=_WAYS, dp=_WAYS, pp=_WAYS, etp=_WAYS, order=_PP_LAST, data=st.data())
def test_experts_part_the_same_ranks_anew(tp, dp, pp, etp, order, data):
    """Pipelines stay the same ones, if stages are last in the order."""
    whole = tp * dp
    fits = [e for e in range(1, whole + 1) if whole % (e * etp) == 0]
    if not fits:
        return
    ep = data.draw(st.sampled_from(fits))
    mesh = Mesh(tp=tp, ep=ep, dp=dp, pp=pp, etp=etp, order=order)
    _check_partition(mesh, mesh.groups("ep", expert=True), ep)
    _check_partition(mesh, mesh.groups("tp", expert=True), etp)
    _check_partition(mesh, mesh.groups("dp", expert=True), whole // (ep * etp))
    for group in mesh.groups("ep", expert=True):
        assert 1 == len({mesh.stage_of(rank) for rank in group})
    assert mesh.groups("pp") == mesh.groups("pp", expert=True)


def test_the_example_of_megatron():
    """The docstring of `initialize_model_parallel` in megatron/core/parallel_state.py: 16 GPUs, two
    tensor and four pipeline parallel ones.
    """
    mesh = fill(read_mesh("tp=2,pp=4"), 16)

    assert tuple((i, i + 1) for i in range(0, 16, 2)) == mesh.groups("tp")
    assert (
        (0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15),
    ) == mesh.groups("dp")  # fmt: skip
    assert tuple((i, i + 4, i + 8, i + 12) for i in range(4)) == mesh.groups("pp")


@pytest.mark.parametrize(
    "text", ["dp_replicate=2,dp_shard=4,tp=2", "dp=8,dp_replicate=2,tp=2", "dp_replicate=2,tp=2"]
)
def test_hybrid_shards_are_neighbours_and_their_copies_far_apart(text):
    """As torchtitan lays ranks: copies outside, then shards, then tensor parallel ranks."""
    mesh = fill(read_mesh(text), 16)

    assert ((0, 2, 4, 6), (8, 10, 12, 14)) == mesh.shards("dp", "cp")[:2]
    assert ((0, 8), (2, 10), (4, 12), (6, 14)) == mesh.same_shards("dp", "cp")[:4]
    assert mesh == read_mesh(mesh.text)
    with pytest.raises(InputError, match="dp is dp_replicate x dp_shard, 8; leave it out"):
        read_mesh("dp_replicate=2,dp_shard=4,dp=4")


def test_an_order_says_who_are_neighbours():
    """With stages first, a pipeline is within a machine, and tensor parallel ranks are apart."""
    mesh = Mesh(tp=2, dp=2, pp=2, order="pp-tp-cp-ep-dp")

    assert (0, 1) == mesh.groups("pp")[0]
    assert (0, 2) == mesh.groups("tp")[0]
    assert (0, 4) == mesh.groups("dp")[0]
    assert [0, 1] * 4 == [mesh.stage_of(rank) for rank in range(8)]


def test_a_mesh_reads_what_it_writes():
    """Ways of one are left out, `dp` is the rest, and an expert is shared as all else is."""
    mesh = fill(read_mesh("tp=4, pp=2,ep=2,etp=1"), 32)

    assert (4, 2, 2, 1, 4) == (mesh.tp, mesh.pp, mesh.ep, mesh.etp, mesh.dp)
    assert "tp=4,pp=2,ep=2,dp=4,etp=1" == mesh.text
    assert mesh == read_mesh(mesh.text)
    assert (1, 8) == (mesh.expert_tensor, mesh.expert_data)
    assert "dp=1" == Mesh().text


@pytest.mark.parametrize(
    ("text", "ranks", "fault"),
    [
        ("tp=3", 8, "tp x cp x pp is 3, and the machine has 8; products of 2 or 4 divide them"),
        ("tp=8,pp=2", 8, "tp x cp x pp is 16, and the machine has 8; products of 8 divide them"),
        ("dp=4", 8, "dp=4 needs 4 GPUs, and the machine has 8; leave dp out: dp=8"),
        ("tp=3,dp=3", 8, "tp=3,dp=3 needs 9 GPUs, and the machine has 8; products of 2 or 4"),
    ],
)
def test_a_mesh_that_does_not_fill_the_machine(text, ranks, fault):
    """With what does."""
    with pytest.raises(InputError, match=fault):
        fill(read_mesh(text), ranks)


def test_every_fault_of_a_mesh_at_once():
    """Unknown axes with the nearest, and what is no way."""
    with pytest.raises(InputError) as caught:
        read_mesh("tpp=2,pp=0,tp=x,dp=2,dp=3,quux=1")

    assert (
        "mesh: unknown axis 'tpp' (did you mean 'tp'?)",
        "mesh: pp must be a whole number from 1 to 1048576, got '0'",
        "mesh: tp must be a whole number from 1 to 1048576, got 'x'",
        "mesh: dp is given twice",
        "mesh: unknown axis 'quux'; known are tp, cp, ep, dp, pp, etp, dp_replicate, dp_shard",
    ) == caught.value.problems


@pytest.mark.parametrize("order", ["tp-cp-ep-dp", "tp-tp-cp-ep-dp-pp", "", "tp,cp,ep,dp,pp"])
def test_an_order_has_every_axis_once(order):
    """And an example of one that does."""
    with pytest.raises(ValueError, match=f"such as {ORDER}"):
        read_order(order)
