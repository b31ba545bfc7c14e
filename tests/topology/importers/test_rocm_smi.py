"""What rocm-smi and amd-smi print about links, as a machine that would print the same."""

from __future__ import annotations

import json

import pytest

from simreduce.errors import TopologyError
from simreduce.topology import Topology, path_class
from simreduce.topology.check import check_file
from simreduce.topology.importers.parts import model_named
from simreduce.topology.importers.rocm_smi import is_rocm_smi, read_rocm_smi
from simreduce.topology.importers.topo_m import is_topo_m
from tests.topology.importers.files import AMD_SMI, AMD_SMI_JSON, ROCM_SMI


def imported(text: str, model: str | None = "MI300X") -> Topology:
    return read_rocm_smi(text, "t", model_named(model) if model else None)[0]


def cells(machine: Topology) -> list[list[str]]:
    return [[path_class(machine, a, b) for b in machine.devices] for a in machine.devices]


def lanes(machine: Topology) -> dict[tuple[str, str], int]:
    links = machine.links[::2]
    return {(k.source, k.target): k.lanes for k in links if k.link_class.startswith("xgmi_cdna")}


def test_rocm_smi_prints_a_mesh_over_two_numa_nodes():
    machine, notes = read_rocm_smi(ROCM_SMI, "t", model_named("AMD Instinct MI300X"))

    assert cells(machine)[0] == ["X", "XGMI1", "XGMI1", "XGMI1"]
    assert len(lanes(machine)) == 6
    assert path_class(machine, "gpu1", "cpu0") == path_class(machine, "gpu2", "cpu1") == "PHB"
    assert path_class(machine, "gpu2", "cpu0") == "SYS"
    assert [k.link_class for k in machine.links if k.source == "cpu0" and k.target == "cpu1"] == [
        "xgmi3"
    ]
    assert machine.nodes["gpu0"].memory == 192e9
    assert any("one is taken" in note for note in notes)


def test_amd_smi_prints_rates_whose_ratio_is_the_number_of_links():
    machine = imported(AMD_SMI, "MI250X")

    assert lanes(machine) == {("gpu0", "gpu1"): 4, ("gpu1", "gpu2"): 1}
    # Two hops over xGMI are no link of the pair.
    assert path_class(machine, "gpu0", "gpu2") == "PHB"
    assert {k.link_class for k in machine.links if k.source == "gpu0" and k.target == "gpu1"} == {
        "xgmi_cdna2"
    }


def test_json_says_what_the_text_says():
    assert cells(imported(AMD_SMI_JSON, "MI250X")) == cells(imported(AMD_SMI, "MI250X"))
    assert lanes(imported(AMD_SMI_JSON, "MI250X")) == lanes(imported(AMD_SMI, "MI250X"))


def test_pcie_pairs_are_near_by_their_hops():
    text = AMD_SMI.replace("XGMI", "PCIE").replace("50000-200000", "N/A")
    table = cells(imported(text.replace("50000-50000 ", "N/A         "), "MI300X"))

    assert table[0] == ["X", "PHB", "PHB"]
    text = text.replace("0            1            2", "0            1            3")
    text = text.replace("2            1            0", "3            1            0")
    assert any("SYS to" in line or "no machine prints" in line for line in notes_of(text))


def notes_of(text: str) -> list[str]:
    try:
        return read_rocm_smi(text.replace("50000-50000", "N/A"), "t")[1]
    except TopologyError as error:
        return list(error.problems)


def test_the_formats_are_told_apart():
    assert all(map(is_rocm_smi, (ROCM_SMI, AMD_SMI, AMD_SMI_JSON)))
    assert not is_rocm_smi("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n")
    assert not is_topo_m(AMD_SMI)


def test_check_reads_them(tmp_path):
    path = tmp_path / "topo.txt"
    path.write_text(ROCM_SMI)
    assert check_file(str(path)) == []
    path.write_text(ROCM_SMI.replace("XGMI         0 ", "XGIM         0 "))
    assert all("did you mean 'XGMI'?" in line for line in check_file(str(path)))
    assert len(check_file(str(path))) == 2


@pytest.mark.parametrize(
    ("old", "new", "faults"),
    [
        ("GPU1   XGMI         0 ", "GPU9   XGMI         0 ", ["'GPU9' is none of the columns"]),
        ("GPU1   XGMI         0 ", "GPU1   XGMI         ", ["3 cells for 4 GPUs"]),
        ("GPU1   XGMI         0 ", "GPU1   PCIE         0 ", ["PHB to GPU0, but XGMI1 back"]),
        ("Link Type between", "Link Kind between", ["no table of link types"]),
        (
            "GPU0   0            1            1            1",
            "GPU0   0            one          1            two",
            ["'one' is not a number of hops", "'two' is not a number of hops"],
        ),
    ],
)
def test_every_fault_has_its_place(old, new, faults):
    assert old in ROCM_SMI
    with pytest.raises(TopologyError) as caught:
        imported(ROCM_SMI.replace(old, new))

    text = "\n".join(caught.value.problems)
    assert all(fault in text for fault in faults), text


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda gpus: gpus[0]["links"].pop(), "2 links for 3 GPUs"),
        (lambda gpus: gpus[1].update(gpu=7), "numbered 0, 1, ..."),
        (lambda gpus: gpus[0]["links"][1].update(link_type="XGM"), "did you mean 'XGMI'?"),
        (lambda gpus: gpus[0]["links"][1].update(gpu="x"), "'x' is not another GPU"),
        (lambda gpus: gpus.append(3), "must be a list of 1 to 128 GPUs"),
    ],
)
def test_faults_of_json(change, fault):
    gpus = json.loads(AMD_SMI_JSON)
    change(gpus)
    with pytest.raises(TopologyError) as caught:
        imported(json.dumps(gpus))

    assert fault in str(caught.value)


_RATES = [
    ("-50000-200000", "'-50000-200000' is not 50000-100000, or N/A"),
    ("nan-200000", "'nan-200000' is not"),
    ("50000", "'50000' is not"),
    ("50000-9999999999", "'50000-9999999999' is not"),
    ("200000-50000", "'200000-50000': the greatest rate is 1 to 8 times the least"),
    ("50000-450000", "'50000-450000': the greatest rate is 1 to 8 times the least"),
    ("0-200000", "'0-200000': no link has 0 MB/s"),
    ("5-20", "'5-20': no link has 5 MB/s"),
    ("50000000-50000000", "'50000000-50000000': no link has 50,000,000 MB/s"),
]


@pytest.mark.parametrize(("rate", "fault"), _RATES)
def test_a_damaged_rate_is_refused_with_its_line(rate, fault):
    text = AMD_SMI.replace("50000-200000", rate, 1)
    (line,) = (number for number, each in enumerate(text.splitlines(), 1) if f" {rate} " in each)
    with pytest.raises(TopologyError) as caught:
        imported(text, "MI250X")
    assert str(caught.value).startswith(f"t: line {line}: {fault}")

    gpus = json.loads(AMD_SMI_JSON)
    gpus[0]["links"][1]["bandwidth"] = rate
    with pytest.raises(TopologyError) as caught:
        imported(json.dumps(gpus), "MI250X")
    assert str(caught.value).startswith(f"t: [0].links[1].bandwidth: {fault}")


@pytest.mark.parametrize("value", [-5, None, 1e300])
def test_a_rate_of_json_that_is_no_text_is_refused(value):
    gpus = json.loads(AMD_SMI_JSON)
    gpus[0]["links"][1]["bandwidth"] = value
    del gpus[0]["links"][0]["bandwidth"]  # of the GPU itself
    with pytest.raises(TopologyError, match=r"\[0\]\.links\[1\]\.bandwidth"):
        imported(json.dumps(gpus), "MI250X")


def test_no_rate_is_no_link():
    """Although its type is printed, and one hop."""
    text = AMD_SMI.replace("50000-50000", "0-0")

    assert lanes(imported(text, "MI250X")) == {("gpu0", "gpu1"): 4}


def test_a_model_without_xgmi_links_is_refused():
    with pytest.raises(TopologyError, match="a H100 has NVLinks; GPUs with xGMI links: MI250X"):
        imported(ROCM_SMI, "H100")
