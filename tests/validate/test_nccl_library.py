"""Asking NCCL's library: what is read, stored and refused, without the library."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from simreduce_validate.nccl_library import comparing, questions as asked, tools
from simreduce_validate.nccl_library.__main__ import store
from simreduce_validate.nccl_library.answers import AnsweredCall, LibraryAnswer, read_answers
from simreduce_validate.nccl_library.asking import COLLECTIVES, fake_node, fake_nodes
from simreduce_validate.nccl_library.comparing import KINDS, answered, compare
from simreduce_validate.nccl_library.log import read_log
from simreduce_validate.report.nccl_library import LIBRARY, library_lines
from simreduce_validate.validate import validate

from simreduce.errors import InputError, InternalError, StrategyError, TopologyError
from simreduce.planners.nccl import choose
from simreduce.topology import load_topology
from simreduce.topology.importers import to_nccl_xml
from tests.schemas import faults_of

SOURCES = Path(__file__).parents[2] / "validate" / "nccl"
BUS_IDS = ("0001:00:00.0", "0001:1a:00.0")
INFO = "host:7:{thread} [{gpu}] NCCL INFO {text}"
SAID = (
    (9, "=== System : maxBw 40.0 totalBw 120.0 ==="),
    (9, "Pattern 4, crossNic 2, nChannels 1, bw 20.000000/12.000000, type NVL/PXB, sameChannels 0"),
    (9, " 0 : NET/0-a GPU/0-100000 GPU/0-11a000 NET/0-b"),
    (9, "Pattern 6, crossNic 0, nChannels 0, bw 0.000000/0.000000, type NVL/PIX, sameChannels 1"),
    (8, "=== System : maxBw 1.0 totalBw 1.0 ==="),
    (9, "Channel 00/02 :    0   1   2   3"),
    (9, "Channel 01/02 :    0   1   3   2"),
    (9, "Trees [0] 1/-1/-1->0->2 [1] -1/-1/-1->0->1"),
    (8, "Trees [0] -1/-1/-1->1->0 [1] 0/-1/-1->1->-1"),
    (9, "2 coll channels, 4 nvls channels, 8 p2p channels, 1 p2p channels per peer"),
    (9, "     AllReduce |    10.4/  14.5 |    -1.0/  -1.0 |     0.0/   0.0 |     9.0/  39.0 |"),
)  # fmt: skip
ASKED = (
    "ASKED version 23007",
    "ASKED call all_reduce 1024",
    "ASKED costs 12.5 -1.0000 170141173319264429905852091742258462720.0 10.2",
    "ASKED estimate 10.2000",
    INFO.format(
        thread=9, gpu=0, text="AllReduce: 1024 Bytes -> Algo NVLS_TREE proto SIMPLE "
        "channel{Lo..Hi}={0..3}",
    ),
    "ASKED kernel ncclDevKernel_AllReduce_Sum_f32_RING_LL 4 512",
    "ASKED call reduce 2048",
    INFO.format(thread=9, gpu=0, text="2048 Bytes -> Algo 1 proto 2 time 12.0"),
    "ASKED end",
)  # fmt: skip
ANSWERS = Path(__file__).parents[1] / "planners" / "nccl" / "answers"


def _lines():
    return [*(INFO.format(thread=t, gpu=9 - t, text=text) for t, text in SAID), *ASKED]


def _read(lines):
    return read_log(lines, BUS_IDS, machine="twox2", asked="2026-11-30", settings={})


def _stored(machine, version="2.30.7"):
    found = read_answers(ANSWERS / f"{version}.jsonl")
    return next(each for each in found if each.machine == machine and not each.settings)


def test_a_log_is_read():
    """What rank 0 says of the machine, of each rank its parents, of each call all that is said."""
    answer = _read(_lines())
    graph, *others = answer.graphs

    assert "2.30.7" == answer.version
    assert (2, 30) == answer.release
    assert (40.0, 120.0) == (answer.widest_gb_per_s, answer.total_gb_per_s)
    assert [] == others
    assert ("ring", 1, 20.0, 12.0, "NVL/PXB", True, False) == tuple(
        getattr(graph, name) for name in graph.__slots__[:7]
    )
    assert (((0, 1),), ((10, 11),)) == (graph.gpus, graph.nics)
    assert ((0, 1, 2, 3), (0, 1, 3, 2)) == answer.rings
    assert ((2, 0), (1, -1)) == answer.tree_parents
    assert (4, 8, 1) == (
        answer.nvls_channels, answer.p2p_channels, answer.p2p_channels_per_peer
    )  # fmt: skip
    assert {"all_reduce": {"tree+ll": (10.4, 14.5), "ring+ll": (9.0, 39.0)}} == answer.table
    costs = {"tree+ll": 12.5, "ring+ll": 10.2}
    assert answer.calls == (
        AnsweredCall("all_reduce", 1024, "nvlstree", "simple", 4, 4, 512, 10.2, costs),
        AnsweredCall("reduce", 2048, "ring", "simple"),
    )


@pytest.mark.parametrize("lost", ["ASKED end", "Channel 0"])
def test_a_log_that_ends_early_is_no_answer(lost):
    """Neither without its end nor without rings."""
    with pytest.raises(InternalError, match="ends early"):
        _read([line for line in _lines() if lost not in line])


def test_answers_are_stored_as_they_are(tmp_path):
    """A new one beside others, in an order that does not depend on when it came; one that is the
    same keeps its date.
    """
    first = _read(_lines())
    other = replace(first, machine="a", rings=((0, 1, 2, 3),) * 2)

    assert 1 == store(tmp_path, [first])
    assert 1 == store(tmp_path, [other])
    assert 0 == store(tmp_path, [replace(first, asked="2027-01-01")])
    assert 1 == store(tmp_path, [replace(other, total_gb_per_s=1.0)])
    assert [replace(other, total_gb_per_s=1.0), first] == [*read_answers(tmp_path / "2.30.7.jsonl")]


def test_a_node_is_described_to_the_fakes():
    """GPUs in CUDA's order, in a PCI domain that this machine has not; NICs with their speed. The
    file is the export, without a change.
    """
    machine = load_topology("dgx-h100")
    node = fake_node(machine)
    nics = node.environment["FAKE_NICS"].split(";")

    assert 8 == len(node.gpus) == len(nics)
    assert ",".join(node.gpus) == node.environment["FAKE_GPUS"]
    assert all(bus_id.startswith("0001:") for bus_id in node.gpus)
    assert "mlx5_0|0001:08:00.0|400000|1|0x1000|0|1" == nics[0]
    assert ("90", "1", "1") == tuple(
        node.environment[f"FAKE_{name}"] for name in ("CAPABILITY", "PEER", "MULTICAST")
    )
    assert to_nccl_xml(machine) == node.xml
    assert "NCCL_PROTO" not in node.environment


@pytest.mark.parametrize("machine", ["alpsx2", "dgx-h100", "rtx4090-2"])
def test_nothing_of_a_cpu_is_left_to_this_computer(machine):
    """NCCL would add it to the CPU of a rank's own GPU, and ranks would not agree on CPUs."""
    cpus = re.findall("<cpu [^>]*>", fake_nodes(machine)[0].xml)
    keys = ("numaid", "affinity", "arch", "vendor", "familyid", "modelid")

    assert cpus
    for cpu in cpus:
        assert all(f' {key}="' in cpu for key in keys)


@pytest.mark.parametrize(
    ("machine", "name", "value"),
    [
        ("rtx4090-2", "FAKE_PEER", "0"),
        ("dgx-a100", "FAKE_MULTICAST", "0"),
        ("p4dx2", "NCCL_PROTO", "Simple"),
    ],
)
def test_the_fakes_do_as_the_hardware_does(machine, name, value):
    """No peer copies between these GPUs; no multicast before Hopper; what EFA's plugin sets."""
    assert value == fake_nodes(machine)[0].environment[name]


def test_latencies_of_efa_are_said():
    """The plugin states 75 us."""
    assert "|75|" in fake_node(load_topology("p4d")).environment["FAKE_NICS"]


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        ("mi300x", "AMD's"),
        ("gh200", "one GPU"),
        ("gb200-nvl72", "72 GPUs; a fake node has 64"),
        ("dgx-h100x2,nic=roce_400", "without options"),
    ],
)
def test_machines_that_cannot_be_asked_for(machine, why):
    """Each says why."""
    with pytest.raises(TopologyError, match=why):
        fake_nodes(machine)


def test_gpus_of_several_generations_are_refused():
    """A fake node has one compute capability, and NCCL's rules go by the lowest."""
    machine = load_topology("v100-mesh-4")
    mixed = type(machine).from_networkx(_with_model(machine.graph, "a100"), name="mixed")

    with pytest.raises(TopologyError, match=r"mixed: .* capabilities 7\.0 and 8\.0"):
        fake_node(mixed)


def test_more_nodes_than_memory_are_refused():
    """Before any process starts; both numbers are said."""
    said = _refusal("dgx-h100x1000", "--backend", "nccl")

    assert re.search(r"1000 nodes take 2000 GB of memory, and \d+\.\d GB are available", said)


@pytest.mark.parametrize(
    ("version", "variables", "collectives"),
    [
        ("2.30.7", {"NCCL_ALGO": "Tree"}, ["all_reduce"]),
        ("2.23.4", {"NCCL_ALGO": "Tree"}, [*COLLECTIVES]),
        ("2.30.7", {}, [*COLLECTIVES]),
    ],
)
def test_only_what_has_an_algorithm_is_asked(version, variables, collectives):
    """From 2.24 on the library ends in others."""
    assert collectives == answered(load_topology("dgx1v"), version, variables, [1024])


def test_no_collective_with_an_algorithm_is_a_fault():
    """NVLS has no use on V100."""
    with pytest.raises(StrategyError, match="leave no algorithm"):
        answered(load_topology("dgx1v"), "2.30.7", {"NCCL_ALGO": "NVLS"}, [1024])


@pytest.mark.parametrize(
    ("text", "version"), [("", tools.VERSIONS[-1]), ("2.30", "2.30.7"), ("2.19.3", "2.19.3")]
)
def test_versions(text, version):
    """The newest that is known unless one is named, or begun."""
    assert version == tools.full_version(text)


def test_a_version_that_is_not_known_is_named_in_full():
    """2.3 does not stand for 2.30."""
    with pytest.raises(InputError, match="whole version"):
        tools.full_version("2.3")


@pytest.mark.parametrize(
    "text", ["../../../etc", "2.30.*", "2.30.7.1", "2.30.", "2..7", "2.17.9", "1.30.7", "2.30.x"]
)
def test_what_is_no_version_is_refused(text):
    """It becomes part of a path and of pip's words."""
    with pytest.raises(InputError, match=f"^{re.escape(text)}: "):
        tools.full_version(text)


def _kept_tools(folder, monkeypatch):
    """A folder as `prepare` leaves it, where nothing has to be taken."""
    monkeypatch.setattr(tools, "_unfit", list)
    folder.mkdir(mode=0o700)
    library = folder / "2.30.7" / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_text("library")
    built = folder / "fakes"
    built.mkdir()
    (built / "ask").write_text("program")
    for path in folder.rglob("*"):
        path.chmod(0o755)
    monkeypatch.setattr(tools, "_build", lambda *_: built)
    return tools.Tools(built, library)


def test_what_is_there_is_taken(tmp_path, monkeypatch):
    """Nothing is taken or built again."""
    kept = _kept_tools(tmp_path / "nccl", monkeypatch)

    assert kept == tools.prepare("2.30.7", folder=tmp_path / "nccl")


@pytest.mark.skipif(os.name != "posix", reason="permissions")
@pytest.mark.parametrize(
    "place", [".", "2.30.7/nvidia", "2.30.7/nvidia/nccl/lib/libnccl.so.2", "fakes", "fakes/ask"]
)
def test_what_others_may_have_written_does_not_run(tmp_path, monkeypatch, place):
    """Neither the library, nor the fakes, nor what is in a folder where others write."""
    folder = tmp_path / "nccl"
    _kept_tools(folder, monkeypatch)
    (folder / place).chmod(0o777)

    with pytest.raises(InputError, match=rf"{re.escape(str(folder / place))}: others may write"):
        tools.prepare("2.30.7", folder=folder)


def _pip_with(monkeypatch, *names):
    """Let pip find a wheel with these files."""

    def download(wheel, folder):
        with zipfile.ZipFile(Path(folder) / f"{wheel}.whl", "w") as archive:
            for name in names:
                archive.writestr(name, "content")

    monkeypatch.setattr(tools, "_download", download)


def test_a_wheel_without_the_library_is_named(tmp_path, monkeypatch):
    """NVIDIA's packages of no content have a version too."""
    _pip_with(monkeypatch, "nvidia/readme")

    with pytest.raises(InputError, match=r"wheel nvidia-nccl==1\.whl has no nvidia/nccl"):
        tools._take({"nvidia-nccl": "1"}, tmp_path / "1", ("nvidia/nccl",))


def test_a_run_that_was_first_is_no_fault(tmp_path, monkeypatch):
    """What it left is taken."""
    _pip_with(monkeypatch, "nvidia/nccl")
    for content in ("content", "of the first"):
        tools._take({"nvidia-nccl": "1"}, tmp_path / "1", ("nvidia/nccl",))
        assert content == (tmp_path / "1" / "nvidia" / "nccl").read_text()
        (tmp_path / "1" / "nvidia" / "nccl").write_text("of the first")

    assert ["1"] == [path.name for path in tmp_path.iterdir()]


def test_files_of_variables_are_refused(tmp_path, monkeypatch):
    """By their path: an answer would not say that they were read."""
    pwd = pytest.importorskip("pwd")
    user = SimpleNamespace(pw_dir=str(tmp_path))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
    (tmp_path / ".nccl.conf").write_text("NCCL_ALGO=Ring")

    assert any(f"{tmp_path}/.nccl.conf" in fault for fault in tools._unfit())


def _refusal(*words):
    """The faults of a command line, which must have some."""
    done = CliRunner().invoke(validate, words)
    assert isinstance(done.exception, InputError), done.output
    return str(done.exception)


def test_the_command_says_what_is_missing(monkeypatch):
    """No compiler, and a real driver; nothing is taken or run."""
    monkeypatch.setattr(tools, "_compiler", lambda: None)
    monkeypatch.setattr(tools, "_driver", lambda: "/dev/nvidia0")
    said = _refusal("v100-mesh-4", "--backend", "nccl")

    assert "real driver (/dev/nvidia0)" in said
    assert "no cc, gcc or clang" in said


def test_the_command_says_that_there_is_no_wheel(monkeypatch, tmp_path):
    """The words are pip's."""
    pip = subprocess.CompletedProcess((), 1, "", "WARNING: slow\nERROR: no matching distribution\n")
    monkeypatch.setattr(tools, "_unfit", list)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tools.subprocess, "run", lambda *_, **__: pip)
    said = _refusal("v100-mesh-4", "--backend", "nccl", "--nccl", "2.27.7")

    assert "nvidia-nccl-cu12==2.27.7" in said
    assert "no matching distribution" in said
    assert [] == [*(tmp_path / "simreduce" / "nccl").glob("2*")]


def test_the_command_lists_all_faults():
    """Options that time, unknown variables, what is no variable, and a machine of AMD's."""
    given = ["--algo", "ring", "--nccl", "NCCL_ALG=Ring", "--nccl", "symmetric=1"]
    said = _refusal("mi300x", "--backend", "nccl", *given)

    for part in ("--algo", "NCCL_ALG: unknown", "symmetric: is no variable", "AMD's"):
        assert part in said


def test_only_this_backend_takes_nccl():
    """Others time plans of ours."""
    assert "only --backend nccl" in _refusal("switch:2", "--nccl", "2.30.7")


def test_the_report_shows_what_differs_first():
    """Each kind with its counts, and of a table of rows the first that differs."""
    answer = _stored("v100-mesh-4")
    rings = (answer.rings[0], answer.rings[0], *answer.rings[2:])
    first = replace(answer.calls[0], protocol="simple")
    changed: LibraryAnswer = replace(answer, rings=rings, calls=(first, *answer.calls[1:]))
    report = compare(changed)
    lines = [*library_lines(report, details=False)]
    document = LIBRARY.write(report)

    assert [] == faults_of(json.loads(json.dumps(document)))
    assert ["rings", "choices"] == [each["kind"] for each in document["differences"]]
    assert "channel 1: 0 1 2 3" == document["differences"][0]["nccl"]
    assert "0 1 3 2" == document["differences"][0]["simreduce"]
    assert [*KINDS] == [each["kind"] for each in document["kinds"]]
    assert "ring 6 x 20 GB/s NVL/PIX 6 x 20 GB/s NVL/PIX" in [
        " ".join(line.split()) for line in lines
    ]
    assert len(answer.calls) == len(document["calls"])
    assert len([*library_lines(report, details=True)]) > len(lines) + 100


def test_each_call_is_chosen_once(monkeypatch):
    """The report shows what was compared."""
    answer, chosen = _stored("v100-mesh-4"), []
    monkeypatch.setattr(
        comparing, "choose", lambda *call: chosen.append(call[1:3]) or choose(*call)
    )
    report = compare(answer)
    assert [*library_lines(report, details=True)]
    assert LIBRARY.write(report)["calls"][0]["simreduce"]

    assert [(each.collective, each.nbytes) for each in answer.calls] == chosen


def _differing(answer):
    return {(each.kind, each.where) for each in compare(answer).figures if not each.equal}


def test_equal_is_to_the_printed_digit():
    """Costs have four decimals; half of the last is allowed, and rounding of floats."""
    answer = _stored("v100-mesh-4")
    first, *others = answer.calls
    where = f"{first.collective} {first.nbytes} ring+ll"
    for off, differs in ((0.00001, False), (0.002, True)):
        costs = {**first.costs_us, "ring+ll": first.costs_us["ring+ll"] + off}
        changed = replace(answer, calls=(replace(first, costs_us=costs), *others))
        assert ({("costs", where)} if differs else set()) == _differing(changed)


def test_what_the_library_does_not_list_differs():
    """A pair of the table that we allow."""
    answer = _stored("v100-mesh-4")
    row = {pair: cell for pair, cell in answer.table["reduce"].items() if pair != "ring+ll"}
    changed = replace(answer, table={**answer.table, "reduce": row})

    assert {("table", "reduce ring+ll")} == _differing(changed)


def test_heads_of_nvls_are_compared():
    """The first GPU of each channel, which is all that the library prints."""
    answer = _stored("dgx-h100")
    *others, nvls = (each for each in answer.graphs)
    assert "nvls" == nvls.pattern
    changed = replace(answer, graphs=(*others, replace(nvls, gpus=nvls.gpus[::-1])))

    assert {("orders", "nvls")} == _differing(changed)


def test_the_report_shows_calls_that_we_have_no_algorithm_for():
    """And names the collectives that were not asked for."""
    answer = _stored("v100-mesh-4")
    calls = tuple(each for each in answer.calls if each.collective != "broadcast")
    report = compare(replace(answer, settings={"NCCL_ALGO": "Tree"}, calls=calls))
    lines = [*library_lines(report, details=True)]
    document = LIBRARY.write(report)

    assert "# not asked, as the variables leave no algorithm: broadcast" in lines
    assert [] == faults_of(json.loads(json.dumps(document)))
    ours = {each["collective"]: each["simreduce"] for each in document["calls"]}
    assert ours.pop("all_reduce").startswith("tree+")
    assert {None} == {*ours.values()}


def test_questions_name_machines_that_differ(monkeypatch):
    """One of each that NCCL takes for the same, and none that cannot be asked for."""
    names = "dgx-h100", "hgx-h200", "gh200", "mi300x", "v100-pcie-4"
    monkeypatch.setattr(asked, "shipped", lambda: [(name, "") for name in names])
    found = [name for name, variables in asked.questions("2.30.7") if not variables]

    assert ["dgx-h100", "v100-pcie-4"] == found[:2]
    assert not {"hgx-h200", "gh200", "mi300x"} & {*found}
    assert {name for name, _ in asked.questions("2.18.3")} < {*found}


CALLER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "fake_machine.h"
#include "interpose.h"
int fake_cudaMalloc(void) { return 7; }
int main(int count, char **words) {
  void *library = load_nccl(words[1]);
  int (*call)(void) = dlsym(library, words[2]);
  printf("%d %s\n", call(), name_of((void *)call));
  return 0;
}
"""
SHORT = r"""
__asm__(".type cudaShort, @function\ncudaShort: ret\n.size cudaShort, 1");
"""
LIBRARY_OF_TEST = r"""
#include <dlfcn.h>
#define LONG __asm__(".fill 16, 1, 0x90")
__attribute__((noinline)) static int cudaMalloc_ptsz(void) { LONG; return 1; }
__attribute__((noinline)) static int cudaNewCall(void) { LONG; return 2; }
int known(void) { return cudaMalloc_ptsz(); }
int unknown(void) { return cudaNewCall(); }
int unknown_of_nvml(void) { return ((int (*)(void))dlsym(RTLD_DEFAULT, "nvmlNewCall"))(); }
"""


@pytest.fixture(scope="module")
def interposer(tmp_path_factory):
    """A program with the fakes' way in, and a library that stands for NCCL's."""
    if not shutil.which("cc") or platform.machine() != "x86_64":
        pytest.skip("needs a C compiler for x86-64")
    folder = tmp_path_factory.mktemp("interposer")
    (folder / "caller.c").write_text(CALLER)
    (folder / "library.c").write_text(LIBRARY_OF_TEST)
    sources = [folder / "caller.c", SOURCES / "interpose.c", SOURCES / "fake_machine.c"]
    program, library = folder / "caller", folder / "library.so"
    subprocess.run(
        ["cc", "-rdynamic", f"-I{SOURCES}", *sources, "-o", program, "-ldl", "-lpthread"],
        check=True,
    )
    subprocess.run(["cc", "-shared", "-fPIC", folder / "library.c", "-o", library], check=True)
    return program, library


def test_the_fakes_take_the_place_of_the_runtime_in_the_library(interposer):
    """`cudaMalloc_ptsz`, which returned 1, is the fake `cudaMalloc`."""
    done = subprocess.run([*interposer, "known"], capture_output=True, text=True, check=True)

    assert "7 known\n" == done.stdout


@pytest.mark.parametrize(
    ("call", "name"), [("unknown", "cudaNewCall"), ("unknown_of_nvml", "nvmlNewCall")]
)
def test_a_call_that_no_fake_knows_ends_the_run(interposer, call, name):
    """With its name; nothing goes on as if it had worked."""
    done = subprocess.run([*interposer, call], capture_output=True, text=True, check=False)

    assert (3, "", f"REFUSED {name}\n") == (done.returncode, done.stdout, done.stderr)


def test_a_function_shorter_than_the_jump_is_refused(interposer):
    """The jump would overwrite the next one."""
    program, library = interposer
    short, source = library.with_name("short.so"), library.with_name("short.c")
    source.write_text(SHORT)
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", short], check=True)
    done = subprocess.run([program, short, "x"], capture_output=True, text=True, check=False)

    assert (3, "REFUSED cudaShort\n") == (done.returncode, done.stderr)


STUBS = "".join(
    f"int fake_cuda{name}(void) {{ return 0; }}\n"
    for name in ("SetDevice", "Malloc", "StreamCreate")
)


@pytest.mark.parametrize(("parent", "status"), [("1", 5), ("", 3)])
def test_a_node_does_not_outlive_its_parent(interposer, parent, status):
    """One whose parent is gone leaves; else it goes on to a library that is not there."""
    folder = interposer[0].parent
    (folder / "stubs.c").write_text(STUBS)
    names = "ask.c", "interpose.c", "fake_machine.c"
    sources = [folder / "stubs.c", *(SOURCES / name for name in names)]
    program = folder / "ask"
    subprocess.run(["cc", "-rdynamic", *sources, "-o", program, "-ldl", "-lpthread"], check=True)
    command, own = [program, folder / "no-library.so", "2", "0", folder], str(os.getpid())
    done = subprocess.run(
        command, capture_output=True, env={**os.environ, "ASK_PARENT": parent or own}, check=False
    )

    assert status == done.returncode


def test_nics_of_no_network_are_not_asked_for():
    """NCCL would take them for 10 Gbit/s, and a machine of several nodes has a default."""
    machine = load_topology("dgx1v-2nic")
    unstated = type(machine).from_networkx(_without_networks(machine.graph), name="bare")

    with pytest.raises(TopologyError, match="bare: say the `network` of its NICs"):
        fake_node(unstated, 2)
    assert fake_node(unstated).gpus == fake_node(machine).gpus


def _with_model(graph, model):
    graph = graph.copy()
    gpus = [fields for _, fields in graph.nodes(data=True) if fields.get("kind") == "gpu"]
    gpus[0]["model"] = model
    return graph


def _without_networks(graph):
    graph = graph.copy()
    for _, fields in graph.nodes(data=True):
        if fields.get("kind") == "nic":
            fields["network"] = ""
    return graph


def test_sources_without_the_example_plugin_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"no plugins/tuner/example/plugin\.c"):
        tools.build_example(tmp_path, tools.Tools(tmp_path, tmp_path / "libnccl.so.2"))
