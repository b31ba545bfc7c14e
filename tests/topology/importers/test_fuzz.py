"""Whatever a file holds, what comes of it is a machine or a `TopologyError`: never another
exception, never a hang.

A hundred inputs of every kind here; `make fuzz` tries ten thousand of each, and looks at the
memory they take.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from simreduce.engine.calibrate.logs import read_nccl_tests, read_p2p_test
from simreduce.errors import CalibrationError, TopologyError
from simreduce.files import data_dir
from simreduce.topology import load_topology, matrix_text
from simreduce.topology.check import check_file
from simreduce.topology.importers.nccl_xml import read_nccl_graphs, read_nccl_topology
from simreduce.topology.importers.parts import model_named
from simreduce.topology.importers.rocm_smi import read_rocm_smi
from simreduce.topology.importers.topo_m import read_topo_m
from simreduce.topology.machine_files import to_toml
from tests.thorough import examples
from tests.topology.importers.files import (
    AMD_SMI,
    AMD_SMI_JSON,
    BARE_XML,
    CUBE_MESH,
    GRAPHS,
    NCCL_TESTS,
    OLD_NCCL_TESTS,
    P2P_TEST,
    PAIR_XML,
    RCCL_XML,
    ROCM_SMI,
    SWITCHED,
    TOPO_M,
    XML,
)

THOROUGH = "SIMREDUCE_FUZZ"
INPUTS = int(os.environ.get(THOROUGH, examples(200, usual=100)))
SECONDS = 10.0
"""No input may take longer."""
MEGABYTES = 500

INPUT = settings(
    max_examples=INPUTS,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
TOML = (data_dir("topologies") / "dgx2.toml").read_text("utf-8")


def damaged(texts: list[str], scraps: list[str]):
    """A text with a few pieces cut out, doubled or replaced by scraps of its own kind."""

    @st.composite
    def edits(draw):
        text = draw(st.sampled_from(texts))
        for _ in range(draw(st.integers(1, 6))):
            at = draw(st.integers(0, len(text)))
            length = draw(st.integers(0, 40))
            scrap = draw(
                st.one_of(
                    st.sampled_from(scraps),
                    st.text(max_size=12),
                    st.just(text[at : at + length] * 3),
                )
            )
            text = text[:at] + scrap + text[at + length :]
        return text

    return edits()


@contextlib.contextmanager
def in_time():
    """Suppresses the errors that are expected; fails when they took too long."""
    began = time.monotonic()
    with contextlib.suppress(TopologyError, CalibrationError):
        yield
    assert time.monotonic() - began < SECONDS


XML_SCRAPS = [
    "<",
    ">",
    "</gpu>",
    "<gpu>",
    "<pci>",
    "</pci>",
    "<cpu numaid='0'>",
    "<!DOCTYPE a [",
    "<!ENTITY a 'b'>",
    "&a;",
    "&lt;",
    "<![CDATA[",
    "<?xml version='1.0' encoding='utf-16'?>",
    "<nvlink target='0000:07:00.0' count='9999'/>",
    "'",
    '"',
    "count='-1'",
    "tclass='0x068001'",
    "tclass='0x030200'",
    "<nic><net name='a'/></nic>",
    "class='0x060400'",
    "busid='0000:07:00.0'",
    "dev='0'",
    "<c2c bw='1' count='1'/>",
    "<pci busid='x'/>",
    "<xgmi target='0000:16:00.0' count='3' tclass='0x120000'/>",
    "gcn='gfx942'",
    "gcn='gfx9'",
    "class='0x120000'",
]
TABLE_SCRAPS = [
    "NV99",
    "NV0",
    "PIX",
    "SYS",
    "NODE",
    "X",
    "GPU0",
    "GPU1",
    "GPU9",
    "NIC0",
    "\t",
    "\n",
    "\x1b[4m",
    "CPU Affinity",
    "NV",
    "Legend:",
    "  NIC0: gpu0",
    "mlx5_0",
    "# ",
    "0-23",
]
TOML_SCRAPS = [
    "gpu[0-4095]",
    "gpu[0-999999]",
    "[0-9][0-9]",
    "plx[0-7:0]",
    "peer = 'off'",
    "peer = 3",
    "[routes.x]\n",
    "[links.new]\n",
    "both_ways = '1 GB/s'",
    "lanes = 1024",
    '["gpu0", "gpu0"]',
    "pairs = []",
    "extends = 'dgx1v'\n",
    "names = []",
    "nan",
    "[[links.nvlink2]]\n",
    "lanes = -1",
    'gpudirect = "PIX"',
    '[routing]\nequal_cost = "split"\n',
    "seed = 1",
    "kind = 'cpuu'",
    "1e999",
    "'",
    '"',
    "\n",
    "[",
    "]",
]


@INPUT
@given(
    text=st.one_of(
        damaged([XML, PAIR_XML, BARE_XML, GRAPHS, RCCL_XML], XML_SCRAPS), st.text(max_size=60)
    )
)
def test_xml(text):
    for model in (None, model_named("A100"), model_named("MI300X")):
        with in_time():
            machine, _ = read_nccl_topology(text, "fuzz.xml", model, ["0000:00:15.0"])
            assert matrix_text(machine)
    with in_time():
        assert read_nccl_graphs(text, "fuzz.xml")


@INPUT
@given(text=st.one_of(damaged([TOPO_M, CUBE_MESH, SWITCHED], TABLE_SCRAPS), st.text(max_size=60)))
def test_topo_m(text):
    for model in (None, model_named("V100")):
        with in_time():
            machine, _ = read_topo_m(text, "fuzz", model)
            assert matrix_text(machine)
            assert to_toml(machine)


ROCM_SCRAPS = [
    "XGMI",
    "PCIE",
    "SELF",
    "N/A",
    "GPU0",
    "GPU9",
    "50000-100000",
    "0-0",
    "1-999999999",
    "=== Link Type between two GPUs ===",
    "LINK TYPE TABLE:",
    "HOPS TABLE:",
    "NUMA BW TABLE:",
    "GPU[0] : (Topology) Numa Node: -1",
    '"link_type": "PCIE"',
    '"gpu": 1',
    "[[[[",
    "{",
    "null",
    "1e999",
    "\n",
    "  ",
]


@INPUT
@given(
    text=st.one_of(damaged([ROCM_SMI, AMD_SMI, AMD_SMI_JSON], ROCM_SCRAPS), st.text(max_size=60))
)
def test_rocm_smi(text):
    for model in (None, model_named("MI250X"), model_named("V100")):
        with in_time():
            machine, _ = read_rocm_smi(text, "fuzz", model)
            assert matrix_text(machine)
            assert to_toml(machine)


@INPUT
@given(
    gpus=st.recursive(
        st.none() | st.booleans() | st.integers(-1, 3) | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["gpu", "links", "link_type", "num_hops"]), inner)
        ),
        max_leaves=20,
    )
)
def test_any_json(gpus):
    with in_time():
        assert read_rocm_smi(f"[{json.dumps(gpus)}]", "fuzz")


CELLS = [
    "X",
    "NV1",
    "XGMI1",
    "XGMI4",
    "NV2",
    "NV12",
    "PIX",
    "PXB",
    "PHB",
    "NODE",
    "SYS",
    "SOC",
    "C2C",
]


@INPUT
@given(st.integers(1, 7), st.data())
def test_tables_that_contradict_themselves(size, data):
    """Any cells at all, alike both ways."""
    above = {(i, j): data.draw(st.sampled_from(CELLS[1:])) for i in range(size) for j in range(i)}
    names = [f"GPU{i}" if data.draw(st.booleans()) or i == 0 else f"mlx5_{i}" for i in range(size)]
    rows = [
        "\t".join(
            [names[i], *("X" if i == j else above[max(i, j), min(i, j)] for j in range(size))]
        )
        for i in range(size)
    ]
    with in_time():
        machine, _ = read_topo_m(
            "\n".join(["\t" + "\t".join(names), *rows]), "fuzz", model_named("A100")
        )
        assert len(matrix_text(machine).splitlines()) > size


@INPUT
@given(text=damaged([TOML], TOML_SCRAPS))
def test_toml(tmp_path, text):
    path = tmp_path / "fuzz.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with in_time():
        assert load_topology(str(path)).devices
    with in_time():
        assert isinstance(check_file(str(path)), list)


@INPUT
@given(
    text=st.one_of(
        damaged(
            [XML, BARE_XML, TOPO_M, GRAPHS, RCCL_XML, ROCM_SMI, AMD_SMI_JSON],
            XML_SCRAPS + TABLE_SCRAPS + ROCM_SCRAPS,
        ),
        st.text(max_size=60),
    )
)
def test_check(tmp_path, text):
    path = tmp_path / "fuzz.txt"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with in_time():
        assert isinstance(check_file(str(path)), list)


@INPUT
@given(
    text=damaged(
        [P2P_TEST, NCCL_TESTS, OLD_NCCL_TESTS],
        ["1e9", "-", "N/A", "\n", "D\\D", "9" * 400, "inf", "nan"],
    )
)
def test_logs(text):
    for read in (read_p2p_test, read_nccl_tests):
        with in_time():
            assert read(text, "fuzz")


@pytest.mark.parametrize(
    "text",
    [
        "<a>" * 3_000_000,
        "<system>" + "<cpu numaid='0'/>" * 200_000,
        "<system " + "a" * 3_900_000,
        "\tGPU0" + "\tGPU1" * 500_000,
        "\t" + "\t".join(f"GPU{i}" for i in range(100_000)),
        "\n".join(["\tGPU0\tGPU1"] * 200_000),
        "\n" * 4_000_000 + "GPU0 X",
        " " * 4_000_000 + "GPU0 X",
        TOPO_M + "NIC0: mlx5_9\n" * 300_000,
    ],
    ids=[
        "open tags",
        "many elements",
        "long attribute",
        "one device often",
        "many devices",
        "many headers",
        "blank lines",
        "blanks",
        "long legend",
    ],
)
def test_large_files_are_refused_quickly(tmp_path, text):
    path = tmp_path / "large"
    path.write_text(text)
    with in_time():
        assert check_file(str(path))


def check_memory() -> None:
    """The peak of this process, Python and its libraries included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert peak < MEGABYTES, f"{peak:.0f} MB"


if THOROUGH in os.environ:  # or other tests of the process take memory too

    def test_it_took_no_more_memory_than_it_may():
        check_memory()


SMALLER = 300
"""Megabytes of address space that one reading of a large file gets in a process of its own, beyond
what Python has by then.
"""


@pytest.mark.parametrize("name", ["large.xml", "large.toml", "large.txt"])
def test_a_large_file_is_refused_within_a_limit_on_memory(tmp_path, name):
    """What the kernel gives no more of: a child that wanted it would end by a MemoryError. What one
    file leaves behind is the less for the next.
    """
    texts = (
        "<system>" + "<cpu numaid='0'/>" * 200_000,
        "[" * 4_000_000,
        "names = 'gpu[0-262142]'\n" * 50,
    )
    paths = []
    for i, text in enumerate(texts):
        paths.append(tmp_path / str(i) / name)
        paths[-1].parent.mkdir()
        paths[-1].write_text(text)
    code = (
        "import resource, sys\n"
        "from simreduce.topology.check import check_file\n"
        "held = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (held + ({SMALLER} << 20),) * 2)\n"
        "sys.exit(0 if all([check_file(path) for path in sys.argv[1:]]) else 3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)], capture_output=True, text=True, check=False
    )

    assert (0, "") == (done.returncode, done.stderr)
