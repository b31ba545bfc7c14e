"""`topo p2p`, `topo import`, `topo export` and `topo check` as a user meets them."""

from __future__ import annotations

import json
import re

import pytest

from simreduce.topology import load_topology, matrix_text
from tests.topology.importers.files import BARE_XML, GRAPHS, NCCL_TESTS, P2P_TEST, TOPO_M, XML
from tests.topology.importers.test_nccl_log import DUMPS


def test_p2p_prints_the_matrices_of_the_test(simreduce):
    status, out, err = simreduce("topo", "p2p", "dgx1p")
    document = json.loads(simreduce("topo", "p2p", "dgx1p", "--json").out)

    assert (0, "") == (status, err)
    assert "Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D      0      1" in out
    assert "     0      -  18.30  18.30  18.30  18.30  10.00  10.00  10.00\n" in out
    assert document["p2p_enabled"]["unidirectional_gb_per_s"][0][:2] == [
        None,
        pytest.approx(18.3, rel=1e-3),
    ]
    assert document["p2p_disabled"]["latency_us"][0][1] == pytest.approx(14.48, rel=1e-3)
    assert document["peer_access"][0] == [False, True, True, True, True, False, False, False]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_p2p_refuses_what_no_matrix_shows(simreduce, options):
    status, out, err = simreduce("topo", "p2p", "dgx-h100x64", *options)

    assert (2, "") == (status, out)
    assert "dgx-h100x64: all pairs of 512 GPUs are asked for, and at most 128" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("text", [TOPO_M, XML], ids=["topo -m", "xml"])
def test_what_is_imported_can_be_used(simreduce, tmp_path, text):
    source, target = tmp_path / "in.txt", tmp_path / "box.toml"
    source.write_text(text)
    status, out, err = simreduce("topo", "import", source, "--gpu", "A100")
    target.write_text(out)

    assert status == 0
    assert all(line.startswith("simreduce: in.txt: ") for line in err.splitlines())
    assert simreduce("topo", "check", target) == (0, f"{target}: no fault\n", "")
    assert "NV" in simreduce("topo", "show", target).out


def test_link_classes_of_a_table(simreduce, tmp_path):
    """For a GPU that is no known model: classes for its NVLinks, its PCIe and the sockets."""
    (tmp_path / "in").write_text(TOPO_M)
    options = ("--nvlink-class", "nvlink3", "--pcie", "pcie4_x16", "--socket", "xgmi:4")
    out = simreduce("topo", "import", tmp_path / "in", *options).out

    assert all(
        table in out
        for table in ("[links.nvlink3]", "[links.pcie4_x16]", "[links.xgmi]\nlanes = 4\n")
    )
    wrong = [("--pcie", "pcie9"), ("--nvlink-class", "qpi"), ("--socket", "qpi:x")]
    wrong += [("--socket", name) for name in ("nvlink3", "pcie4_x16", "c2c", "ib_hdr")]
    for option, value in wrong:
        status, _, err = simreduce("topo", "import", tmp_path / "in", option, value)
        assert (status, err.startswith(f"simreduce: {option}")) == (2, True)


TABLE = """
[links.nvlink2]
bandwidth = "25 GB/s"
achievable = "23 GB/s"
[links.pcie_odd]
bandwidth = "30 GB/s"
achievable = "20 GB/s"
latency = "0.7 us"
[links.hyper]
bandwidth = "48 GB/s"
latency = "1.2 us"
"""


def test_a_link_table_gives_what_the_text_leaves_out(simreduce, tmp_path):
    (tmp_path / "in").write_text(TOPO_M)
    (tmp_path / "links.toml").write_text(TABLE)
    options = (
        "--links",
        tmp_path / "links.toml",
        "--gpu",
        "V100",
        "--pcie",
        "pcie_odd",
        "--socket",
        "hyper:3",
    )
    status, out, _ = simreduce("topo", "import", tmp_path / "in", *options)
    (tmp_path / "box.toml").write_text(out)
    box = load_topology(str(tmp_path / "box.toml"))

    assert status == 0
    figures = {
        k.link_class: (k.nominal, k.bandwidth, k.latency) for k in box.links if not k.is_toll
    }
    assert figures["nvlink2"] == (50e9, 46e9, 1.8e-6)  # two of them
    assert figures["pcie_odd"] == (30e9, 20e9, pytest.approx(0.7e-6))
    assert figures["hyper"] == (144e9, 144e9, pytest.approx(1.2e-6))


def test_faults_of_a_link_table_are_all_told(simreduce, tmp_path):
    (tmp_path / "in").write_text(TOPO_M)
    (tmp_path / "t.toml").write_text(
        '[links.new]\nlatency = "1 us"\npairs = []\n[links.nvlink2]\nbandwidth = "25"\n'
        '[nodes.a]\nkind = "gpu"\n'
    )
    status, out, err = simreduce("topo", "import", tmp_path / "in", "--links", tmp_path / "t.toml")

    assert (status, out) == (2, "")
    for fault in (
        "nodes: unknown key",
        "links.new.pairs: unknown key",
        "it must give bandwidth",
        "'25' has no unit",
    ):
        assert fault in err
    assert (
        simreduce("topo", "import", tmp_path / "in", "--links", tmp_path / "none.toml").status == 2
    )


def test_nvlinks_and_nics_of_a_bare_file(simreduce, tmp_path):
    source = tmp_path / "in.xml"
    source.write_text(BARE_XML)
    status, out, _ = simreduce(
        "topo", "import", source, "--gpu", "H100", "--nvlink", "switch", "--nic", "0000:00:15.0"
    )
    (tmp_path / "box.toml").write_text(out)

    assert status == 0
    assert "GPU0\tX\tNV18\tNV18\tSYS\n" in matrix_text(load_topology(str(tmp_path / "box.toml")))


def test_options_that_say_nothing_about_a_file_are_refused(simreduce, tmp_path):
    """Also a NIC that is not in it."""
    for text, words, faults in (
        (BARE_XML, ("--nic", "0000:ff:15.0"), ["no device has the bus id '0000:ff:15.0' of a NIC"]),
        (BARE_XML, ("--pcie", "pcie4_x16", "--gpu", "H100"), ["--pcie: says nothing about"]),
        (P2P_TEST, ("--gpu", "H100", "--nic", "1"), ["--gpu: says nothing", "--nic: says nothing"]),
    ):
        (tmp_path / "in").write_text(text)
        status, _, err = simreduce("topo", "import", tmp_path / "in", *words)
        assert status == 2
        assert all(fault in err for fault in faults)
        assert len(err.splitlines()) == len(faults)


def test_measurements_and_graphs_are_imported_as_json(simreduce, tmp_path):
    for text, key, program in (
        (P2P_TEST, "matrices", "p2pBandwidthLatencyTest"),
        (NCCL_TESTS, "rows", "nccl-tests"),
        (GRAPHS, "graphs", "nccl"),
    ):
        (tmp_path / "log").write_text(text)
        document = json.loads(simreduce("topo", "import", tmp_path / "log").out)
        assert (document["command"], document["program"]) == ("topo import", program)
        assert document[key]


def test_export_is_one_file(simreduce, tmp_path):
    (tmp_path / "p5.toml").write_text(simreduce("topo", "export", "p5").out)
    xml = simreduce("topo", "export", "p5", "--format", "nccl").out

    assert load_topology(str(tmp_path / "p5.toml")).digest == load_topology("p5").digest
    assert xml.startswith('<system version="1">')
    assert xml.count('tclass="0x068000"') == 8


def test_export_tells_what_the_plugin_for_the_network_sets(simreduce):
    assert simreduce("topo", "export", "p4d", "--format", "nccl").err == (
        "simreduce: p4d: on several nodes EFA's plugin sets NCCL_PROTO=simple, "
        "which the file cannot say\n"
    )
    assert not simreduce("topo", "export", "p5", "--format", "nccl").err
    assert not simreduce("topo", "export", "p4d").err


def test_check_tells_every_fault_and_exits_with_2(simreduce, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(
        '[nodes.gpu]\nnames = ["a", "b"]\nkind = "gpu"\nmemory_bandwidth = "9 MB/s"\n'
        "[links.nvlnk2]\npairs = []\n"
    )
    status, out, err = simreduce("topo", "check", path)
    document = simreduce("topo", "check", path, "--json")

    assert (2, "") == (status, out)
    assert err.startswith(f"simreduce: {path}: links.nvlnk2: 'nvlnk2' is no known class")
    assert "(did you mean 'nvlink2'?)" in err
    assert document.status == 2
    assert len(json.loads(document.out)["problems"]) == len(err.splitlines())


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        ((), "hello", "none of `nvidia-smi topo -m`, `rocm-smi --showtopo`"),
        (("--gpu", "V10"), XML, "--gpu: unknown model 'V10' (did you mean 'V100'?)"),
        (("--nvlink", "ring"), BARE_XML, "no topology 'ring'"),
        ((), "<!DOCTYPE a []><system/>", "a document type or an entity is declared"),
        ((), "\xff<", "none of"),
    ],
)
def test_bad_input(simreduce, tmp_path, arguments, text, message):
    (tmp_path / "in").write_text(text)
    status, out, err = simreduce("topo", "import", tmp_path / "in", *arguments)

    assert (2, "") == (status, out)
    assert message in err


P2P = """Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 900.00  45.00
     1  45.00 900.00
"""


def test_check_reads_what_import_reads(simreduce, tmp_path):
    """Also measurements; their faults have a place."""
    good, bad = tmp_path / "p2p.txt", tmp_path / "bad.txt"
    good.write_text(P2P)
    bad.write_text(P2P.replace("45.00 900.00", "45.00"))

    assert (0, f"{good}: no fault\n", "") == simreduce("topo", "check", good)
    assert 0 == simreduce("topo", "import", good).status
    status, out, err = simreduce("topo", "check", bad)
    assert (2, "") == (status, out)
    assert str(bad) in err


def test_a_suspicion_is_a_warning(simreduce, tmp_path):
    """The A100s of a cloud may have no NVLinks: status 0, and `--json` lists it."""
    path = tmp_path / "cloud.xml"
    path.write_text(re.sub(r"<nvlink [^>]*/>", "", XML))
    status, out, err = simreduce("topo", "check", path)
    document = simreduce("topo", "check", path, "--json")

    assert (0, f"{path}: no fault\n") == (status, out)
    assert err.startswith(f"simreduce: warning: {path}: no NVLinks")
    assert 0 == document.status
    assert 1 == len(json.loads(document.out)["problems"])


def test_import_and_export_write_files(simreduce, tmp_path):
    """As they print them, and stdout stays empty."""
    path = tmp_path / "mine.toml"
    printed = simreduce("topo", "export", "dgx1v").out

    assert (0, "", "") == simreduce("topo", "export", "dgx1v", "-o", path)
    assert printed == path.read_text()
    source = tmp_path / "p2p.txt"
    source.write_text(P2P)
    assert (0, "", "") == simreduce("topo", "import", source, "-o", path)
    assert simreduce("topo", "import", source).out == path.read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            " \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tCNS\tX\n\nLegend:\n",
            "is what `nvidia-smi topo -p2p` prints, which pairs may copy and not how they are",
        ),
        ("# OSU MPI-CUDA Allreduce Latency Test v7.3\n4  8.12\n", "is a table of OSU's benchmarks"),
        ("n1:1:2 [0] NCCL INFO NCCL version 2.21.5\n", "NCCL_TOPO_DUMP_FILE"),
        ("n1:1:2 [0] NCCL INFO === System : maxBw 24.0 ===\n", "no graph of NCCL's in it"),
        ("SwitchName=s1 Nodes=n[1-2]\n", "is a list of hosts and the switches above them"),
    ],
)
def test_what_is_not_read_is_called_by_its_name(simreduce, tmp_path, text, words):
    (tmp_path / "given.txt").write_text(text, "utf-8")
    refused = simreduce("topo", "import", tmp_path / "given.txt")

    assert (refused.status, refused.out) == (2, "")
    assert words in refused.err


def test_the_graph_in_a_log_of_nccl_is_a_machine(simreduce, tmp_path):
    log = DUMPS / "dgx-h100x2-2.27.7-system.log"
    written = tmp_path / "mine.toml"
    read = simreduce("topo", "import", log, "-o", written)

    assert read.status == 0
    assert "says how many NVLinks a GPU has and not which it is; --gpu does" in read.err
    assert simreduce("topo", "check", written).status == simreduce("topo", "check", log).status == 0
    assert simreduce("topo", "import", log, "--gpu", "H200").out.count('"H200"') == 1


@pytest.mark.parametrize(
    "mark",
    [
        "0: ",
        " 3: ",
        "[1,0]<stdout>:",
        "node01: ",
        "[pod/trainer-0/main] ",
        "trainer-1  | ",
        "2026-01-02T03:04:05.123456789Z ",
        "2026-01-02T03:04:05Z 1: ",
        "2026-01-02 03:04:05,123 INFO ",
        "(RayWorker pid=77, ip=10.0.0.1) ",
        "> ",
        ">> ",
    ],
)
def test_a_table_with_what_a_launcher_puts_before_its_lines_is_the_table(simreduce, write, mark):
    plain = simreduce("topo", "import", write("table.txt", TOPO_M), "--gpu", "V100")
    write("table.txt", "\n".join(mark + line for line in TOPO_M.splitlines()))
    found = simreduce("topo", "import", "table.txt", "--gpu", "V100")
    assert (found.status, found.out) == (0, plain.out)
    assert simreduce("topo", "check", "table.txt").status == 0


def test_a_table_that_powershell_wrote_is_the_table(simreduce, write, tmp_path):
    plain = simreduce("topo", "import", write("table.txt", TOPO_M), "--gpu", "V100")
    (tmp_path / "table.txt").write_bytes(TOPO_M.encode("utf-16"))
    found = simreduce("topo", "import", "table.txt", "--gpu", "V100")
    assert (found.status, found.out) == (0, plain.out)


def test_of_matrices_a_launchers_marks_are_left_out(simreduce, write):
    marked = "\n".join(f"[1,0]<stdout>:{line}" for line in P2P.splitlines())
    found = simreduce("topo", "import", write("log.txt", P2P))
    write("log.txt", marked)
    again = simreduce("topo", "import", "log.txt")
    assert (found.status, again.status, again.out) == (0, 0, found.out)


def test_of_the_tables_of_several_processes_the_first_is_read(simreduce, write):
    plain = simreduce("topo", "import", write("table.txt", TOPO_M), "--gpu", "V100")
    lines = [f"{rank}: {line}" for line in TOPO_M.splitlines() for rank in (0, 1)]
    write("table.txt", "\n".join(lines))
    found = simreduce("topo", "import", "table.txt", "--gpu", "V100")
    assert (found.status, found.out) == (0, plain.out)
