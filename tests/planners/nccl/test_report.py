"""`simreduce nccl`: the text beside this file, and the document."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from simreduce.app.cli.accuracy import nccl
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.files.formats.syntax import Faults
from simreduce.planners.nccl import read_settings
from simreduce.study.tune.sizes import tensor
from simreduce.topology.importers.parts import model_named
from simreduce.topology.importers.topo_m import read_topo_m
from simreduce.topology.machine_files import to_toml

GOLDENS = Path(__file__).parent
COMMANDS = {
    "dgx-h100.out": ["dgx-h100"],
    "dgx-a100x2-ring.out": [
        "dgx-a100x2", "NCCL_ALGO=Ring", "--collective", "all_gather", "--version", "2.19",
        "-b", "64K", "-e", "64M", "-f", "32",
    ],
    "v100-mesh-4.out": ["v100-mesh-4", "-b", "1M"],
}  # fmt: skip


def _run(*arguments):
    return CliRunner().invoke(nccl, arguments, catch_exceptions=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_text_is_the_golden(name):
    """`SIMREDUCE_UPDATE_GOLDENS=1` writes it anew."""
    shown = _run(*COMMANDS[name]).output
    file = GOLDENS / name
    if os.environ.get("SIMREDUCE_UPDATE_GOLDENS"):
        file.write_text(shown, "utf-8")

    assert file.read_text("utf-8") == shown


def test_lines_that_public_logs_have():
    """NVIDIA/nccl issue 1197, an H100 node with 2.19: the links had 20 GB/s."""
    shown = _run("dgx-h100", "--version", "2.19").output

    assert "maxBw 360.0 totalBw 360.0" in shown
    for line in (
        "Pattern 4, crossNic 0, nChannels 12, bw 30.000000/30.000000, type NVL/PIX, sameChannels 1",
        "Pattern 1, crossNic 0, nChannels 12, bw 30.000000/30.000000, type NVL/PIX, sameChannels 1",
        "Pattern 5, crossNic 0, nChannels 8, bw 40.000000/60.000000, type NVL/PIX, sameChannels 0",
    ):
        assert line in shown


@pytest.mark.parametrize("machine", ["dgx-h100", "dgx-h100x2", "dgx-h100x5"])
def test_channels_with_the_same_order_share_a_line(machine):
    """The places of all lines are those of the document's rings, each once, with its order."""
    rings = json.loads(_run(machine, "--json").output)["rings"]
    found = {}
    shown = re.findall(
        r"Channel (\S+)/(\d+) :([ \d]+)( \.\.\.)?$", _run(machine).output, re.MULTILINE
    )
    for places, count, ranks, _ in shown:
        assert int(count) == len(rings)
        for part in places.split(","):
            first, _, last = part.partition("-")
            for place in range(int(first), int(last or first) + 1):
                assert place not in found
                found[place] = [int(rank) for rank in ranks.split()]

    assert len(shown) == len({tuple(ring) for ring in rings})
    for place, ring in enumerate(rings):
        start = ring.index(0)
        assert [*ring[start:], *ring[:start]][:32] == found[place]


def test_the_document():
    """Units in the names of keys, one choice for each size."""
    document = json.loads(_run("dgx-h100x2", "-b", "1M", "-e", "4M", "-f", "2", "--json").output)

    assert document["channels"] == 16
    assert [choice["nbytes"] for choice in document["choices"]] == [1 << 20, 1 << 21, 1 << 22]
    assert document["graphs"][0]["speed_inter_gb_per_s"] == 48
    assert len(document["rings"][0]) == 16
    choice = document["choices"][0]
    assert choice["estimate_us"] == min(choice["estimates_us"].values())


def test_faults_of_the_command_line_are_all_there(tmp_path):
    """Of the machine, the variables and the options."""
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_PROTO=fast\n")
    with pytest.raises(InputError) as caught:
        _run("dgxh100", "NCCL_ALGO=Rang", "--version", "9", "--conf", str(conf))

    assert [
        "no topology 'dgxh100'" in caught.value.problems[0],
        f"{conf}: NCCL_PROTO: unknown name 'fast'" in caught.value.problems[1],
        "--version: must be a version" in caught.value.problems[2],
        "NCCL_ALGO: unknown name 'Rang'" in caught.value.problems[3],
    ] == [True] * 4


def test_a_choice_that_has_a_plan_is_simulated():
    """`--simulate` puts our time beside the planner's; what has no plan has none."""
    shown = _run("dgx1v", "-b", "64M", "--simulate", "--json").output
    (call,) = json.loads(shown)["choices"]

    assert call["simulated_us"] is None or call["simulated_us"] > 0
    assert (
        json.loads(_run("dgx1v", "-b", "64M", "--json").output)["choices"][0]["simulated_us"]
        is None
    )


@pytest.mark.parametrize(
    ("arguments", "strategies"),
    [
        (["dgx-h100", "symmetric=1"], {"symmetric:agxll_r", "symmetric:rsxldmc_agxstmc"}),
        (["mi355x", "symmetric=1", "--version", "2.28"], {"symmetric:rsxld_agxst"}),
        (
            ["dgx-h100", "symmetric=1", "NCCL_CTA_POLICY=2", "--collective", "all_gather"],
            {"symmetric:engine"},
        ),
    ],
)
def test_symmetric_windows_show_the_kernels_that_run(arguments, strategies):
    """As `bench --algo nccl` takes them, with their times."""
    sizes = ("-b", "64K", "-e", "4M", "-f", "64", "--simulate", "--json")
    document = json.loads(_run(*arguments, *sizes).output)
    setting = dict(each.split("=") for each in arguments if "=" in each)
    version = arguments[arguments.index("--version") + 1] if "--version" in arguments else "2.32"
    settings = read_settings({"version": version, **setting}, Faults(), "")
    setup = Setup(arguments[0], "nccl", nccl=settings)
    collective = document["collective"]

    assert {choice["strategy"] for choice in document["choices"]} <= strategies
    assert {choice["algorithm"] for choice in document["choices"]} == {"symmetric"}
    for choice in document["choices"]:
        plan = setup.compile("nccl", tensor(choice["nbytes"], 0, setup.layout.n), collective)
        seconds = setup.simulate(plan).seconds
        assert choice["simulated_us"] == pytest.approx(seconds * 1e6, rel=1e-3)


def test_the_document_says_rccl_s_version():
    assert json.loads(_run("mi300x", "-b", "1M", "--json").output)["nccl_version"] == "2.27"


def test_variables_that_change_nothing_are_named():
    """Others say nothing, nor do any where times are simulated, which more changes."""
    given = ("dgx-h100", "NCCL_CROSS_NIC=1", "NCCL_NVLS_NCHANNELS=8", "-b", "1K")

    assert _run(*given).stderr.splitlines() == ["simreduce: NCCL_CROSS_NIC changes nothing of this"]
    assert not _run("dgx1v", "NCCL_BUFFSIZE=65536", "--simulate", "-b", "1K").stderr
    # Without COLLNET_ENABLE nothing is left to choose, so that it acts.
    collnet = ("NCCL_COLLNET_ENABLE=1", "NCCL_ALGO=collnetdirect", "-b", "64M")
    assert not _run("dgx-h100x2,fabric=rail_optimised,reduce=yes", *collnet).stderr


def test_variables_of_a_file_without_a_model_are_named(tmp_path):
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_IB_QPS_PER_CONNECTION=4\nNCCL_DEBUG=INFO\nNCCL_MAX_NCHANNELS=4\n")

    said = _run("dgx1v", "NCCL_MAX_CTAS=2", "--conf", str(conf)).stderr

    why = "not modelled: `equal_cost` of a fabric says how flows share its paths"
    assert said.splitlines() == [
        f"simreduce: {conf}: NCCL_IB_QPS_PER_CONNECTION is left out: {why}",
        f"simreduce: {conf}: NCCL_DEBUG is left out: it says what NCCL prints, or writes",
    ]


def test_an_algorithm_that_is_simulated_as_faster_is_named(tmp_path):
    """Over one NIC of two nodes a tree sends a tensor once each way, and a ring 2 (n - 1)/n of it.
    NCCL's estimate, half of the links for trees, does not show that.
    """
    rows = ["\tGPU0\tGPU1\tNIC0"]
    for name in ("GPU0", "GPU1", "NIC0"):
        cells = ["X" if name == other else "NODE" for other in ("GPU0", "GPU1", "NIC0")]
        rows.append("\t".join([name, *cells]))
    machine, _ = read_topo_m("\n".join(rows), "pair", model_named("H100 PCIe"))
    (tmp_path / "pair.toml").write_text(to_toml(machine), "utf-8")
    (tmp_path / "two.toml").write_text('nodes = 2\nmachine = "pair"\nnic = "ib_hdr"\n', "utf-8")
    asked = str(tmp_path / "two.toml"), "-b", "64M", "--simulate"

    said = _run(*asked).stderr
    assert "nccl:tree+simple is simulated as 1.3 times as fast for 67.11 MB" in said
    assert not _run(*asked, "NCCL_ALGO=Tree").stderr
