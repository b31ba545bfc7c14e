"""A machine written as a file and read back is the same, link by link."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from simreduce.topology import Cable, Node, build, load_topology, shipped
from simreduce.topology.importers.nccl_xml import read_nccl_topology
from simreduce.topology.importers.parts import model_named
from simreduce.topology.importers.topo_m import read_topo_m
from simreduce.topology.machine_files import to_toml
from simreduce.topology.routing.switching import Switching
from tests.thorough import examples
from tests.topology.importers.files import SWITCHED, TOPO_M, XML


def written(machine, tmp_path):
    path = tmp_path / "again.toml"
    path.write_text(to_toml(machine, ["a note\nof two lines"]), encoding="utf-8")
    return load_topology(str(path))


@pytest.mark.parametrize(
    "name", [*(name for name, _ in shipped()), "dgx1vx3", "ring:8", "full:5", "switch:40"]
)
def test_a_machine_comes_back_as_it_was(name, tmp_path):
    machine = load_topology(name)

    assert written(machine, tmp_path).digest == machine.digest


@pytest.mark.parametrize(
    "machine",
    [
        read_nccl_topology(XML, "x")[0],
        read_topo_m(TOPO_M, "x", model_named("V100"))[0],
        read_topo_m(SWITCHED, "x", model_named("A100"))[0],
        load_topology("dgx1v").scale(bandwidth=1 / 3, latency=0.7),
    ],
    ids=["xml", "topo -m", "switched", "scaled"],
)
def test_an_imported_machine_comes_back_as_it_was(machine, tmp_path):
    again = written(machine, tmp_path)

    assert again.digest == machine.digest
    assert again.title == machine.title


def test_no_table_is_lost_where_a_class_has_the_name_of_the_next_table_of_another(tmp_path):
    nodes = [Node(name, "gpu", transit=False) for name in "abcd"]
    cables = [
        Cable("a", "b", "x", 1, 2e9, 2e9, 1e-6, True),
        Cable("b", "c", "x", 1, 3e9, 3e9, 1e-6, True),
        Cable("c", "d", "x-2", 1, 4e9, 4e9, 1e-6, True),
        Cable("a", "d", "x", 1, 5e9, 5e9, 1e-6, True),
    ]
    machine = build("m", "", "", nodes, cables)

    assert written(machine, tmp_path).digest == machine.digest
    assert re.findall(r"\[links\.(.*)\]", to_toml(machine)) == ["x", "x-2", "x-2-2", "x-3"]


NAMES = [*(f"gpu{i}" for i in range(12)), "a", "b-1", "c.07", "mlx5_1"]


@st.composite
def machines(draw):
    """GPUs that a switch joins, with further links of any figures."""
    rates = st.floats(1e6, 1e14)
    names = draw(st.permutations(NAMES))[: draw(st.integers(2, len(NAMES)))]
    nodes = [
        Node(
            name,
            "gpu",
            draw(st.sampled_from(["", 'V"100\\', "é"])),
            draw(rates),
            "0",
            transit=False,
            peer=draw(st.sampled_from(["SYS", "off"])),
            gpudirect=draw(st.sampled_from(["SYS", "PXB"])),
        )
        for name in names
    ]
    cables = [
        Cable(
            name,
            "hub",
            "x_y",
            1,
            1e9 * draw(st.integers(2, 9)),
            1e9,
            draw(st.floats(0, 1)),
            draw(st.booleans()),
        )
        for name in names
    ]
    cables += [
        Cable(a, b, "nvlink2", lanes, 25e9 * lanes, 24e9 * lanes, 1.8e-6, True)
        for a, b in itertools.pairwise(names)
        for lanes in [draw(st.integers(1, 3))]
    ]
    rule = draw(st.sampled_from([Switching(), Switching("split"), Switching("hashed", 1 << 40)]))
    hub = Node("hub", "switch", machine="")
    return build(
        "t",
        draw(st.text(st.characters(exclude_categories=["C"]), max_size=9)),
        "t",
        [*nodes, hub],
        cables,
        switching=rule,
    )


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(machine=machines())
def test_any_machine_comes_back_as_it_was(machine, tmp_path):
    again = written(machine, tmp_path)

    assert list(again.nodes.values()) == list(machine.nodes.values())
    assert again.links == machine.links
    assert again.digest == machine.digest
