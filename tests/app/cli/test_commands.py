"""What the commands print and how they end, when they are given what they can use."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from datetime import datetime

import pytest

import simreduce as sr
from simreduce.engine import Simulator
from simreduce.errors import Deadlock, StrategyError
from simreduce.planners.algorithms import ALGORITHMS, FAMILIES, TWO_LEVEL, Algorithm
from simreduce.topology import load_topology
from tests.app.cli.command import REPOSITORY, process
from tests.faulty import FORGETFUL
from tests.thorough import corners

UPDATE = "SIMREDUCE_UPDATE_GOLDENS"
STOPPED = "simreduce: stopped before there was a result"
SCENARIOS = sorted((REPOSITORY / "scenarios").glob("*.toml"))
# From Python 3.12 on, the worker processes of `run` are told to be a risk beside numpy's threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

SMALL = 'title = "small"\ntopology = "full:3"\nworkload = "bytes:64K"\n'


@pytest.fixture
def forgetful(monkeypatch):
    """A planner with a fault."""
    monkeypatch.setitem(ALGORITHMS, "forgetful", FORGETFUL)
    return "forgetful"


@pytest.fixture
def small(tmp_path):
    """A scenario that is quick to rank."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL, "utf-8")
    return path


@pytest.mark.parametrize("scenario", corners(SCENARIOS, 2), ids=lambda path: path.stem)
def test_a_shipped_scenario_prints_the_table_beside_it(simreduce, monkeypatch, scenario):
    """Of `step` if it has a [step] or [replicas], else of `run`; `SIMREDUCE_UPDATE_GOLDENS=1 pytest
    tests/app/cli` rewrites `scenarios/NAME.out`.
    """
    monkeypatch.chdir(REPOSITORY)
    text = scenario.read_text("utf-8")
    command = "step" if "\n[step]\n" in text or "\n[replicas]\n" in text else "run"
    status, out, err = simreduce(command, scenario.relative_to(REPOSITORY))
    golden = scenario.with_suffix(".out")
    if os.environ.get(UPDATE):
        golden.write_text(out, "utf-8")

    assert golden.read_text("utf-8") == out
    assert (0, "") == (status, err)


def test_every_table_stands_beside_a_scenario():
    """None is left over."""
    assert [path.stem for path in SCENARIOS] == sorted(
        p.stem for p in (REPOSITORY / "scenarios").glob("*.out")
    )


@pytest.mark.slow
def test_the_same_question_prints_the_same_bytes():
    """Under different hash seeds, and in one process or in two."""
    question = ("run", "scenarios/dgx1p-step-of-five.toml")
    first = process(*question, "--workers", "1", PYTHONHASHSEED="1")

    assert first == process(*question, "--workers", "2", PYTHONHASHSEED="2")
    assert ((REPOSITORY / question[1]).with_suffix(".out").read_text("utf-8"), 0, "") == (
        first.out,
        first.status,
        first.err,
    )


@pytest.mark.slow
def test_every_runtime_runs_in_several_processes(simreduce, small):
    """With the bytes of one process."""
    for runtime in ("ideal", "tensorflow", "nccl"):
        question = ("run", small, "--runtime", runtime, "--json", "--workers")
        one, two = simreduce(*question, "1"), simreduce(*question, "2")

        assert one == two
        assert runtime == json.loads(one.out)["runtime"]


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(
            ("bench", "dgx1vx2,nic=ib_edr", "--algo", "all", "-b", "64K", "-e", "1M", "-f", "4"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            ("verify", "--algo", "xring#2", "--algo", "psgpu#4+packs=3", "-g", "6", "--json"),
            marks=pytest.mark.slow,
        ),
        ("topo", "show", "dgx1v", "--json"),
    ],
    ids=lambda question: question[0],
)
def test_no_hash_seed_changes_an_answer(question):
    """Nothing that is printed depends on the order of a set."""
    assert process(*question, PYTHONHASHSEED="3") == process(*question, PYTHONHASHSEED="4")


def test_run_prints_one_document_with_json(simreduce, small):
    """On stdout alone, with the keys that others rely on; what the machine refuses is in it."""
    small.write_text(SMALL.replace("full:3", "ring:4"), "utf-8")
    status, out, err = simreduce("run", small, "--json")
    document = json.loads(out)

    assert (0, "") == (status, err)
    assert (
        "run",
        sr.__version__,
        "small",
        "ring:4",
        "bytes:64K",
        4,
        "by_strategy",
        "nominal",
        False,
    ) == tuple(
        document[key]
        for key in (
            "command",
            "version",
            "scenario",
            "topology",
            "workload",
            "ranks",
            "runtime",
            "calibration",
            "faithful",
        )
    )
    assert document["recommended"] in {c["strategy"] for c in document["candidates"]}
    assert {
        "hierarchical_copy",
        "copy_to_gpus",
        "reduce_to_one",
        "psgpu",
        "psgpu#2",
        "psgpu#4",
    } == {
        spec
        for r in document["refused"]
        if (spec := r["strategy"].partition("+")[0]) not in FAMILIES
    }
    assert all(
        r["reason"].startswith(f"{r['strategy']}: no route from 'gpu") for r in document["refused"]
    )


def test_run_takes_upstreams_quirks_and_the_order_of_rings_from_the_command_line(simreduce, small):
    """They win over the file; a wrong sum of upstream's fails the run."""
    small.write_text(SMALL + 'strategies = ["hierarchical_copy", "ring"]\n', "utf-8")
    meant, done = (
        simreduce("run", small, "--json", "--workers", "1", *more) for more in ([], ["--faithful"])
    )
    wrong = {c["strategy"]: c["wrong"] for c in json.loads(done.out)["candidates"]}

    assert (0, 1) == (meant.status, done.status)
    assert (False, True) == tuple(json.loads(outcome.out)["faithful"] for outcome in (meant, done))
    assert {"hierarchical_copy": 3 * 2**14, "ring": 0} == wrong

    small.write_text(SMALL.replace("full:3", "ring:4") + 'strategies = ["xring"]\n', "utf-8")
    assert 0 == simreduce("run", small, "--gpu-indices", "3,2,1,0", "--workers", "1").status
    status, out, err = simreduce("run", small, "--gpu_indices", "0,2,1,3", "--workers", "1")
    assert (2, "") == (status, out)
    assert err.startswith("simreduce: xring: no route from 'gpu")


def test_run_takes_runtime_and_calibration_from_the_command_line(simreduce, small):
    """They win over the file, and the table names them."""
    out = simreduce("run", small, "--runtime", "ideal", "--calibration", "dgx1p-tf2018").out

    assert "# runtime      ideal, time of one all-reduce" in out
    assert "# calibration  dgx1p-tf2018 (" in out


def test_bench_prints_the_table_that_it_can_print_as_json(simreduce):
    """The same figures, rounded."""
    question = (
        "bench",
        "full:4",
        "--algo",
        "ring",
        "--algo",
        "psgpu+mean",
        "-b",
        "1M",
        "-e",
        "4M",
        "-f",
        "4",
    )
    status, table, err = simreduce(*question)
    document = json.loads(simreduce(*question, "--json").out)

    assert (0, "") == (status, err)
    assert (4, "full:4", "tensorflow", "nominal", "all_reduce") == tuple(
        document[key] for key in ("ranks", "topology", "runtime", "calibration", "collective")
    )
    rows = [line.split() for line in table.splitlines() if not line.startswith("#")]
    assert [
        [
            str(r["size_bytes"]),
            str(r["count"]),
            r["type"],
            r["redop"],
            "-1",
            f"{r['time_us']:.2f}",
            f"{r['algbw_gb_per_s']:.2f}",
            f"{r['busbw_gb_per_s']:.2f}",
            str(r["wrong"]),
        ]
        for r in document["rows"]
    ] == [row[:9] for row in rows]
    assert [("ring", "sum"), ("psgpu+mean", "avg")] * 2 == [
        (r["algorithm"], r["redop"]) for r in document["rows"]
    ]
    assert f"# simreduce {sr.__version__}: simulated all-reduce, 4 ranks" in table


def test_bench_writes_the_document_of_nccl_tests_too(simreduce, tmp_path):
    """Beside the table; it names the arguments."""
    path = tmp_path / "x.json"
    arguments = ("bench", "full:4", "-b", "1M", "-g", "2", "-J", path)
    status, table, _ = simreduce(*arguments)
    document = json.loads(path.read_text("utf-8"))

    assert 0 == status
    assert list(map(str, arguments)) == document["args"]
    assert [{"rank": 0}, {"rank": 1}] == document["devices"]
    (row,) = [line.split() for line in table.splitlines() if not line.startswith("#")]
    (result,) = document["results"]
    for place in ("out_of_place", "in_place"):
        assert row[5:9] == [
            f"{result[place]['time']:.2f}",
            f"{result[place]['alg_bw']:.2f}",
            f"{result[place]['bus_bw']:.2f}",
            str(result[place]["nwrong"]),
        ]
    assert "nccl" == result["algorithm"]
    assert datetime.fromisoformat(document["start_time"]) <= datetime.fromisoformat(
        document["end_time"]
    )


@pytest.mark.parametrize("spelling", ["-J", "--output_file", "--output-file"])
def test_the_file_may_be_asked_for_in_every_spelling(simreduce, tmp_path, spelling):
    """As nccl-tests and as we do."""
    assert 0 == simreduce("bench", "full:2", "-b", "4K", spelling, tmp_path / "x.json").status
    assert (tmp_path / "x.json").exists()


def test_bench_takes_the_first_gpus(simreduce):
    """`-g 2` of a DGX-1 are two linked GPUs; the machine stays what it is."""
    document = json.loads(simreduce("bench", "dgx1v", "-g", "2", "-b", "1M", "--json").out)

    assert (2, "dgx1v") == (document["ranks"], document["topology"])
    assert "gpu0>gpu1 nvlink2" == document["rows"][0]["bottleneck"]


def test_bench_answers_what_the_machine_accepts_of_a_list(simreduce):
    """The refused one has its reason in the table and the document; alone, it is an error."""
    words = ("bench", "mi355x", "-b", "64K", "--algo")
    status, out, err = simreduce(*words, "rccl,oneshot,symmetric,multimem")
    document = json.loads(simreduce(*words, "rccl,oneshot,symmetric,multimem", "--json").out)
    alone = simreduce(*words, "multimem")
    why = "needs switches that sum and link all GPUs of a machine (NVSwitch)"

    assert (0, "") == (status, err)
    assert ["rccl", "oneshot"] == [row["algorithm"] for row in document["rows"]]
    older, refused = document["refused"]
    assert (older["algorithm"], older["reason"]) == (
        "symmetric", "RCCL has symmetric kernels from 2.28 on; this is 2.27",
    )  # fmt: skip
    assert refused == {"size_bytes": 1 << 16, "algorithm": "multimem", "reason": why}
    assert any(line.endswith(f"multimem refused: {why}") for line in out.splitlines())
    assert "multimem" not in document["nominal"]
    assert (2, "", f"simreduce: multimem: {why}\n") == alone


def test_run_ranks_what_the_machine_accepts_of_a_list(simreduce):
    words = ("run", "dgx1v-resnet50", "--workers", "1", "--algo")
    status, out, _ = simreduce(*words, "ring+packs=2,multimem")
    document = json.loads(simreduce(*words, "ring+packs=2,multimem", "--json").out)
    alone = simreduce(*words, "multimem")
    why = "multimem: needs NVLinks or NVSwitches between all GPUs"

    assert 0 == status
    assert f"Not possible here (1):\n  {why}" in out
    assert ["ring+packs=2"] == [row["strategy"] for row in document["candidates"]]
    assert [{"strategy": "multimem", "reason": why}] == document["refused"]
    assert "nominal" not in document
    assert (2, "", f"simreduce: {why}\n") == alone


def test_bench_all_leaves_out_what_the_machine_does_not_accept(simreduce):
    """And says so on stderr: in a ring of GPUs, only neighbours are joined."""
    status, out, err = simreduce("bench", "ring:5", "--algo", "all", "-b", "1M", "--json")
    left_out = {line.split()[0] for line in err.splitlines()}

    assert 0 == status
    assert {
        "psgpu",
        "hierarchical_copy",
        "hierarchical_copy_gcp_v100",
        "copy_to_gpus",
        "reduce_to_one",
        "in_switch",
        "nccl:allpairs",
        "nccl:nvls",
        "nccl:collnet",
        "nccl:nvlstree",
        "oneshot",
        "twoshot",
        "multimem",
        "symmetric",
        "symmetric:agxll_r",
        "symmetric:agxllmc_r",
        "symmetric:rsxld_agxst",
        "symmetric:rsxldmc_agxstmc",
        "binary_tree",
        "binomial_tree",
        "direct",
        "double_tree",
        "halving_doubling",
        "one_shot",
        "recursive_doubling",
        *TWO_LEVEL,
    } == left_out
    assert "hierarchical_copy_gcp_v100 left out: needs exactly 8 devices, not 5" in (
        err.splitlines()
    )
    left_out -= set(TWO_LEVEL)  # one machine only
    assert set(ALGORITHMS) - left_out == {
        row["algorithm"].partition("+chunk=")[0] for row in json.loads(out)["rows"]
    }


def test_verify_proves_what_it_is_given(simreduce):
    """And counts the plans."""
    status, out, err = simreduce(
        "verify", "--algo", "ring", "--algo", "chain", "-g", "3", "--count", "5"
    )

    assert (0, "") == (status, err)
    assert [
        "ring: 1 plan",
        "chain: 1 plan",
        "2 plans checked, 0 refused, 0 problems",
    ] == out.splitlines()


def test_verify_fails_with_status_1_where_nothing_is_proved(simreduce):
    """A strategy that takes none of what it was to be proved on; the others are proved all the
    same.
    """
    question = ("verify", "--algo", "ring", "--algo", "hierarchical_copy_gcp_v100", "-g", "3")
    status, out, err = simreduce(*question, "--count", "5", "--count", "7")

    assert (1, "") == (status, err)
    assert [
        "ring: 3 plans",
        "hierarchical_copy_gcp_v100: nothing proved: needs exactly 8 devices, not 3",
        "refused 3: needs exactly 8 devices, not 3",
        "3 plans checked, 3 refused, 0 problems",
    ] == out.splitlines()

    status, out, _ = simreduce(*question, "--json")
    assert (
        1,
        [{"strategy": "hierarchical_copy_gcp_v100", "reason": "needs exactly 8 devices, not 3"}],
    ) == (status, json.loads(out)["unproved"])


def test_verify_takes_what_serves_on_no_machine_for_bad_input(simreduce):
    """All of it at once, with misspelt names."""
    status, out, err = simreduce(
        "verify", "--algo", "ring#2", "--algo", "rng", "--algo", "ring+chunk=4k"
    )

    assert (2, "") == (status, out)
    assert [
        "simreduce: ring#2: ring takes no shards",
        "simreduce: strategy (rng) contains invalid alg rng (did you mean 'ring'?)",
        "simreduce: ring+chunk=4k: ring sends no chunks; leave out +chunk",
    ] == err.splitlines()


def test_verify_tells_how_many_plans_were_refused_and_why(simreduce, monkeypatch):
    """Reasons that differ by numbers only are one; the most frequent comes first. What takes some
    is no failure.
    """

    def picky(b, layout, tensors, options):
        for tensor in tensors:
            if (size := tensor[0].hi - tensor[0].lo) > 5:
                raise StrategyError(f"{size} elements are too many")
        if len(tensors) > 1:
            raise StrategyError("one tensor only")
        return ALGORITHMS["ring"].plan(b, layout, tensors, options)

    monkeypatch.setitem(ALGORITHMS, "picky", Algorithm("picky", picky, "takes few"))
    for counts, told in (
        (["4", "5"], ["picky: 2 plans, 1 refused", "refused 1: one tensor only"]),
        (["4", "6", "7"], ["picky: 1 plan, 3 refused", "refused 3: 6 elements are too many"]),
    ):
        options = [part for count in counts for part in ("--count", count)]
        status, out, _ = simreduce("verify", "--algo", "picky", "-g", "3", *options)

        assert (0, told) == (status, out.splitlines()[:-1])


def test_verify_prints_one_document_with_json(simreduce):
    """With the keys that others rely on."""
    status, out, _ = simreduce(
        "verify", "--algo", "ring", "-g", "3", "--count", "5", "--count", "7", "--json"
    )

    assert 0 == status
    assert {
        "command": "verify",
        "version": sr.__version__,
        "schema": "verify/1",
        "checked": 3,
        "refused": [],
        "unproved": [],
        "problems": [],
    } == json.loads(out)


def test_verify_fails_with_status_1_and_names_the_rank(simreduce, forgetful):
    """Which result is wrong, and which rank it lacks; in the table and in the document."""
    question = ("verify", "--algo", forgetful, "--algo", "ring", "-g", "3", "--count", "5")
    status, out, err = simreduce(*question)
    problems = [
        f"forgetful on 3 GPUs: 5 elements: wrong sum: n0.gpu{i} [0, 5): rank 2 is missing"
        for i in range(3)
    ]

    assert (1, "") == (status, err)
    assert [
        "forgetful: 1 plan",
        "ring: 1 plan",
        *(f"WRONG {problem}" for problem in problems),
        "2 plans checked, 0 refused, 3 problems",
    ] == out.splitlines()

    status, out, _ = simreduce(*question, "--json")
    assert (1, problems) == (status, json.loads(out)["problems"])


def test_verify_takes_several_machines_and_upstreams_quirks(simreduce):
    """The machines are in the document and beside the GPUs."""
    status, out, _ = simreduce(
        "verify",
        "--algo",
        "nccl/xring",
        "--algo",
        "collective",
        "-g",
        "6",
        "--tasks",
        "3",
        "--count",
        "5",
    )
    assert (0, "2 plans checked, 0 refused, 0 problems") == (status, out.splitlines()[-1])

    question = ("verify", "--algo", "hierarchical_copy", "-g", "3", "--tasks", "3", "--count", "5")
    assert 0 == simreduce(*question).status
    status, out, _ = simreduce(*question, "--faithful", "--json")
    assert (
        1,
        [
            (
                f"hierarchical_copy on 3 GPUs in 3 machines: 5 elements: wrong sum: n{i}.gpu0 "
                f"[0, 5): rank 2 is missing"
            )
            for i in range(3)
        ],
    ) == (status, json.loads(out)["problems"])

    name = "hierarchical_copy_gcp_v100"
    status, out, _ = simreduce(
        "verify", "--algo", name, "-g", "4", "--tasks", "2", "--count", "5", "--json"
    )
    assert (
        1,
        [
            {
                "collective": "all_reduce",
                "strategy": name,
                "ranks": 4,
                "tasks": 2,
                "plans": 0,
                "refused": 1,
                "reason": "needs exactly 8 devices, not 4",
            }
        ],
    ) == (status, json.loads(out)["refused"])


def test_verify_all_proves_everything(simreduce, monkeypatch, forgetful):
    """What `prove_all` yields, here on fewer machines than it does; what was added and is wrong is
    told.
    """
    monkeypatch.setattr("simreduce.study.tune.prove.RANKS", (1, 2))
    monkeypatch.setattr("simreduce.study.tune.prove.TASKS", (1, 2))
    status, out, err = simreduce("verify", "--all", "--count", "7", "--workers", "1")
    lines = out.splitlines()
    told = {line.split(": ")[0] for line in lines if not line.startswith("WRONG ")}

    assert (1, "") == (status, err)
    untried = {"hierarchical_copy_gcp_v100"}  # on 8 GPUs only
    assert {
        name + packs for name in set(ALGORITHMS) - untried for packs in ("", "+packs=3")
    } <= told
    assert {"nccl+ddp", "nccl+fusion", "--variable_update=replicated"} <= told
    assert [
        f"WRONG {strategy} on {where}: 7 elements: wrong sum: {gpu} [0, 7): rank 1 is missing"
        for where, gpus in (
            ("2 GPUs", ("n0.gpu0", "n0.gpu1")),
            ("2 GPUs in 2 machines", ("n0.gpu0", "n1.gpu0")),
        )
        for strategy in (forgetful, f"{forgetful}+packs=3")
        for gpu in gpus
    ] == sorted(
        (line for line in lines if line.startswith("WRONG ")), key=lambda line: "machines" in line
    )
    assert lines[-1].endswith(" refused, 8 problems")


def test_verify_all_keeps_what_it_has_when_it_is_stopped(simreduce, monkeypatch):
    """Status 130, and the plans that were proved until then."""

    def stopped(cases, counts, workers):  # noqa: ARG001
        yield 0, cases[0].prove(counts)
        os.kill(os.getpid(), signal.SIGTERM)
        yield 1, cases[1].prove(counts)

    monkeypatch.setattr("simreduce.app.cli.explain.prove_all", stopped)
    handler = signal.getsignal(signal.SIGTERM)
    status, out, _ = simreduce("verify", "--all", "--count", "7")
    assert (130, ["1 plan checked, 0 refused, 0 problems", "stopped before all was proved"]) == (
        status,
        out.splitlines()[-2:],
    )
    assert signal.getsignal(signal.SIGTERM) == handler
    status, out, _ = simreduce("verify", "--all", "--count", "7", "--json")
    document = json.loads(out)
    assert (130, 1, False) == (status, document["checked"], document["complete"])


def test_bench_fails_with_status_1_when_a_plan_is_wrong(simreduce, forgetful):
    """And counts the wrong elements: all of them, on every rank."""
    status, out, _ = simreduce("bench", "full:3", "--algo", forgetful, "-b", "4K")

    assert 1 == status
    assert "# Out of bounds values : 3072 FAILED" in out.splitlines()


def test_run_fails_with_status_1_when_a_plan_is_wrong(simreduce, forgetful, small):
    """It is ranked, and never recommended."""
    small.write_text(SMALL + f'strategies = ["{forgetful}", "ring"]', "utf-8")
    status, out, _ = simreduce("run", small, "--json", "--workers", "1")
    document = json.loads(out)

    assert (1, "ring") == (status, document["recommended"])
    assert {"forgetful": 3 * 2**14, "ring": 0} == {
        c["strategy"]: c["wrong"] for c in document["candidates"]
    }


def test_topo_list_names_every_shipped_machine(simreduce):
    """With its title, and how to write one inline."""
    status, out, err = simreduce("topo", "list")
    document = json.loads(simreduce("topo", "list", "--json").out)

    assert (0, "") == (status, err)
    names = [t["name"] for t in document["topologies"]]
    assert {"dgx1p", "dgx1v", "dgx-a100", "gb200-nvl72"} < set(names)
    assert sorted(names) == names
    for machine in document["topologies"]:
        [nics] = machine["nics"]
        parts = f"{machine['gpus']} GPUs?, {nics['count']} {nics['class']}"
        line = rf"^{machine['name']} +{parts} +{re.escape(machine['title'])}$"
        assert re.search(line, out, re.MULTILINE)
    assert machine["name"] == "v100-pcie-4"
    assert (machine["gpus"], nics) == (4, {"class": "ib_fdr", "count": 1})
    assert "switch:64" in out


def test_topo_show_prints_the_matrix_and_every_link(simreduce):
    """The document has the links of both directions, with their rates."""
    status, out, err = simreduce("topo", "show", "dgx1v")
    document = json.loads(simreduce("topo", "show", "dgx1v", "--json").out)

    assert (0, "") == (status, err)
    assert re.search(r"^GPU0 +X +NV1 +NV1 +NV2 +NV2 ", out, re.MULTILINE)
    assert "  copies through the host, at a gpu: staged_pcie3, 10 GB/s, 5.5 us" in out.splitlines()
    assert "  gpu0 - gpu3: nvlink2 x2, 48 GB/s of nominal 50 GB/s, 1.8 us" in out.splitlines()
    assert ("topo show", "dgx1v", 2 * (16 + 16 + 1 + 2 * 12)) == (
        document["command"],
        document["topology"],
        len(document["links"]),
    )
    assert {
        "source": "gpu3",
        "target": "gpu0",
        "class": "nvlink2",
        "lanes": 2,
        "nominal_gb_per_s": 50.0,
        "bandwidth_gb_per_s": 48.0,
        "latency_us": pytest.approx(1.8),
    } in document["links"]


def test_topo_show_folds_links_that_are_alike(simreduce):
    """Every wire of 24 machines is counted once, in few lines."""
    out = simreduce("topo", "show", "dgx-h100x24").out
    lines = re.findall(r"^  n0\.\S+ - .*", out, re.MULTILINE)
    more = [
        int(count or 0)
        for count in re.findall(r"^  n0.*?(?:and (\d+) more.*)?$", out, re.MULTILINE)
    ]

    assert len(lines) == 6
    assert len(load_topology("dgx-h100x24").wires) // 2 == len(lines) + sum(more)
    assert len(out.split()) < 1000


@pytest.mark.parametrize(
    ("command", "end", "status", "message"),
    [
        (
            "explain",
            Deadlock("1 op can never finish:\n  op 3"),
            1,
            "simreduce: 1 op can never finish:\n  op 3\n",
        ),
        ("explain", KeyboardInterrupt(), 130, f"\n{STOPPED}\n"),
        ("bench", KeyboardInterrupt(), 130, f"\n{STOPPED}\n"),
    ],
)
def test_a_simulation_that_does_not_end_well_has_a_status_of_its_own(
    simreduce, monkeypatch, command, end, status, message
):
    """A plan that can never finish is a check that failed; an interrupt is 130."""

    def simulate(*_arguments, **_options):
        raise end

    for name in ("simulate_within", "summarise_within", "record"):
        monkeypatch.setattr(Simulator, name, simulate)

    assert (status, "", message) == simreduce(command, "full:2")


def test_a_bench_that_is_stopped_prints_what_it_has(simreduce, monkeypatch):
    """With the status of an interrupt; the document says that it is not all."""
    alone, simulate = simreduce("bench", "full:2", "-b", "1M"), Simulator.summarise_within

    def stopped(self, plan, *others, **options):
        if plan.nbytes.max() > 1 << 20:
            os.kill(os.getpid(), signal.SIGTERM)
        return simulate(self, plan, *others, **options)

    monkeypatch.setattr(Simulator, "summarise_within", stopped)
    done = simreduce("bench", "full:2", "-b", "1M", "-e", "4M")
    document = simreduce("bench", "full:2", "-b", "1M", "-e", "4M", "--json")

    assert (130, "") == (done.status, done.err)
    assert [
        *alone.out.splitlines(),
        "# stopped before all sizes were simulated",
    ] == done.out.splitlines()
    assert (130, False, 1) == (
        document.status,
        json.loads(document.out)["complete"],
        len(json.loads(document.out)["rows"]),
    )


def test_the_reader_of_a_pipe_may_leave():
    """As in `simreduce topo list | head -n 0`: nobody is left to complain to."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "simreduce", "topo", "list"],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)

    assert (0, b"") == (done.returncode, done.stderr)


@pytest.mark.parametrize(
    ("question", "fault"),
    [
        (
            ("bench", "full:4", "--collective", "broadcast", "--faithful"),
            "--faithful: upstream's quirks are in its all-reduces, and this is broadcast",
        ),
        (
            ("explain", "full:4", "--collective", "all_gather", "--gpu-indices", "3,2,1,0"),
            (
                "--gpu-indices: all_gather says which rank holds which part, so its ranks keep "
                "their order"
            ),
        ),
        (
            ("verify", "--algo", "chain", "--collective", "reduce", "--faithful"),
            "--faithful: upstream's quirks are in its all-reduces, and this is reduce",
        ),
    ],
    ids=["bench", "explain", "verify"],
)
def test_options_that_would_be_ignored_are_faults(simreduce, question, fault):
    """A broadcast does go along the order of GPUs that is given."""
    assert (2, "", f"simreduce: {fault}\n") == simreduce(*question)
    assert (
        0
        == simreduce(
            "bench",
            "full:4",
            "--collective",
            "broadcast",
            "--algo",
            "chain",
            "-b",
            "4K",
            "--gpu-indices",
            "3,2,1,0",
        ).status
    )


def test_bench_warns_of_bytes_that_nccl_would_send_by_nics(simreduce):
    """Without peer access NCCL takes a DGX-1 for two nodes."""
    sizes = "-b", "1M", "-e", "1M"
    warning = "# warning: NCCL joins GPUs of one node by its NICs, and these times are of the way"
    split = simreduce("bench", "dgx1v", *sizes, "--nccl", "NCCL_P2P_DISABLE=1").out

    assert warning in split
    assert warning not in simreduce("bench", "dgx1v", *sizes).out
    others = simreduce("bench", "dgx1v", *sizes, "--nccl", "NCCL_P2P_DISABLE=1", "--algo", "ring")
    assert warning not in others.out


def test_a_factor_of_1_that_makes_many_sizes_says_that_it_adds(simreduce):
    """As nccl-tests steps; of a few sizes nothing is said."""
    many = simreduce("bench", "full:2", "-b", "4", "-e", "400", "-i", "4", "-f", "1")
    few = simreduce("bench", "full:2", "-b", "4", "-e", "12", "-i", "4", "-f", "1")

    assert (0, "simreduce: -f 1 adds 4 B (-i) from size to size: 100 sizes\n") == (
        many.status,
        many.err,
    )
    assert (0, "") == (few.status, few.err)


def test_sizes_are_whole_elements_and_each_comes_once(simreduce):
    """Where they differ from what was typed, stderr says so."""
    few = ("bench", "full:2", "--runtime", "ideal", "-b", "5", "-e", "9", "-f", "1.0000001")
    status, out, err = simreduce(*few)
    rows = [line.split()[0] for line in out.splitlines() if not line.startswith("#")]

    assert (0, ["4", "8"]) == (status, rows)
    assert err == ("simreduce: sizes begin with 4 bytes, the nearest multiple of 4 bytes below 5\n")


def test_the_headline_of_a_trace_names_the_calibration(simreduce, tmp_path):
    headline = simreduce("trace", "full:2", "-o", tmp_path / "t.json").out

    assert "t.json: ring on full:2, calibration nominal, " in headline


@pytest.mark.parametrize("command", ["bench full:2 -b 64K", "bench full:2 -b 64K --json", "--help"])
def test_a_closed_stdout_is_no_traceback(command):
    """As `>&-` leaves it."""
    line = f"{sys.executable} -m simreduce {command} >&-"
    done = subprocess.run(
        ["sh", "-c", line], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )

    assert "" == done.stderr


@pytest.mark.slow
def test_all_simulates_what_cannot_win(simreduce, small, monkeypatch):
    """Without it, rows below say what such strategies take at least, in tables and documents."""
    monkeypatch.setattr("simreduce.study.tune.simulate.LONG", 20)
    monkeypatch.setattr("simreduce.study.ranking.BATCH", 2)
    monkeypatch.setattr("simreduce.study.tune.rank.FIRST", 2)
    monkeypatch.setattr("simreduce.app.cli.run.BEST", None)
    scenario = ("run", small, "--workers", "1")
    bench = ("bench", "full:8", "--algo", "all", "-b", "1M", "--workers", "1")
    for command, column in ((scenario, "#"), (bench, "size")):
        cut, whole = simreduce(*command), simreduce(*command, "--all")
        document = json.loads(simreduce(*command, "--json").out)

        assert (0, 0) == (cut.status, whole.status)
        assert column in cut.out
        assert len(document["bounded"]) == sum(" >=" in line for line in cut.out.splitlines()) - (
            "Rows with >=" in cut.out or "rows with >=" in cut.out
        )
        assert document["bounded"]
        assert not json.loads(simreduce(*command, "--all", "--json").out)["bounded"]


def test_every_report_of_kernels_without_fitted_constants_says_that_they_are_nominal(
    simreduce, tmp_path, monkeypatch
):
    """Text and documents of `bench`, `run`, `explain`, sweeps; none where constants are fitted."""
    monkeypatch.chdir(tmp_path)
    said = "times of oneshot are nominal: kernels have Hopper's constants"
    path = tmp_path / "small.toml"
    path.write_text(
        'topology = "mi300x"\nworkload = "bytes:64K"\nstrategies = ["nccl", "oneshot"]\n', "utf-8"
    )
    commands = [
        ("bench", "mi300x", "--algo", "nccl,oneshot", "-b", "64K", "-e", "64K"),
        ("run", path),
        ("explain", "mi300x", "--algo", "oneshot", "-b", "64K"),
    ]
    for command in commands:
        assert said in " ".join(simreduce(*command).out.split())
        assert json.loads(simreduce(*command, "--json").out)["nominal"].startswith(said)
    over = "--over", "strategy=nccl,oneshot", "--over", "size=64K"
    assert said[:40] in simreduce("sweep", "mi300x", *over, "--workers", "1").out
    fitted = simreduce("bench", "dgx-h100", *commands[0][2:], "--json").out
    assert "nominal" not in json.loads(fitted)
