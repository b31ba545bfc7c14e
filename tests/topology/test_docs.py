"""docs/machines.md says what the files of machines and clusters may hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simreduce.topology import clusters, load_topology, machine
from simreduce.topology.check import check_file
from simreduce.topology.generators.machines import FABRIC_KEYS, SETTINGS

TEXT = (Path(__file__).parents[2] / "docs" / "machines.md").read_text("utf-8")
MACHINE, CLUSTER = TEXT.split("## A cluster")


@pytest.mark.parametrize("part", [MACHINE, CLUSTER], ids=["machine", "cluster"])
def test_the_example_has_no_fault(tmp_path, part):
    path = tmp_path / "example.toml"
    path.write_text(re.findall(r"```toml\n(.*?)```", part, re.DOTALL)[0])

    assert check_file(str(path)) == []
    assert load_topology(str(path)).devices


def keys(text: str) -> set[str]:
    """Those of the first columns of its tables."""
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`\[?(\w+)\]?`", cell)}


def test_every_key_is_told_and_no_other():
    of_tables = {
        *machine._NODE_KEYS,
        *machine._LINK_KEYS,
        *machine._ROUTE_KEYS,
        *machine._ROUTING_KEYS,
    }
    assert keys(MACHINE) == of_tables | {"title", "sources", "extends"}
    assert keys(CLUSTER) == {*clusters._OWN_KEYS, *SETTINGS, *FABRIC_KEYS}
