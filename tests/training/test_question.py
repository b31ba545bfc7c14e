"""What a scenario's `[step]` says, and everything that can be wrong with it."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, strategies as st

from simreduce.errors import InputError
from simreduce.files.formats.syntax import Faults
from simreduce.planners.layouts import layout
from simreduce.study.scenario_files import load_scenario
from simreduce.topology import load_topology
from simreduce.training import StepQuestion, parse_step
from simreduce.training.gpus import GPUS
from simreduce.workload.loader import load_model
from tests.training.small import read_step

MODEL, MACHINE = load_model("resnet50"), load_topology("dgx1p")
SCENARIO = 'topology = "dgx1p"\nworkload = "resnet50"\n[step]\n'


def read(**table: object) -> StepQuestion:
    return read_step(table, MODEL, MACHINE)


def refused(**table: object) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        read(**table)
    return caught.value.problems


def test_every_key_arrives_where_it_belongs():
    """Times in seconds."""
    asked = read(
        batch=32, time="100 ms", update="2 ms", consistency="relaxed", streams=2,
        variable_update="replicated", all_reduce_spec="nccl", packing="packs=2",
    )  # fmt: skip
    job = asked.job

    assert (32, 0.002, "relaxed", True) == (job.batch, job.update, job.consistency, job.barrier)
    assert not read(batch=1, time="1 s", barrier=False).job.barrier
    assert pytest.approx(0.1) == job.profile.seconds
    assert ("replicated", 2) == (asked.mode, asked.streams)
    assert 0.005 == read(batch=1, time="1 s", cycle="5 ms", variable_update="horovod").cycle
    assert ("nccl", "packs=2") == (asked.flags.all_reduce_spec, asked.flags.packing)
    served = read(
        batch=1, time="1 s", variable_update="parameter_server", local_parameter_device="cpu"
    )
    assert "cpu" == served.flags.local_parameter_device
    method = asked.method(None, layout(MACHINE))
    assert ("replicated, nccl+packs=2", 2) == (method.name, method.streams)


def test_a_batch_and_a_time_are_enough():
    """Strong consistency, a barrier, and the library's own queues."""
    asked = read(batch=1, time="1 s")

    assert ("", None, 1e-3) == (asked.mode, asked.streams, asked.cycle)
    assert (0.0, "strong", True, {}) == (
        asked.job.update, asked.job.consistency, asked.job.barrier, dict(asked.job.slow),
    )  # fmt: skip


def test_rates_by_device():
    """Of a GPU by its name before that of its model; the fastest is the profile's."""
    asked = read(batch=64, rate={"Tesla P100-SXM2-16GB": "4 TFLOP/s", "gpu3": "2 TFLOPS"})

    assert 64 * MODEL.flops / 4e12 == pytest.approx(asked.job.profile.seconds)
    assert {f"gpu{i}": 2.0 if i == 3 else 1.0 for i in range(8)} == asked.job.slow
    assert {1.0} == set(read(batch=1, rate="4 TFLOP/s").job.slow.values())


def test_every_fault_is_told_at_once():
    """With its key, and what would be right."""
    assert (
        "step.bacth: unknown key (did you mean 'batch'?)",
        "step.batch: missing; must be a whole number from 1 to 1000000000",
        "step.update: 3 has no unit; write a time as text, for example '1.5 us' or '700 ns'",
        "step.cycle: '1' has no unit; write for example '1.5 us' or '700 ns'",
        "step.streams: must be a whole number from 0 to 1000000, got -1",
        "step.barrier: must be true or false, got 'no'",
        "step.variable_update: unknown mode 'paramter_server' (did you mean 'parameter_server'?)",
        "step.consistency: unknown consistency 'stale' (did you mean 'staged'?)",
        "step.hierarchical_copy: must be true or false, got 1",
        "step.ps_tasks[0]: must be a whole number from 0, got 'a'",
        "step: give at most one of time, rate, profile, gpu; it has time and rate",
    ) == refused(
        bacth=1, time="1 s", rate="1 TFLOP/s", update=3, cycle="1", streams=-1, barrier="no",
        variable_update="paramter_server", consistency="stale", hierarchical_copy=1, ps_tasks=["a"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (
            {"batch": 0, "time": "1 s"},
            "step.batch: must be a whole number from 1 to 1000000000, got 0",
        ),
        (
            {"batch": True, "time": "1 s"},
            "step.batch: must be a whole number from 1 to 1000000000, got true",
        ),
        (
            {"batch": 1},
            (
                "step.gpu: missing; the machine's GPUs (Tesla P100-SXM2-16GB) are not known: name "
                f"one of {', '.join(GPUS)}, or a file; or give a time, a rate or a profile"
            ),
        ),
        (
            {"batch": 1, "compute": "H100"},
            "step.compute: unknown key (did you mean 'gpu'?)",
        ),
        (
            {"batch": 1, "time": 5},
            "step.time: 5 has no unit; write a time as text, for example '1.5 us' or '700 ns'",
        ),
        (
            {"batch": 1, "rate": "5 GB/s"},
            (
                "step.rate: '5 GB/s': unknown unit 'GB/s' for a rate of computing; write for "
                "example "
                "'6.5 TFLOP/s' or '300 GFLOPS'"
            ),
        ),
        ({"batch": 1, "rate": "0 TFLOP/s"}, "step.rate: must be a rate above 0"),
        (
            {"batch": 1, "rate": {"gpu9": "1 TFLOP/s"}},
            "step.rate.gpu9: no GPU or model has this name (did you mean 'gpu7'?)",
        ),
        (
            {"batch": 1, "rate": {"gpu1": "1 TFLOP/s"}},
            "step.rate: there is none for gpu0, gpu2, gpu3, gpu4, gpu5",
        ),
        ({"batch": 1, "profile": "none.csv"}, "step.profile: none.csv: there is no such file"),
        ({"batch": 1, "profile": 3}, "step.profile: must be text, got 3"),
        (
            {"batch": 1, "time": "1 s", "packing": "packs=2"},
            "step.packing: is for variable_update; strategies say how to reduce",
        ),
        (
            {"batch": 1, "time": "1 s", "update": "1 s", "barrier": False},
            "step.update: needs a barrier, a time at which all variables are updated",
        ),
        (
            {"batch": 1, "time": "1 s", "cycle": "1e-300 s"},
            "step.cycle: must be from 1 ns to 1000 h, or 0 s for none",
        ),
        ({"batch": 1, "rate": "1e-300 FLOP/s"}, "step.time, rate or profile: more than 1000 h"),
        (
            {"batch": 1, "time": "1 s", "update": "2000 h"},
            "step.update: must be at most 1000 h, got '2000 h'",
        ),
        (
            {"batch": 1, "time": "1 s", "consistency": "staged"},
            (
                'step.consistency: "staged" delays reads, which need variable_update = '
                '"parameter_server"'
            ),
        ),
        (
            {
                "batch": 1,
                "time": "1 s",
                "variable_update": "parameter_server",
                "consistency": "relaxed",
            },
            (
                'step.consistency: "relaxed" delays all-reduces; parameter_server sends gradients '
                "to "
                "their servers"
            ),
        ),
    ],
)
def test_what_is_wrong_with_a_key(table, says):
    assert (says,) == refused(**table)


@pytest.mark.parametrize(
    ("mode", "rest", "unused", "when"),
    [
        (
            "replicated",
            {"all_reduce_spec": "nccl"},
            [
                "hierarchical_copy",
                "network_topology",
                "ps_tasks",
                "local_parameter_device",
                "cycle",
            ],
            " with all_reduce_spec",
        ),
        (
            "replicated",
            {"hierarchical_copy": True, "network_topology": "dgx1"},
            ["local_parameter_device", "ps_tasks"],
            " with hierarchical_copy",
        ),
        (
            "replicated",
            {"packing": "packs=2"},
            ["network_topology", "ps_tasks"],
            " without hierarchical_copy",
        ),
        (
            "horovod",
            {"cycle": "5 ms", "packing": "fusion=1M"},
            ["local_parameter_device", "all_reduce_spec"],
            "",
        ),
        ("horovod", {"packing": "packs=2"}, ["cycle"], " without fusion"),
        (
            "parameter_server",
            {"streams": 1},
            ["packing", "all_reduce_spec", "cycle", "ps_tasks"],
            " on one machine",
        ),
        ("distributed_replicated", {"ps_tasks": [0]}, ["packing", "cycle"], ""),
        (
            "distributed_all_reduce",
            {"all_reduce_spec": "xring"},
            ["hierarchical_copy", "ps_tasks"],
            "",
        ),
        ("independent", {}, ["packing", "streams", "cycle"], ""),
    ],
)
def test_keys_that_a_mode_does_not_read_are_faults(mode, rest, unused, when):
    """Those that it reads are not."""
    values = {
        "hierarchical_copy": True,
        "network_topology": "dgx1",
        "ps_tasks": [0],
        "local_parameter_device": "cpu",
        "cycle": "1 ms",
        "all_reduce_spec": "nccl",
        "packing": "packs=2",
        "streams": 1,
    }
    given = {"batch": 1, "time": "1 s", "variable_update": mode, **rest}

    assert mode == read(**given).mode
    assert sorted(f"step.{key}: {mode}{when} does not use it" for key in unused) == sorted(
        refused(**given, **{key: values[key] for key in unused if key not in rest})
    )


def test_a_cycle_that_no_strategy_has_is_a_fault(tmp_path):
    """But strategies of the command line may do without it."""
    path = tmp_path / "mine.toml"
    path.write_text(
        'strategies = ["nccl"]\n' + SCENARIO + 'batch = 8\ntime = "1 s"\ncycle = "1 ms"\n', "utf-8"
    )

    with pytest.raises(InputError, match=r"step.cycle: is for Horovod's buffers"):
        load_scenario(str(path))
    assert load_scenario(str(path), strategies=["xring"]).step
    path.write_text(path.read_text("utf-8").replace("nccl", "nccl+fusion"), "utf-8")
    assert 1e-3 == load_scenario(str(path)).step.cycle


@pytest.mark.parametrize(
    ("how", "factor"),
    [({"time": "100 ms"}, 0.25), ({"rate": "5 TFLOP/s"}, 0.25), ({"time": "0 s"}, 1.0)],
)
def test_another_batch_computes_as_much_longer(how, factor):
    """Of the table's batch is what was measured, and FLOPs are a sample's."""
    table = {"batch": 64, **how}
    question = read_step(table, MODEL, MACHINE, batch=16)
    before, after = read(**table).job, question.job

    assert 16 == after.batch
    assert factor * before.profile.seconds == pytest.approx(after.profile.seconds)
    assert ("time" in how) == ("in proportion, from a batch of 64" in after.profile.source)
    assert before.profile == read_step(table, MODEL, MACHINE, batch=64).job.profile


def test_another_batch_of_a_measured_profile(tmp_path):
    rows = "".join(f"{layer.name},1 ms,2 ms\n" for layer in MODEL.layers)
    (tmp_path / "layers.csv").write_text("layer,forward,backward\n" + rows, "utf-8")
    table = {"batch": 8, "profile": str(tmp_path / "layers.csv")}

    assert (
        pytest.approx((0.002,) * 54)
        == read_step(table, MODEL, MACHINE, batch=16).job.profile.forward
    )


def test_faults_are_told_though_the_machine_has_some(tmp_path):
    """All that need neither machine nor model."""
    path = tmp_path / "mine.toml"
    path.write_text(
        'topology = "dgx9"\nworkload = "resnet5"\n[step]\nbatch = 0\nrate.x = "1 GB/s"\nbarier = '
        "true\n",
        "utf-8",
    )
    with pytest.raises(InputError) as caught:
        load_scenario(str(path))
    found = [problem.removeprefix(f"{path}: ") for problem in caught.value.problems]

    assert ["topology:", "workload:", "step.barier:", "step.batch:", "step.rate.x:"] == [
        p.split(" ")[0] for p in found
    ]


def test_a_step_that_is_no_table():
    with pytest.raises(InputError, match="step: must be a table, got 3"):
        read_step(3, MODEL, MACHINE)


def test_a_scenario_has_the_question(tmp_path):
    """Its profile is looked for beside it, and it goes to other processes."""
    rows = "".join(f"{layer.name},1 ms,2 ms\n" for layer in MODEL.layers)
    (tmp_path / "layers.csv").write_text("layer,forward,backward\n" + rows, "utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(SCENARIO + 'batch = 8\nprofile = "layers.csv"\n', "utf-8")
    scenario = load_scenario(str(path))

    assert 54 * 0.003 == pytest.approx(scenario.step.job.profile.seconds)
    assert scenario.step == pickle.loads(pickle.dumps(scenario)).step  # noqa: S301 - our own
    other = load_scenario(str(path), batch=16).step.job
    assert (16, pytest.approx(2 * 54 * 0.003)) == (other.batch, other.profile.seconds)


def test_the_faults_of_a_step_are_told_with_those_of_its_scenario(tmp_path):
    """A mode and strategies exclude each other."""
    path = tmp_path / "mine.toml"
    path.write_text(
        'strategies = ["ring"]\nrepeat = 0\n'
        + SCENARIO
        + 'batch = 8\ntime = "1 s"\nvariable_update = "horovod"\n',
        "utf-8",
    )
    with pytest.raises(InputError) as caught:
        load_scenario(str(path))

    assert [
        "repeat: must be a whole number from 1 to 1000, got 0",
        "strategies: step.variable_update says how to reduce; give one of the two",
    ] == [problem.removeprefix(f"{path}: ") for problem in caught.value.problems]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(0, 3), max_size=2),
    st.sampled_from(
        [
            "1 ms",
            "2 TFLOP/s",
            "strong",
            "replicated",
            "cpu",
            "layers.csv",
            "nan s",
            "1e999 s",
            "packs=2",
        ]
    ),
    st.dictionaries(st.sampled_from(["gpu0", "x"]), st.sampled_from(["1 TFLOP/s", 3]), max_size=2),
)
KEYS = st.sampled_from(
    [
        "batch",
        "time",
        "rate",
        "profile",
        "update",
        "consistency",
        "barrier",
        "streams",
        "cycle",
        "variable_update",
        "local_parameter_device",
        "all_reduce_spec",
        "hierarchical_copy",
        "network_topology",
        "packing",
        "ps_tasks",
        "x",
    ]
)


@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_table_is_read_or_refused(table):
    """With faults that name the table, and nothing else."""
    problems: tuple[str, ...] = ()
    batch = 0
    try:
        batch = read_step(table, MODEL, MACHINE).job.batch
    except InputError as error:
        problems = error.problems

    assert (batch >= 1) == (not problems)
    assert all(problem.startswith("step") for problem in problems)


def test_what_depends_on_strategies_is_told_with_other_faults_and_not_if_they_are_faulty(tmp_path):
    """A mode beside strategies is one fault more; whether one of them has Horovod's buffers is not
    known of misspelt ones.
    """
    path = tmp_path / "s.toml"
    head = 'topology = "full:2"\nworkload = "bytes:1M"\n'
    path.write_text(
        head
        + 'strategies = ["ring"]\n[step]\nbatch = 1\ntime = "3"\n'
        + 'variable_update = "parameter_server"\n'
    )
    with pytest.raises(InputError) as both:
        load_scenario(str(path))
    path.write_text(
        head + 'strategies = ["ring+fusino"]\n[step]\nbatch = 1\ntime = "3 ms"\ncycle = "1 ms"\n'
    )
    with pytest.raises(InputError) as misspelt:
        load_scenario(str(path))

    assert ["step.time", "strategies"] == [p.split(": ")[1] for p in both.value.problems]
    assert ["strategies[0]"] == [p.split(": ")[1] for p in misspelt.value.problems]


def test_methods_and_how_they_share():
    """One or several; sizes, dtypes and passes as the program takes them."""
    asked = read(
        batch=1, time="1 s", method="hsdp", accumulate=4, no_sync=False,
        sharding={"group": 4, "units": "64 MB", "param_dtype": "bfloat16", "limit_all_gathers": 3},
    )  # fmt: skip
    shared = asked.sharding

    assert (("hsdp",), 4, False) == (asked.methods, asked.job.accumulate, asked.job.no_sync)
    assert shared is not None
    assert (4, 64_000_000, (3, 3), 3) == (
        shared.group, shared.units, shared.wire(0), shared.limit_all_gathers,
    )  # fmt: skip
    several = read(batch=1, time="1 s", method=["ddp", "zero2"])
    assert ("ddp", "zero2") == several.methods
    assert None is read(batch=1, time="1 s").sharding
    halved = read(batch=1, time="1 s", method="ddp", sharding={"reduce_dtype": "float16"})
    assert {1} == {g.dtype for g in halved.replicated.job.model.workload.gradients}
    assert MODEL.workload == several.replicated.job.model.workload


ONE_OF = "must be one of ddp, zero1, zero2, zero3, fsdp, hsdp, fsdp2"
A_UNIT = "must be blocks, layers, model or a size such as '64 MB'"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"method": "fsp"}, f"step.method: {ONE_OF}, got 'fsp' (did you mean 'fsdp'?)"),
        ({"method": ["fsdp", "fsdp"]}, "step.method[1]: fsdp stands there twice"),
        ({"method": ["fsdp", "fsdp2"]}, "step.method[1]: fsdp2 stands there twice"),
        ({"method": []}, f"step.method: {ONE_OF}, got []"),
        ({"sharding": {}}, 'step.sharding: is for a method; give one, such as method = "fsdp"'),
        ({"method": "fsdp", "sharding": {"group": 4}},
         "step.sharding.group: is for hsdp; the others share among all GPUs"),
        ({"method": "hsdp", "sharding": {"group": 1}},
         "step.sharding.group: must be a whole number from 2 to 1000000, got 1"),
        ({"method": "fsdp", "sharding": {"units": "block"}},
         f"step.sharding.units: {A_UNIT}, got 'block' (did you mean 'blocks'?)"),
        ({"method": "fsdp", "streams": 2},
         "step.streams: fsdp does not use it; step.sharding.streams says how many"),
        ({"method": "fsdp", "cycle": "1 ms"}, "step.cycle: fsdp does not use it"),
        ({"method": "zero2", "consistency": "relaxed"},
         "step.consistency: zero2 reduces the gradients of its own step"),
        ({"method": "fsdp", "barrier": False},
         "step.barrier: fsdp gathers updated parameters in the next step"),
        ({"accumulate": 2, "barrier": False}, "step.accumulate: needs a barrier"),
        ({"accumulate": 2, "consistency": "relaxed"},
         'step.accumulate: needs consistency = "strong"'),
        ({"no_sync": True}, "step.no_sync: is for a step of several passes; give accumulate"),
        ({"method": "zero2", "accumulate": 2, "no_sync": True},
         "step.no_sync: zero2 has a rule of its own"),
        ({"method": "fsdp", "variable_update": "replicated"},
         "step.method: tf_cnn_benchmarks has none; leave out variable_update"),
        ({"method": "fsdp", "sharding": {"backward_prefetch": "before"}},
         "step.sharding.backward_prefetch: unknown prefetch 'before'; known are pre, post, none"),
    ],
)  # fmt: skip
def test_faults_of_methods(table, says):
    """With the key, and the nearest spelling."""
    assert says in refused(batch=1, time="1 s", **table)


def test_fsdp2_is_fsdp():
    """PyTorch's `fully_shard` issues the same."""
    assert ("fsdp",) == read(batch=1, time="1 s", method="fsdp2").methods


def test_blocks_need_numbered_layers():
    """A list of gradients without them says so at the key."""
    with pytest.raises(InputError, match=r"step.sharding.units: units = .blocks.: no name"):
        read_step(
            {"batch": 1, "time": "1 s", "method": "fsdp", "sharding": {"units": "blocks"}},
            load_model("alexnet"), MACHINE,
        )  # fmt: skip


@pytest.mark.parametrize(("rate", "faults"), [("126 TFLOP/s", 1), ("125 TFLOP/s", 0)])
def test_no_gpu_computes_faster_than_its_data_sheet_says(rate, faults):
    """The fault names the peak and where it is from."""
    found = Faults("")
    parse_step({"batch": 1, "rate": rate}, MODEL, load_topology("dgx1v"), found)

    says = "is more than the 125 TFLOP/s of dense products of 16 bits on the data sheet of V100"
    assert [f"step.rate: 126 TFLOP/s {says}"] * faults == found.problems
