"""What a call costs: the plans of its groups on the machine, at once."""

from __future__ import annotations

from functools import cache

import pytest

from simreduce.engine.setup import Setup
from simreduce.plan import side_by_side
from simreduce.training.calls import GroupPlans
from simreduce.training.mesh import Mesh
from simreduce.training.mesh.parts import MeshCall
from simreduce.training.mesh.passes import Costs
from simreduce.workload import Gradient, Workload

MIB = 1 << 20


@cache
def _setup(machine: str) -> Setup:
    return Setup(machine, "nccl")


def _alone(machine: str, ranks: tuple[int, ...], nbytes: int, collective: str) -> float:
    """Seconds of NCCL's plan of these ranks, with nobody beside them."""
    setup = _setup(machine)
    part = setup.but(part=setup.layout.only(ranks))
    plan = part.compile("nccl", Workload("one", (Gradient("one", nbytes // 4),)), collective)
    return part.simulate(plan).seconds


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
def test_a_group_that_is_alone_takes_as_long_as_its_plan(collective):
    """All GPUs of a machine; that of another machine does not disturb it."""
    costs = Costs(_setup("dgx-a100x2"), Mesh(tp=8, dp=2))
    found = costs.of(MeshCall("tp", collective, 16 * MIB), 0).seconds

    assert _alone("dgx-a100x2", tuple(range(8)), 16 * MIB, collective) == found
    assert _alone("dgx-a100", tuple(range(8)), 16 * MIB, collective) == found


def test_a_gather_ends_with_all_parts():
    """A rank gives one part: as many bytes move as with a reduction that each gives all of."""
    costs = Costs(_setup("dgx-a100"), Mesh(tp=8))

    assert _alone("dgx-a100", tuple(range(8)), 16 * MIB, "all_gather") == (
        costs.of(MeshCall("tp", "all_gather", 2 * MIB), 0).seconds
    )


@pytest.mark.parametrize(("nics", "slower"), [(8, 1.0), (1, 8.0)])
def test_groups_that_share_a_nic_share_its_rate(nics, slower):
    """Eight pairs of replicas, each GPU with a NIC of its own, or all with one."""
    machine = f"dgx-a100x2,nics={nics}"
    nbytes = 64 * MIB
    costs = Costs(_setup(machine), Mesh(tp=8, dp=2))
    found = costs.of(MeshCall("dp+cp", "all_reduce", nbytes), 0).seconds

    assert found / _alone(machine, (0, 8), nbytes, "all_reduce") == pytest.approx(slower, rel=0.05)


def test_all_groups_of_an_axis_run_at_once():
    """The plans side by side, whose first one counts."""
    setup, nbytes = _setup("dgx-a100x2,nics=1"), 4 * MIB
    plans = []
    for pair in ((rank, rank + 8) for rank in range(8)):
        part = setup.but(part=setup.layout.only(pair))
        workload = Workload("one", (Gradient("one", nbytes // 4),))
        plans.append(part.compile("nccl", workload, "all_reduce"))
    names = dict.fromkeys(name for plan in plans for name in plan.devices)
    together = setup.simulate(side_by_side(plans, tuple(names))).seconds
    costs = Costs(setup, Mesh(tp=8, dp=2))

    assert together == costs.of(MeshCall("dp+cp", "all_reduce", nbytes), 0).seconds


def test_sends_of_all_tensor_parallel_ranks_share_nics():
    """Between stages on two machines: with one NIC they take eight times as long."""
    many, one = (
        Costs(_setup(f"dgx-a100x2,nics={nics}"), Mesh(tp=8, pp=2)).send(16 * MIB, 0, 1).seconds
        for nics in (8, 1)
    )

    assert one / many == pytest.approx(8.0, rel=0.05)


def test_sends_within_a_machine_are_faster():
    """By NVLink, if stages are near in the order; by a NIC of 25 GB/s, if they are last."""
    setup, nbytes = _setup("dgx-a100x2"), 16 * MIB
    near = Costs(setup, Mesh(tp=4, pp=2, dp=2, order="tp-cp-ep-pp-dp")).send(nbytes, 0, 1).seconds
    far = Costs(setup, Mesh(tp=4, pp=2, dp=2)).send(nbytes, 0, 1).seconds

    assert nbytes / 25e9 < far < nbytes / 20e9
    assert near < far / 5


def test_a_group_of_one_costs_nothing():
    """Nobody to talk to."""
    costs = Costs(_setup("dgx-a100"), Mesh(tp=8))

    assert 0.0 == costs.of(MeshCall("dp+cp", "all_reduce", MIB), 0).seconds


def test_the_cost_grows_with_the_size():
    """Also between the sizes that are simulated."""
    costs = Costs(_setup("dgx-a100"), Mesh(tp=8))
    sizes = [1, 1000, MIB, MIB + 999, 2 * MIB + 1, 3 * MIB + 77]
    found = [costs.of(MeshCall("tp", "all_reduce", size), 0).seconds for size in sizes]

    assert found == sorted(found)
    assert found[2] < found[3] < 1.01 * found[2]


def test_groups_of_an_axis():
    """The one that has the first rank of a stage; both ends of a pipeline share the embedding."""
    costs = Costs(_setup("dgx-a100x2"), Mesh(tp=2, dp=2, pp=4))

    assert (8, 9) == costs.group("tp", 2)
    assert (8, 10) == costs.group("dp+cp", 2)
    experts = Costs(_setup("dgx-a100x2"), Mesh(tp=2, ep=4, dp=8, etp=1))
    assert ((0, 1, 2, 3), (0,), (0, 4, 8, 12)) == tuple(
        experts.group(axis, 0) for axis in ("ep", "etp", "edp")
    )


def test_a_token_crosses_the_network_once_to_each_machine():
    """With all experts active, each rank of the other machine gets a copy, and the network one."""
    costs = Costs(_setup("dgx-h100x2"), Mesh(ep=16, dp=16, etp=1))
    copies = 16 * 16 * MIB
    plain = costs.of(MeshCall("ep", "all_to_all", copies), 0).seconds
    merged = costs.of(MeshCall("ep", "dispatch", copies, spread=(16, 16)), 0).seconds
    rails, inside = (
        _together("dgx-h100x2", groups, nbytes)
        for groups, nbytes in (
            ([(rank, rank + 8) for rank in range(8)], 2 * 16 * MIB),
            ([tuple(range(8)), tuple(range(8, 16))], 16 * 16 * MIB),
        )
    )

    assert merged == max(rails, inside)
    assert plain / merged > 4


def test_a_token_of_one_expert_has_one_copy():
    """Within a machine, where a dispatch is an all-to-all then."""
    costs = Costs(_setup("dgx-h100"), Mesh(ep=8, dp=8, etp=1))
    plain, merged, half = (
        costs.of(MeshCall("ep", kind, 64 * MIB, spread=spread), 0)
        for kind, spread in (("all_to_all", ()), ("dispatch", (8, 1)), ("dispatch", (8, 8)))
    )

    assert plain == merged == half


def _together(machine: str, groups: list[tuple[int, ...]], nbytes: int) -> float:
    """Seconds of all-to-alls of these groups at once."""
    setup, plans = _setup(machine), []
    for ranks in groups:
        part = setup.but(part=setup.layout.only(ranks))
        workload = Workload("one", (Gradient("one", nbytes // 4),))
        plans.append(part.compile("nccl", workload, "all_to_all"))
    names = dict.fromkeys(name for plan in plans for name in plan.devices)
    return setup.simulate(side_by_side(plans, tuple(names))).seconds


@pytest.mark.parametrize("kernel", ["oneshot", "twoshot", "multimem", "symmetric"])
def test_a_call_by_a_kernel_takes_as_long_as_the_plan_of_the_kernel(kernel):
    """Beside NCCL's calls of the same size, which it does not replace."""
    costs, ranks = Costs(_setup("dgx-h100"), Mesh(tp=4, dp=2)), (0, 1, 2, 3)
    setup = _setup("dgx-h100")
    part = setup.but(part=setup.layout.only(ranks))
    plan = part.compile(kernel, Workload("one", (Gradient("one", MIB // 4),)))
    alone = part.simulate(plan).seconds
    call = MeshCall("tp", "all_reduce", MIB)

    by_nccl = costs.of(call, 0).seconds
    assert costs.of(call._replace(by=kernel), 0).seconds == pytest.approx(alone, rel=0.1)
    assert costs.of(call, 0).seconds == by_nccl != alone


def test_a_send_is_one_way_of_an_exchange_whichever_was_asked_for_first():
    plans = GroupPlans(Setup("switch:2"), "nccl")
    exchange, send = plans.plan("send_receive", 1 << 20, (0, 1)), plans.transfer(1 << 20, 0, 1)

    assert 2 * send.transfers == exchange.transfers > 0
