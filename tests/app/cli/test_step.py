"""`simreduce step`: what it prints, and what it refuses."""

from __future__ import annotations

import gzip
import json
from contextlib import contextmanager

import pytest

SMALL = """
topology = "full:4"
workload = "alexnet"
runtime = "ideal"
strategies = ["ring", "nccl+ddp"]
[step]
batch = 16
time = "20 ms"
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL, "utf-8")
    return path


def test_one_document_with_json(simreduce, small):
    status, out, err = simreduce("step", small, "--json", "--workers", "1")
    document = json.loads(out)

    assert (0, "") == (status, err)
    assert 2 == len(document["candidates"])
    assert document["step_time_us"] >= 20_000 == pytest.approx(document["compute_us"])


def test_options_stand_in_the_place_of_the_scenarios_keys(simreduce, small):
    """Strategy, batch, runtime and how many GPUs."""
    question = (
        "step",
        small,
        "--json",
        "--workers",
        "1",
        "--algo",
        "xring+packs=2",
        "--batch",
        "32",
    )
    document = json.loads(simreduce(*question, "--runtime", "tensorflow", "-g", "2").out)

    assert (32, "tensorflow", 2) == tuple(document[key] for key in ("batch", "runtime", "ranks"))
    found = {row["strategy"]: row["compute_us"] for row in document["candidates"]}
    assert {"xring+packs=2", "copy_to_gpus"} == {*found}  # and what runs today
    assert 40_000 == pytest.approx(found["xring+packs=2"])  # twice the batch


def test_a_disturbance(simreduce, small):
    """A slow device holds up all."""
    question = ("step", small, "--json", "--workers", "1", "--algo", "ring")
    calm, slow = (
        json.loads(simreduce(*question, *more).out) for more in ((), ("--slow", "gpu1=1.5"))
    )

    assert slow["compute_us"] == pytest.approx(1.5 * calm["compute_us"])
    assert "gpu1 1.5 times as slow" == slow["disturbance"]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_timeline_in_a_file(simreduce, small, tmp_path, name):
    """Plain, or compressed."""
    path = tmp_path / name
    status, out, _ = simreduce("step", small, "--workers", "1", "--trace", path)
    content = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    document = json.loads(content)

    assert 0 == status
    assert "a step takes" in out
    assert document["otherData"]["strategy"] in out
    assert {"compute", "reductions"} <= {
        e["args"]["name"] for e in document["traceEvents"] if e.get("name") == "process_name"
    }


def test_every_fault_is_told_at_once(simreduce, small, tmp_path):
    """Those of options, of the scenario and of its step."""
    small.write_text(
        SMALL.replace("16", '"many"').replace("20 ms", "20").replace("full:4", "fool:4"), "utf-8"
    )
    status, out, err = simreduce(
        "step", small, "--algo", "rng", "--jitter", "3", "--trace", tmp_path / "none" / "t.json"
    )
    told = err.splitlines()

    assert (2, "") == (status, out)
    assert any("cannot be written: there is no such folder" in line for line in told)
    assert any("topology: no topology 'fool:4'" in line for line in told)
    assert any("contains invalid alg rng" in line for line in told)
    assert any("--jitter 3:" in line for line in told)
    small.write_text(SMALL.replace("16", '"many"').replace("20 ms", "20"), "utf-8")
    err = simreduce("step", small, "-g", "9").err

    assert [
        "step.batch: must be a whole number from 1 to 1000000000, got 'many'",
        "step.time: '20' has no unit; write for example '1.5 us' or '700 ns'",
        "-g 9: cannot take 9 of 4 devices; choose from 1 to 4",
    ] == [line.removeprefix("simreduce: ").removeprefix(f"{small}: ") for line in err.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("dgx1v-resnet50",), "dgx1v-resnet50: it has no [step], which says what a step computes"),
        (("step-dgx1p-resnet5",), "did you mean 'step-dgx1p-resnet50'?"),
        (("step-dgx1p-resnet50", "-g", "9"), "cannot take 9 of 8 devices"),
        (
            ("step-dgx1p-resnet50", "--batch", "0"),
            "--batch: must be a whole number from 1 to 1000000000, got 0",
        ),
        (
            ("dgx1v-resnet50", "--slow", "gpu9=2"),
            (
                "simreduce: dgx1v-resnet50: it has no [step], which says what a step computes\n"
                "simreduce: dgx1v: no device 'gpu9'"
            ),
        ),
        (
            ("step-p3x4-parameter-servers", "--algo", "ring"),
            "step.variable_update says how to reduce; give one of the two",
        ),
    ],
)
def test_what_is_refused(simreduce, arguments, says):
    status, out, err = simreduce("step", *arguments)

    assert (2, "") == (status, out)
    assert says in err


def test_what_is_stopped_tells_what_it_has(simreduce, small, monkeypatch):
    """With the status of Ctrl-C."""

    @contextmanager
    def interrupted(work, _workers):
        def work_on(methods):
            yield 0, work(methods[0])
            raise KeyboardInterrupt

        yield work_on

    monkeypatch.setattr("simreduce.study.ranking.working", interrupted)
    status, out, _ = simreduce("step", small, "--algo", "ring", "--algo", "xring", "--json")
    text = simreduce("step", small, "--algo", "ring", "--algo", "xring").out

    document = json.loads(out)
    assert (130, False, ["ring"]) == (
        status,
        document["complete"],
        [c["strategy"] for c in document["candidates"]],
    )
    assert "stopped with 1 other untried" in text


def test_a_deadlock_is_told(simreduce, small):
    """With exit status 1."""
    status, out, err = simreduce("step", small, "--workers", "1", "--fault", "gpu0@0=0")

    assert (1, "") == (status, out)
    assert "can never finish" in err


SHARDED = """
topology = "switch:4"
workload = "gpt2"
runtime = "ideal"
strategies = ["ring", "ring+ddp"]
[step]
method = ["ddp", "zero1", "fsdp"]
batch = 1
time = "20 ms"
accumulate = 2
[step.sharding]
param_dtype = "bfloat16"
"""


def test_methods_are_ranked_together(simreduce, tmp_path):
    """With every strategy, those that pack for ddp alone; what a GPU holds, and the lanes."""
    path, trace = tmp_path / "sharded.toml", tmp_path / "trace.json"
    path.write_text(SHARDED, "utf-8")
    document = json.loads(simreduce("step", path, "--json", "--workers", "1").out)
    status, out, _ = simreduce("step", path, "--workers", "1", "--trace", trace)
    rows = {row["strategy"]: row for row in document["candidates"]}
    memory = {name: row["memory_bytes"]["peak"] for name, row in rows.items()}

    assert {"ddp, ring", "ddp, ring+ddp", "zero1, ring", "fsdp, ring"} == set(rows)
    assert [] == document["refused"]
    assert max(memory["fsdp, ring"], memory["zero1, ring"]) < memory["ddp, ring"]
    assert 0 == status
    assert "a GPU holds" in out
    for name in ("zero1, ring", "fsdp, ring"):
        exposed = rows[name]["exposed_by_us"].values()
        assert sum(exposed) == pytest.approx(rows[name]["exposed_us"])
    path.write_text(
        SHARDED.replace('["ddp", "zero1", "fsdp"]', '"fsdp"').replace(', "ring+ddp"', "")
    )
    status, out, _ = simreduce("step", path, "--workers", "1", "--trace", trace)
    lanes = {
        e["args"]["name"]
        for e in json.loads(trace.read_bytes())["traceEvents"]
        if e.get("name") == "process_name"
    }
    assert {"compute", "all-gather", "reduce-scatter", "links and memories: cable"} == lanes
    assert "exposed by all-gather" in out


def test_a_strategy_that_no_method_accepts(simreduce, tmp_path):
    """The reason beside the others; alone, the reason and nothing else."""
    path = tmp_path / "sharded.toml"
    text = SHARDED.replace('["ddp", "zero1", "fsdp"]', '"fsdp"')
    path.write_text(text, "utf-8")
    reason = "ring+ddp: +ddp packs gradients for an all-reduce"
    status, out, _ = simreduce("step", path, "--workers", "1")
    document = json.loads(simreduce("step", path, "--json", "--workers", "1").out)
    path.write_text(text.replace('"ring", "ring+ddp"', '"ring+ddp"'), "utf-8")
    alone = simreduce("step", path, "--workers", "1")

    assert (0, ["fsdp, ring"]) == (status, [row["strategy"] for row in document["candidates"]])
    assert f"Not possible here (1):\n  fsdp, ring+ddp: {reason}" in out
    assert ["fsdp, ring+ddp"] == [row["strategy"] for row in document["refused"]]
    assert (2, "") == (alone.status, alone.out)
    assert f"fsdp, ring+ddp: {reason}" in alone.err


def test_a_time_in_which_no_gpu_computes_a_pass_is_pointed_out(simreduce, tmp_path):
    path = tmp_path / "fast.toml"
    lines = 'topology = "dgx-h100"\nworkload = "gpt2"\nstrategies = ["nccl"]\n[step]\nbatch = 64\n'
    path.write_text(f'{lines}time = "5 ms"\n', "utf-8")

    assert "more than its GPUs can do: check the time" in simreduce("step", path).out
    path.write_text(f'{lines}time = "500 ms"\n', "utf-8")
    assert "more than its GPUs can do" not in simreduce("step", path).out


def test_what_is_exported_for_deepspeed_is_the_same_question(simreduce, tmp_path):
    """Of stage 2 in bfloat16, of two passes: the step takes as long."""
    path, config = tmp_path / "asked.toml", tmp_path / "ds_config.json"
    path.write_text(
        'topology = "dgx-h100"\nworkload = "gpt2"\nstrategies = ["nccl"]\nframework = "deepspeed"\n'
        '[step]\nbatch = 4\naccumulate = 2\nmethod = "zero2"\n'
        '[step.sharding]\nparam_dtype = "bfloat16"\nunits = "40 MB"\n'
    )
    asked = json.loads(simreduce("step", path, "--json", "--workers", "1").out)
    config.write_text(simreduce("export", "deepspeed", path, "--algo", "nccl").out)
    machine = "--workload", "gpt2", "--topology", "dgx-h100", "--workers", "1"
    read = simreduce("step", config, "--json", *machine)

    assert (read.status, read.err) == (0, "")
    assert json.loads(read.out)["step_time_us"] == asked["step_time_us"]
    unread = simreduce("step", config)
    assert unread.status == 2
    assert "--workload: missing" in unread.err
    assert "--topology: missing" in unread.err
