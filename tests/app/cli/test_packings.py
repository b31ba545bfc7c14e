"""`topo rings` and `topo trees`."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest


def test_rings_of_a_dgx1v(simreduce):
    status, out, err = simreduce("topo", "rings", "dgx1v")
    document = json.loads(simreduce("topo", "rings", "dgx1v", "--json").out)

    assert (0, "") == (status, err)
    assert "# bottleneck cut {gpu0..gpu6}" in out
    assert "   48.00 GB/s  gpu0 > gpu3 > gpu2 > gpu1 > gpu5 > gpu6 > gpu7 > gpu4 > gpu0" in out
    assert [24, 24, 48, 48] == sorted(ring["share_gb_per_s"] for ring in document["rings"])
    assert 0 == document["gap"]
    assert 82.2857 == pytest.approx(document["rate_gb_per_s"], abs=1e-3)
    assert 48 == document["best_order"]["share_gb_per_s"]


def test_rings_through_many_equal_machines(simreduce):
    """8 NICs of 48.5 GB/s limit every machine of 8 GPUs: rings of 388 GB/s."""
    out = simreduce("topo", "rings", "dgx-h100x16").out
    document = json.loads(simreduce("topo", "rings", "dgx-h100x16", "--json").out)

    assert "128 GPUs: " in out
    assert "8 rings through 16 equal machines as through these 3\n" in out
    assert "# bottleneck the narrowest cut of 3 machines, a bound\n" in out
    assert 388 == pytest.approx(sum(ring["share_gb_per_s"] for ring in document["rings"]))
    assert (16, 3) == (document["machines"], document["searched_machines"])
    assert 3 * 8 == len(document["gpus"])
    assert 388 * 128 / 254 == pytest.approx(document["rate_gb_per_s"])
    assert 0 == document["gap"]


def test_trees_of_three_gpus(simreduce):
    status, out, _ = simreduce("topo", "trees", "dgx1v", "--gpus", "0,2,3")

    assert 0 == status
    assert "# 60.00 GB/s of at most 60.00" in out
    assert "# bottleneck partition {gpu0} {gpu2} {gpu3}" in out
    assert "   36.00 GB/s  gpu3\n                 gpu0\n                 gpu2\n" in out


@pytest.mark.parametrize("command", ["rings", "trees"])
@pytest.mark.parametrize(("machine", "network"), [("dgx1v", "direct"), ("a100-pcie-8", "routed")])
def test_an_optimum_over_direct_links_is_called_so(simreduce, command, machine, network):
    out = simreduce("topo", command, machine).out
    document = json.loads(simreduce("topo", command, machine, "--json").out)

    assert network == document["network"]
    assert (network == "direct") == ("over direct links" in out)


def test_trees_of_a_broadcast(simreduce):
    out = simreduce(
        "topo", "trees", "dgx1v", "--collective", "broadcast", "--root", "3", "--json"
    ).out
    document = json.loads(out)

    assert "cut {gpu3}" == document["bottleneck"]
    assert {"gpu3"} == {tree["root"] for tree in document["trees"]}
    assert 144 == pytest.approx(document["rate_gb_per_s"], rel=1e-3)
    assert document["rate_gb_per_s"] == pytest.approx(
        sum(tree["share_gb_per_s"] for tree in document["trees"])
    )


def test_paths_of_an_all_to_all(simreduce):
    """Every pair of a DGX-1V has 3/8 of a link of 24 GB/s."""
    out = simreduce("topo", "trees", "dgx1v", "--collective", "all_to_all").out
    document = json.loads(
        simreduce("topo", "trees", "dgx1v", "--collective", "all_to_all", "--json").out
    )

    assert "8 GPUs: all_to_all, 61 paths\n# 72.00 GB/s of at most 72.00 over direct links" in out
    assert "# bottleneck links gpu" in out
    assert 56 * 9 == pytest.approx(sum(tree["share_gb_per_s"] for tree in document["trees"]))


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "rate"), [("dgx1v", 576 / 7), ("full:64", 800)])
def test_a_bound_alone_packs_nothing(simreduce, monkeypatch, machine, rate):
    monkeypatch.setattr("simreduce.app.cli.topo.PACKINGS", {"all_reduce": None})
    status, out, err = simreduce("topo", "trees", machine, "--bound")
    document = json.loads(simreduce("topo", "trees", machine, "--bound", "--json").out)

    assert (0, "") == (status, err)
    assert f"# at most {rate:.2f} GB/s over direct links\n# bottleneck partition" in out
    assert rate == pytest.approx(document["optimum_gb_per_s"])
    assert document["rate_gb_per_s"] is document["gap"] is None
    assert "trees" not in document


@pytest.mark.parametrize("command", ["rings", "trees"])
def test_a_drawing_has_a_panel_for_each(simreduce, tmp_path, command):
    file = tmp_path / "picture.svg"
    document = json.loads(
        simreduce("topo", command, "dgx1v", "-g", "4", "--svg", file, "--json").out
    )
    panels = ET.parse(file).getroot().findall("{http://www.w3.org/2000/svg}g")  # noqa: S314

    assert len(document[command]) == len(panels)
    assert all(4 == len(panel.findall("{http://www.w3.org/2000/svg}circle")) for panel in panels)


@pytest.mark.parametrize(
    ("arguments", "faults"),
    [
        (
            ["rings", "dgxv", "--svg", "/nope/x"],
            ["no topology 'dgxv'", "/nope/x: cannot be written"],
        ),
        (["rings", "dgx1v", "-g", "9"], ["-g 9: cannot take 9 of 8 devices"]),
        (["rings", "dgx1v", "-g", "1"], ["-g 1: 1 GPU has nobody to share with"]),
        (
            ["trees", "dgx1v", "--gpus", "0,8"],
            ["--gpus 0,8: cannot take devices 0,8: there is no 8"],
        ),
        (["trees", "dgx1v", "--gpus", "0;1"], ["--gpus 0;1: whole numbers with commas between"]),
        (
            ["trees", "dgx1v", "-g", "2", "--gpus", "0,1"],
            ["-g 2 and --gpus 0,1: give one of the two"],
        ),
        (["trees", "dgx1v", "--collective", "brodcast"], ["(did you mean 'broadcast'?)"]),
        (
            ["trees", "dgx1v", "--collective", "broadcast", "--root", "8"],
            ["-r 8: the ranks are 0 to 7"],
        ),
        (["trees", "dgx1v", "--root", "1"], ["-r 1: all_reduce has no root"]),
        (["trees", "switch:65"], ["switch:65: plans are made for the graph at hand up to 64 GPUs"]),
        (["trees", "dgx1v", "--bound", "--svg", "x.svg"], ["--bound: there are no trees to draw"]),
        (["rings", "ring:5", "-g", "3"], ["no ring over these GPUs was found"]),
    ],
)
def test_faults_are_told(simreduce, arguments, faults):
    status, out, err = simreduce("topo", *arguments)

    assert (2, "") == (status, out)
    assert all(fault in err for fault in faults)
    assert "Traceback" not in err
