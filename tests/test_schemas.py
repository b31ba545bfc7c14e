"""What commands print for programs: it fits its schema, and no schema has a key that nothing has.

In other tests, the fixture `simreduce` checks every document that a command prints.
"""

from __future__ import annotations

import csv
import doctest
import json
import shlex
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from simreduce_validate.measuring import Interval
from simreduce_validate.remeasure import MeasuredCandidate, MeasuredRanking, document

from simreduce.app.cli import cli
from simreduce.app.cli.reply import Progress
from simreduce.files.formats import documents
from simreduce.files.formats.documents import UNITS, Lines, Output, Record
from simreduce.files.published import published_steps, published_tables
from simreduce.report import accuracy, accuracy as chapters
from simreduce.report.jobs import PLACEMENT
from simreduce.report.ranking import RUN as RANKING, TUNE
from simreduce.report.schemas import outputs
from simreduce.report.sweeps import COMPARED_ORDERS, compare_orders
from simreduce.study.accuracy import AccuracyComparison, Point
from simreduce.study.accuracy.hold_out import Calibrated, LeftOut
from simreduce.study.accuracy.mesh import SERIES, ShardedPoint
from simreduce.study.scenario_files import load_scenario
from simreduce.study.sweep import COLUMNS, NAMES, Figures
from simreduce.study.tune.placement import place
from simreduce.study.tune.prove import everything
from simreduce.study.tune.rank import rank
from simreduce.study.tune.search.tune import tune
from tests.app.cli.command import REPOSITORY
from tests.app.cli.test_accuracy import LOG
from tests.app.cli.test_capacity import FILE as CAPACITY
from tests.app.cli.test_examples import COMMANDS as BY_NAME
from tests.app.cli.test_step_replicas import PLAIN, SMALL
from tests.schemas import declared_keys, faults_of, read_strictly, schema_of, used_keys
from tests.study.capacity.test_copies import MIX, PLAN as COPIES
from tests.topology.importers.files import GRAPHS, NCCL_TESTS, P2P_TEST

RUN = """
topology = "switch:4"
workload = "bytes:64K"
strategies = ["ring", "nccl", "nccl+ddp", "hierarchical_copy", "torus_3d", "psgpu", "copy_to_cpu"]
"""
STEP = """
topology = "switch:4"
workload = "alexnet"
strategies = ["ring", "nccl+ddp"]
[step]
batch = 4
time = "1 ms"
"""
SHARDED = """
topology = "dgx-a100"
workload = "alexnet"
strategies = ["nccl"]
[step]
method = ["ddp", "fsdp", "hsdp"]
batch = 4
time = "1 ms"
activations = "1 MB"
"""
MODEL = """
[[layers]]
name = "first"
forward = "1 GFLOP"
gradients = [{name = "weights", elements = 1000}]
"""
BUCKETS = """
topology = "v100-mesh-4"
workload = "alexnet"
[step]
batch = 8
time = "4 ms"
"""
TRACE = {
    "distributedInfo": {"rank": 0, "world_size": 4},
    "traceEvents": [
        {
            "ph": "X", "cat": "kernel", "name": "ncclDevKernel_X", "ts": 0, "dur": 50,
            "args": {"stream": 20, "correlation": 0, "Collective name": "allreduce",
                     "In msg nelems": 1000, "dtype": "Float", "Group size": 4,
                     "Process Group Ranks": "[0, 1, 2, 3]"},
        },
    ],
}  # fmt: skip
CRAB = """system,case,nodes,victim_nodes,victim,msg_size_bytes,median_avg_us
cresco8,All-to-All,8,4,a2a_comm_only,262144,41.79
cresco8,All-to-All Inc-Congested,8,4,a2a_comm_only,262144,61.71
other,All-to-All,8,4,a2a_comm_only,262144,41.79
other,All-to-All Inc-Congested,8,4,a2a_comm_only,262144,41.71
"""
JOBS = """
topology = "dgx1vx2,fabric=switch,nics=1"
[[job]]
name = "a"
nodes = 2
workload = "bytes:1M"
count = 2
[[traffic]]
name = "b"
pattern = "writes"
nodes = [0]
to = [1]
size = "1 MB"
every = "1 ms"
[[traffic]]
name = "c"
pattern = "permutation"
size = "1 MB"
rate = "1 GB/s"
"""
MESH = """topology = "dgx-a100"
workload = "transformer:layers=4,hidden=1024,heads=16,vocab=51200,seq=1024,experts=4"
[step]
mesh = ["tp=2,pp=2,cp=2", "tp=2,ep=2", "tp=1,ep=3"]
global_batch = 16
"""
FILES = {
    "run.toml": RUN,
    "step.toml": STEP,
    "jobs.toml": JOBS,
    "lost.toml": 'placement = true\nfails = ["nic", "spine"]\n'
    + JOBS.partition("[[traffic]]")[0].replace("bytes:1M", "alexnet").replace("nics=1", "nics=2")
    + 'step = {batch = 8, time = "20 ms"}\n',
    "frontier.toml": 'topology = "frontier"\nworkload = "bytes:1M"\nstrategies = ["nccl"]\n'
    '[step]\nbatch = 8\ntime = "4 ms"\n',
    "fit.toml": JOBS.partition("[[traffic]]")[0],
    "registered.toml": """nccl.registered = true
topology = "dgx1v"
[[job]]
name = "a"
nodes = 1
workload = "bytes:64M"
""",
    "sharded.toml": SHARDED,
    "fsdp.toml": SHARDED.replace('"ddp", "fsdp", "hsdp"', '"fsdp"'),
    "all.toml": 'topology = "ring:4"\nworkload = "bytes:1K"\n',
    "model.toml": MODEL,
    "all-steps.toml": 'topology = "ring:4"\nworkload = "model.toml"\n'
    '[step]\nbatch = 4\ntime = "1 ms"\n',
    "composed.toml": 'topology = "dgx-a100x16"\nworkload = "alexnet"\nstrategies = ["nccl+ddp"]\n'
    '[step]\nbatch = 4\ntime = "1 ms"\n',
    "at-once.toml": STEP.replace("switch:4", "switch:1").replace("1 ms", "0 s"),
    "buckets.toml": BUCKETS,
    "broken.toml": STEP.replace("switch:4", "swich:4"),
    "replicas.toml": SMALL,
    "workload.toml": SMALL.replace('size = "1 MB"', "").replace(
        "[replicas]", 'workload = "bytes:64K"\n[replicas]'
    ),
    "plain.toml": PLAIN,
    "capacity.toml": CAPACITY,
    "mesh-capacity.toml": MESH.replace('topology = "dgx-a100"', "").replace(', "tp=1,ep=3"', "")
    + '[prices.machines.dgx-a100]\nprice = "16 USD/h"\n[[options]]\nmachine = "dgx-a100"\n',
    "demanding.toml": CAPACITY.replace(
        "samples = 1e6",
        'samples = 1e6\nstep_time = "1 s"\nefficiency = 0.1\nsamples_per_second = 1\n'
        'time = "1000 h"\nbudget = "1e9 USD"\nhourly = "1000 USD/h"',
    )
    + '\n[[options]]\nmachine = "v100-mesh-4"\nstep.rate = "5 TFLOP/s"\nstrategy = "nccl:nvls"\n',
    "tokens.toml": CAPACITY.replace(
        "samples = 1e6",
        'tokens = 1e6\ntokens_per_second = 1\ncost_per_million_tokens = "1000 USD"',
    ).replace("[prices", "tokens_per_sample = 196\n[prices", 1),
    "failing.toml": 'fails = "node"\n'
    + CAPACITY.replace("a100-mesh-4", "dgx1v").replace("[[options]]", "[[options]]\nnodes = 2", 2),
    "strict.toml": CAPACITY.replace("samples = 1e6", "samples = 1e6\nefficiency = 0.9999"),
    "copies.toml": COPIES,
    "mix.toml": MIX,
    "mesh.toml": MESH,
    "auto.toml": """topology = "hgx-b200"
workload = "transformer:layers=4,hidden=1024,heads=16,vocab=51200,seq=1024"
[step]
mesh = "auto"
global_batch = 16
""",
    "measured.toml": """topology = "hgx-b200"
workload = "transformer:layers=4,hidden=1024,heads=16,vocab=51200,seq=1024"
[step]
mesh = "tp=2"
global_batch = 16
""",
    "measured.csv": "seconds,tokens\n0.5,16384\n",
    "order.toml": 'topology = "gh200x4,fabric=fat_tree,radix=2,oversubscription=2"\n'
    'workload = "alexnet"\nnodes = "n0,n2,n1,n3"\nstrategies = ["nccl"]\n'
    "[tune]\nplacement = true\n",
    "topology.conf": "SwitchName=a Nodes=h[1-2]\nSwitchName=b Nodes=h[3-4]\n"
    "SwitchName=c Switches=a,b\n",
    "graphs.xml": GRAPHS,
    "p2p.log": P2P_TEST,
    "tests.log": f"# Collective test starting: all_reduce_perf\n{NCCL_TESTS}",
    "nccl.log": LOG,
    "crab.csv": CRAB,
    "trace.json": json.dumps(TRACE),
}
ROOT = str(REPOSITORY)
J = "bench switch:4 -J - -b 1K -e 64K -f 8 --algo ring,nccl"
COMMANDS = f"""
run run.toml --json --workers 1
run all.toml --json --workers 1
run run.toml --json --workers 1 --faithful --slow gpu1=1.5 --nccl NCCL_COLLNET_ENABLE=1
step step.toml --json --workers 1
step all-steps.toml --json --workers 1
step sharded.toml --json --workers 1
step at-once.toml --json --workers 1 --runtime ideal --nccl NCCL_COLLNET_ENABLE=1
step fsdp.toml --json --workers 1
step mesh.toml --json --workers 1 --nccl symmetric=1
tune mesh.toml --json --workers 1 --nccl symmetric=1
step auto.toml --json --workers 1
tune auto.toml --json --workers 1
step composed.toml --json --workers 1
step replicas.toml --json --workers 1 --backups
step workload.toml --json --workers 1
step plain.toml --json --workers 1
bench switch:4 --json -b 1K -e 64K -f 8 --algo ring,nccl
bench switch:4 --json -b 1K --collective all_gather --datatype half
bench switch:4 --json -b 1K --fault gpu0@0us=0
bench full:3 --json -b 1M --algo all --workers 1
bench dgx-a100x2 --json -b 1M --algo nccl
{J}
explain run.toml --json --algo ring --workers 1
explain dgx1v --json -b 1M --slow gpu3=1.5 --collective all_gather --nccl symmetric=1
explain dgx1vx3 --json -b 12345600 --algo direct --nccl NCCL_COLLNET_ENABLE=1
explain mi355x --json -b 1M -g 5 --algo rccl
bench dgx1vx3 --json -b 12345600 --algo direct --nccl NCCL_COLLNET_ENABLE=1
sweep switch:4 --over size=1K,64K --over strategy=ring,nccl,copy_to_cpu --db a.db --json --workers 1
sweep switch:4 --over size=1K,64K --over strategy=ring,nccl --set calibration=dgx1p-tf2018 \\
  --db b.db --json --workers 1
sweep v100-mesh-4 --over size=1K --over strategy=nccl,oneshot --db c.db --json --workers 1
sweep sharded.toml --over update=1ms,2ms --db step.db --json --workers 1
sweep mesh.toml --over micro_batch=1,2 --db mesh.db --json --workers 1
sweep auto.toml --over micro_batch=1,2 --db auto.db --json --workers 1
sweep replicas.toml --over backups=0,1 --db replicas.db --json --workers 1
sweep at-once.toml --over runtime=ideal --db at-once.db --json --workers 1
sweep lost.toml --over job.a.count=1,2 --db jobs.db --json --workers 1
table a.db --json
table a.db --json --columns size,seconds
table a.db --json --pivot size,strategy,seconds
table a.db --json --group size
compare a.db b.db --json
capacity capacity.toml --json --workers 1
capacity mesh-capacity.toml --no-sensitivity --json --workers 1
capacity demanding.toml --json --workers 1 --no-sensitivity
capacity failing.toml --json --workers 1 --no-sensitivity
capacity strict.toml --json --workers 1 --no-sensitivity
capacity tokens.toml --json --workers 1 --no-sensitivity
capacity copies.toml --json --workers 1 --db copies.db
table copies.db --json
prices --json
prices servers-2026 h100-cluster-2024 --json
nccl dgx1v --json
nccl dgx-h100x2 --json --collective all_gather --simulate
verify --algo ring,hierarchical_copy_gcp_v100 -g 3 --json --count 5
verify --all --json --count 5 --workers 1
verify {ROOT}/docs/examples/ring3.xml --json
topo list --json
topo show dgx1v --json
topo show dgx-a100x2,equal_cost=hashed,seed=1 --json
topo check dgx1v --json
topo check broken.toml --json
topo p2p v100-mesh-4 --json
topo rings v100-mesh-4 --json
topo rings v100-mesh-4x17 --json
topo trees v100-mesh-4 --json
topo trees v100-mesh-4 --json --bound --collective broadcast
topo import graphs.xml
topo import p2p.log
topo import tests.log
tune run.toml --json --workers 1 --nccl symmetric=1
tune run.toml --json --workers 1 --target horovod --nccl NCCL_COLLNET_ENABLE=1
tune buckets.toml --json --workers 1 --target pytorch --objective time
tune sharded.toml --json --workers 1 --target deepspeed
tune buckets.toml --json --workers 1 --target nccl --objective time
accuracy nccl --json --workers 1 --only tartan_nccl-v2_broadcast_1GiB_2gpu
accuracy nccl --json --workers 1 --tables all --only gb200_nvl4
accuracy nccl --json --workers 1 --left-out generation --only tartan_nccl-v2_broadcast_1GiB_2gpu
accuracy mesh --json --set table-5 --model megatron-22b
accuracy mesh --json --set deepep
accuracy kernels --json --set vllm-42324
accuracy compute --json
accuracy gpu --json
accuracy interference --json
accuracy congestion crab.csv --json
bench frontier --algo rccl -b 1M -e 1M --json
run frontier.toml --json --workers 1
step frontier.toml --json --workers 1
tune frontier.toml --json --workers 1 --target nccl -g 6
sweep frontier --over strategy=nccl --set size=1M --db frontier.db --json --workers 1
jobs --json jobs.toml
jobs --json lost.toml
jobs --json --fit 1.5 fit.toml
jobs --json registered.toml
bench dgx-h100 --algo oneshot,multimem -b 16K -e 1M -f 8 --json
bench mi300x --algo oneshot,multimem -b 16K --json
calibrate --from-nccl-tests nccl.log --topology v100-mesh-4 --out mine.toml --json
calibrate step measured.csv --scenario measured.toml --out gpu.toml --json
replay {ROOT}/docs/examples/ddp-resnet50.json --topology dgx1v --json
run {ROOT}/docs/examples/ddp-resnet50.json --topology dgx1v --json --workers 1
step {ROOT}/docs/examples/ddp-resnet50.json --topology dgx1v --json --workers 1
tune {ROOT}/docs/examples/ddp-resnet50.json --topology dgx1v --json --workers 1
tune order.toml --json --workers 1
topo place order.toml --nodes topology.conf --json --workers 1
replay trace.json --topology switch:4 --json
"""
LINES = [" ".join(line.split()) for line in COMMANDS.replace("\\\n", " ").strip().splitlines()]
HARNESS = {"calibrate", "validate", "validate-nccl", "validate-record"}
"""Schemas of what runs on devices, or NCCL's library; tests/validate has them."""


@pytest.fixture(scope="session")
def printed(tmp_path_factory) -> dict[str, tuple[str, Any]]:
    """The schema's name and the document of every command line, run in this order."""
    folder = tmp_path_factory.mktemp("schemas")
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # So that quick commands leave strategies undecided, as long ones do.
        patch.setattr("simreduce.study.tune.simulate.LONG", 20)
        patch.setattr("simreduce.study.ranking.BATCH", 2)
        patch.setattr("simreduce.study.tune.rank.FIRST", 2)
        patch.setattr("simreduce.app.cli.explain.everything", lambda: everything()[:3])
        for line in LINES:
            done = CliRunner().invoke(cli, shlex.split(line), standalone_mode=False)
            assert done.stdout, (line, done.exception)
            found[line] = _named(read_strictly(done.stdout))
        found |= {f"{name}, made": _named(each) for name, each in _made().items()}
    return found


def _named(found: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return found.get("schema", "bench-nccl-tests/").partition("/")[0], found


def _made() -> dict[str, dict[str, Any]]:
    """What `--measure` prints, with made-up times of devices; and what takes minutes."""
    ranking = rank(load_scenario("run.toml"))
    first, second = ranking.candidates[:2]
    rows = (
        MeasuredCandidate(1, first, 2e-3, Interval(1e-3, 0.9e-3, 1.1e-3)),
        MeasuredCandidate(2, second, float("nan"), Interval(2e-3, 2e-3, 3e-3), ("wrong sum",)),
    )
    provenance = {"hardware": {"cpu": "a processor"}, "settings": {"backend": "inproc"}}
    more = document(MeasuredRanking(ranking, rows, provenance))
    found = tune(load_scenario("run.toml"), "pytorch")
    waiting = replace(found.rows[0], setting=replace(found.rows[0].setting, cycle=1e-3))
    tied = replace(waiting, moved=2e-3)
    tuned = TUNE.write(replace(found, rows=(tied,))) | {"files": {"a": "text"}}
    left_out = LeftOut("nccl-volta", "dgx1v", np.array([0.1]), np.array([0.2]))
    calibrated = Calibrated(published_tables()[0], 1.0, 1.0, "net", 8, 0.1)
    sharded = ShardedPoint(SERIES[0], 100.0, 90.0, 16, 1e-3, fitted=True)
    placed = PLACEMENT.write(place(load_scenario("step.toml", topology="gh200x2")))
    orders = compare_orders(("a.json", "b.json"), (placed, placed))
    return {
        "placement": placed,
        "compare": COMPARED_ORDERS.write(orders),
        "run": RANKING.write(replace(ranking, candidates=(replace(first, moved=2e-3),))) | more,
        "tune": tuned | {"measured": more["measured"]},
        "left out": _written(accuracy.LEFT_OUT, [left_out]),
        "three sizes": _written(accuracy.THREE_SIZES, [calibrated]),
        "sharded": _written(chapters.SHARDED, [sharded]),
        "mesh": _written(chapters.MESH, _steps(), dispatches=()),
    }


def _steps() -> list[Point]:
    """Recipes on all of their numbers of GPUs, and meshes to choose from."""
    models = ("gpt-3-175b", "megatron-3.6b")
    steps = (step for step in published_steps() if step.model in models)
    return [Point(step, step.seconds, step.seconds) for step in steps]


def _written(chapter: chapters.Chapter, points: list[Any], **about: object) -> dict[str, Any]:
    return chapter.document.write(AccuracyComparison(points, about=about))


@pytest.mark.slow
def test_commands_print_what_their_schemas_say(printed):
    """Every key is declared, with its type; what must be there is."""
    faults = {line: faults_of(found, name) for line, (name, found) in printed.items()}

    assert {} == {line: found for line, found in faults.items() if found}


STOPPED = ("run", "step", "bench", "explain", "sweep", "capacity", "verify", "tune", "accuracy")


@pytest.mark.parametrize("name", STOPPED)
def test_what_is_stopped_prints_what_its_schema_says(name, tmp_path, monkeypatch):
    """After its first result; it says that it is not complete, or that it was stopped."""
    whole = Progress.__call__

    def stopping(self, done=0, *rest):
        if done >= 1:
            raise KeyboardInterrupt
        whole(self, done, *rest)

    for file, text in FILES.items():
        (tmp_path / file).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Progress, "__call__", stopping)
    lines = (line for line in LINES if line.startswith(f"{name} "))
    line = next(line for line in lines if name != "verify" or "--all" in line)
    done = CliRunner().invoke(cli, shlex.split(line), standalone_mode=False)
    found = read_strictly(done.stdout)

    assert 130 == done.return_value
    assert [] == faults_of(found)
    assert found.get("stopped") or not found["complete"]


@pytest.mark.slow
def test_every_schema_has_documents(printed):
    assert set(outputs()) == {name for name, _ in printed.values()} | HARNESS


OF_TODAY = ("advice.error_us", "advice.today_strategy", "advice.today_time_us")


@pytest.mark.slow
def test_no_schema_has_a_key_that_no_document_has(printed):
    """With a value other than null, so that every type is checked."""
    used: dict[str, set[str]] = {}
    for name, found in printed.values():
        used.setdefault(name, set()).update(used_keys(name, found))
    unused = {name: sorted(declared_keys(name) - found) for name, found in used.items()}
    for name in ("step-meshes", "tune-meshes"):  # nobody knows what runs today
        unused[name] = [key for key in unused[name] if key not in OF_TODAY]
    unused["tune-meshes"].remove("candidate.as_good")  # as of `step`

    assert {} == {name: keys for name, keys in unused.items() if keys}


@pytest.mark.slow
def test_every_command_with_json_is_among_them(printed):
    """But for those that need devices, or minutes."""
    with_json = {
        name for name, each in BY_NAME.items() if "as_json" in {p.name for p in each.params}
    }
    tried = {name for name in with_json if any(line.startswith(f"{name} ") for line in printed)}

    assert {"accuracy sharded", "validate"} == with_json - tried


@pytest.mark.slow
def test_csv_has_the_columns_of_the_rows(printed, tmp_path_factory, monkeypatch):
    """Each cell has the type and the unit of its column; an empty one stands for null."""
    assert printed  # which made the database
    monkeypatch.chdir(max(tmp_path_factory.getbasetemp().glob("schemas*")))
    text = CliRunner().invoke(cli, ["table", "a.db", "--csv", "-"], standalone_mode=False).stdout
    schema = schema_of("sweep")["$defs"]["row"]["properties"]
    rows = list(csv.DictReader(text.splitlines()))
    read = {"integer": int, "number": float}
    typed = [
        {
            key: read.get(schema.get(key, {}).get("type", ["string"])[0], str)(cell)
            for key, cell in row.items()
            if cell
        }
        for row in rows
    ]
    whole = printed["table a.db --json"][1]

    assert len(typed) == 6
    assert {"size", "strategy"} == set(rows[0]) - set(schema)
    assert [] == faults_of(whole | {"rows": typed})
    assert [row["seconds"] for row in typed] == [row["seconds"] for row in whole["rows"]]


def test_the_columns_of_a_sweep_are_the_values_of_a_row():
    """In the same order, which a database keeps."""
    assert NAMES == tuple(key.name for key in COLUMNS.keys) == tuple(Figures(state="done").values)


@pytest.mark.parametrize("output", outputs().values(), ids=outputs())
def test_every_key_of_a_document_says_what_it_is(output):
    """In sentences; every number has a unit, and equal names mean equal objects."""
    schema = schema_of(output.name)
    objects = [schema, *schema.get("$defs", {}).values()]

    for each in objects:
        assert each["description"].endswith(".")
        for name, found in each.get("properties", {}).items():
            assert found["description"].endswith("."), name
            kinds = found.get("type", ())
            if "number" in kinds and "string" not in kinds:
                assert found["unit"] in UNITS, name
    assert len(named_records(output)) == len(schema.get("$defs", {}))


def named_records(output: Output) -> set[Record]:
    """The objects in an output, also where two have one name."""
    waiting = [*output.records] if isinstance(output, Lines) else [output]
    found: set[Record] = set()
    while waiting:
        record = waiting.pop()
        kinds = [key.kind for key in record.keys] + ([record.others] if record.others else [])
        new = {each for kind in kinds for each in kind.records} - found
        found |= new
        waiting += new
    return found | set(output.records if isinstance(output, Lines) else ())


@pytest.mark.slow
def test_a_key_too_many_and_a_key_too_few_are_faults(printed):
    """In every kind of document."""
    for name, found in printed.values():
        first = next(iter(found))

        assert faults_of(found | {"surprise": 1}, name)
        assert faults_of({key: value for key, value in found.items() if key != first}, name)


def test_the_example_in_the_docstring_is_real():
    assert (0, 9) == doctest.testmod(documents)
