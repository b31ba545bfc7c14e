"""The memory of NCCL's communicators."""

from __future__ import annotations

import pytest

from simreduce.planners.nccl import Settings, facts, plan, ring_orders, tree_parents
from simreduce.planners.nccl.buffers import held_bytes
from simreduce.topology import load_topology

MIB = 1 << 20


def held(machine: str, *algorithms: str, gpus: int = 0, **settings: object) -> list[int]:
    topology, chosen = load_topology(machine), Settings(**settings)
    names = topology.devices[: gpus or None]
    return (held_bytes(plan(facts(topology, names, chosen), chosen), algorithms) // MIB).tolist()


@pytest.mark.parametrize(("gpus", "measured"), [(2, 544), (3, 688), (4, 688)])
def test_communicators_of_a100_hold_what_was_measured(gpus, measured):
    """By the first GPU, after an all-reduce of 4 MB by PyTorch of 2023 (NVIDIA/nccl issue 964)."""
    assert held("dgx-a100", "tree", gpus=gpus, version=(2, 14))[0] == measured


@pytest.mark.parametrize(("version", "mebibytes"), [((2, 19), 1536), ((2, 27), 256)])
def test_nvlink_sharp_takes_what_its_log_says(version, mebibytes):
    """`nvlsTotalSize` of 8 H100: 1,610,612,736 up to 2.20 and 268,435,456 of later versions."""
    more = held("dgx-h100", "ring", "nvls", version=version)
    without = held("dgx-h100", "ring", version=version, nvls=False)

    assert {a - b for a, b in zip(more, without, strict=True)} == {mebibytes}


def test_a_ring_has_a_sender_and_a_receiver_on_each_channel():
    """2 MiB and 10 over NVLink of H100 (NVIDIA/nccl issue 1685), 10 each by a NIC, none through a
    host's memory.
    """
    channels = len(ring_orders(load_topology("dgx-h100")))

    assert held("dgx-h100", "ring") == [12 * channels] * 8
    assert held("dgx-h100", "ring", gpus=2) == [12 * len(ring_orders(_part(2)))] * 2
    assert held("pcie-no-p2p-8", "ring") == [0] * 8
    assert held("dgx-h100", gpus=1) == [0]
    assert held("mi300x", "ring") == [0] * 8  # RCCL's are not known


def _part(gpus: int):
    topology = load_topology("dgx-h100")
    return facts(topology, topology.devices[:gpus])


@pytest.mark.parametrize("machine", ["dgx-h100x3", "dgx1v", "dgx-a100x4"])
@pytest.mark.parametrize("algorithms", [("ring",), ("tree",), ("ring", "tree")])
def test_connections_are_counted_one_by_one(machine, algorithms):
    """Of H100 and V100 all receivers are alike; of A100 both ends over NVLink."""
    topology = load_topology(machine)
    known = facts(topology)
    node = {rank: i for i, ranks in enumerate(known.members) for rank in ranks}
    ways = set()
    for channel, order in enumerate(ring_orders(topology) if "ring" in algorithms else ()):
        ways |= {(channel, *way) for way in zip(order, (*order[1:], order[0]), strict=True)}
    for channel, parents in enumerate(tree_parents(topology) if "tree" in algorithms else ()):
        for child, parent in enumerate(parents):
            if parent >= 0:
                ways |= {(channel, child, parent), (channel, parent, child)}
    ends = (6, 6) if "a100" in machine else (2, 10)
    expected = [0] * known.n
    for _, sender, receiver in ways:
        sends, receives = ends if node[sender] == node[receiver] else (10, 10)
        expected[sender] += sends
        expected[receiver] += receives

    assert held(machine, *algorithms) == expected


def test_what_adds_to_buffers():
    """Trees add to rings, those of NVLink SHARP between nodes too; buffers grow with their size;
    before 2.22 all algorithms connect at once.
    """
    ring, both = held("dgx-h100x4", "ring"), held("dgx-h100x4", "ring", "tree")
    sharp, rails = held("dgx-h100x4", "ring", "nvls"), held("dgx-h100x4", "ring", "nvlstree")

    assert all(a < b for a, b in zip(ring, both, strict=True))
    assert {a - b for a, b in zip(sharp, ring, strict=True)} == {256}
    # By NICs, one way or three on each of 16 channels, but of the ring's 2, which a GPU may share.
    assert all(a > b for a, b in zip(rails, sharp, strict=True))
    assert held("dgx-h100", "ring", buffer=8 << 20)[0] == held("dgx-h100", "ring")[0] * 16 // 12
    old = {"version": (2, 21)}
    assert held("dgx-h100", "ring", **old) == held("dgx-h100", "tree", "ring", "nvls", **old)
