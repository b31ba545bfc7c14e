"""What each target gets, read back by a reader of what its documentation says."""

from __future__ import annotations

import ast
import json
import re
import shlex
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.computing.workers import time_left, within
from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError
from simreduce.export import export, nearest, why_not
from simreduce.export.framework import Choice
from simreduce.export.frameworks import TARGETS
from simreduce.files.formats.syntax import Faults
from simreduce.planners.msccl import read_algorithm
from simreduce.planners.msccl.interpreter import problems_of
from simreduce.planners.nccl import DEFAULTS, Settings, choose, read_settings
from simreduce.planners.nccl.constants import COLLECTIVES, Rule, read_tuner
from simreduce.planners.nccl.environment import read_assignments
from simreduce.planners.packing import DdpBuckets
from simreduce.planners.strategy import parse_strategy
from simreduce.topology import Folded, load_machine
from simreduce.training.sharded import Sharding
from simreduce.workload import Gradient, Workload
from simreduce.workload.loader import load_workload
from tests.thorough import examples

MIB = 1 << 20


@dataclass(frozen=True)
class Sharded:
    """Settings of a sharded method."""

    forward_prefetch: int = 1
    backward_prefetch: str = "post"
    limit_all_gathers: int = 0
    reshard_after_forward: bool = True
    param_dtype: int | None = 3
    reduce_dtype: int | None = 0
    group: int = 0
    units: str | int = ""
    overlap: bool = True


@cache
def setup(machine: str) -> Setup:
    return Setup(machine)


def choice(strategy: str, machine: str = "dgx1v", workload: str = "resnet50", **more) -> Choice:
    return Choice(setup(machine), load_workload(workload), parse_strategy(strategy), **more)


def plugin(text: str) -> list[dict]:
    """The rows of the tuner's file, read strictly by the columns of the plugin's README, and by
    what its code does: lines of less than 256 characters, fields without blanks or empty ones.
    """
    columns = [
        "collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels", "nNodes",
        "nRanks", "numPipeOps", "regBuff",
    ]  # fmt: skip
    words = {
        "collective_type": {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"},
        "algorithm": {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree",
                      "pat"},
        "protocol": {"ll", "ll128", "simple"},
    }  # fmt: skip
    rows = []
    for line in text.splitlines():
        assert len(line) < 255
        if not line or line.startswith("#"):
            continue
        cells = line.split(",")
        assert 8 <= len(cells) <= 10
        row = dict(zip(columns, cells, strict=False))
        for column, cell in row.items():
            if column in words:
                assert cell in words[column]
            else:
                assert re.fullmatch(r"-1|\d+", cell)
                row[column] = int(cell)
        assert 0 <= row["min_bytes"] <= row["max_bytes"] < 1 << 64
        assert row["channels"] != -1  # the plugin's code makes one channel of it
        rows.append(row)
    return rows


def environment(text: str) -> dict[str, str]:
    """The lines `NAME=value`, as a shell reads them."""
    found = dict(word.split("=", 1) for line in text.splitlines()
                 for word in shlex.split(line, comments=True))  # fmt: skip
    assert all(re.fullmatch(r"[A-Z_0-9]+", name) for name in found)
    return found


@pytest.mark.parametrize("machine", ["dgx1v", "dgx-a100x2", "dgx-h100x4"])
def test_the_tuners_file_says_what_nccl_would_choose_itself(machine):
    """At every size of every collective, so that nothing changes but what is meant to."""
    made = choice("nccl", machine)
    text = export("nccl", made)["nccl_tuner.csv"]
    rows, rules = plugin(text), read_tuner(text, "nccl_tuner.csv")

    assert len(rows) == len([rule for rule in rules if rule.algorithm])
    at = made.facts.nodes, made.facts.n
    assert {(row["nNodes"], row["nRanks"]) for row in rows} == {at, (-1, -1)}
    for collective in COLLECTIVES:
        name = collective.replace("_", "")
        own = [row for row in rows if row["collective_type"] == name and row["nRanks"] > 0]
        assert (own[0]["min_bytes"], own[-1]["max_bytes"]) == (0, (1 << 64) - 1)
        for row, following in pairwise(own):
            assert following["min_bytes"] == row["max_bytes"] + 1
        for row in own:
            for nbytes in {max(row["min_bytes"], 1), row["max_bytes"]}:
                alone = choose(made.facts, collective, nbytes)
                ruled = choose(made.facts, collective, nbytes, Settings(tuner=rules))
                assert (ruled.algorithm, ruled.protocol, ruled.channels) == (
                    alone.algorithm, alone.protocol, alone.channels,
                )  # fmt: skip


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 1 << 36))
def test_the_tuners_file_has_no_stretch_between_its_edges_that_differs(nbytes):
    made = choice("nccl", "dgx-a100x2")
    rules = _tuner_rules()
    alone, ruled = (choose(made.facts, "all_reduce", nbytes, given)
                    for given in (DEFAULTS, Settings(tuner=rules)))  # fmt: skip
    assert (ruled.algorithm, ruled.protocol, ruled.channels) == (
        alone.algorithm, alone.protocol, alone.channels,
    )  # fmt: skip


@cache
def _tuner_rules():
    return read_tuner(export("nccl", choice("nccl", "dgx-a100x2"))["nccl_tuner.csv"], "")


def test_a_pinned_choice_stands_in_the_environment_and_in_the_rules():
    files = export("nccl", choice("nccl:tree+ll128+channels=8"))
    found = environment(files["nccl.env"])

    assert found == {
        "NCCL_ALGO": "allreduce:tree", "NCCL_PROTO": "allreduce:ll128",
        "NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8", "NCCL_BUFFSIZE": str(4 * MIB),
    }  # fmt: skip
    [row] = [row for row in plugin(files["nccl_tuner.csv"])
             if row["collective_type"] == "allreduce" and row["nRanks"] == 8]  # fmt: skip
    assert (row["algorithm"], row["protocol"], row["channels"]) == ("tree", "ll128", 8)
    assert (row["min_bytes"], row["max_bytes"]) == (0, (1 << 64) - 1)


def test_communicators_that_nobody_named_take_rings_on_their_own_channels():
    """Of eight GPUs' rules, two of them obey the last, and no call has one channel for want of a
    rule; of hybrid shards, those of a copy and those of a shard have NCCL's own choice.
    """
    rules, few = _tuner_rules(), replace(setup("dgx1v").nccl, tuner=_tuner_rules())
    for nbytes in (1024, MIB, 64 * MIB, 8 << 30):
        ruled = choose(setup("v100-mesh-4").machine, "all_reduce", nbytes, few)
        own = choose(setup("v100-mesh-4").machine, "all_reduce", nbytes, algorithm="ring",
                     protocol=ruled.protocol)  # fmt: skip
        assert (ruled.algorithm, ruled.channels) == ("ring", own.channels)

    shards = Sharding(group=4)
    made = choice("nccl", "dgx-a100x2", method="hsdp", shards=shards)
    rows = plugin(export("nccl", made)["nccl_tuner.csv"])
    assert {(row["nNodes"], row["nRanks"]) for row in rows} == {(2, 16), (1, 4), (2, 4), (-1, -1)}
    assert not {rule.ranks for rule in rules} & {4}
    pinned = replace(made, strategy=parse_strategy("nccl:ring+simple+channels=4"))
    rows = plugin(export("nccl", pinned)["nccl_tuner.csv"])
    assert {(row["algorithm"], row["protocol"], row["channels"]) for row in rows
            if row["collective_type"] == "allreduce" and row["nRanks"] > 0
            } == {("ring", "simple", 4)}  # fmt: skip


@pytest.mark.parametrize(("version", "loads"), [((2, 27), False), ((2, 28), True)])
def test_the_plugin_is_loaded_by_versions_that_it_works_with(version, loads):
    made = choice("nccl:tree:64k:nccl:ring")
    made = replace(made, setup=made.setup.but(nccl=Settings(version=version)))
    told = export("nccl", made)["nccl.env"]
    assert ("NCCL_TUNER_PLUGIN" in environment(told)) == loads
    assert ("needs NCCL 2.28 or later" in told) != loads


def test_the_environment_of_a_scenarios_settings_reads_back_as_them():
    table = dict(read_assignments(
        [("", "NCCL_ALGO=Ring;allreduce:^NVLS"), ("", "NCCL_PROTO=^LL"), ("", "version=2.20"),
         ("", "NCCL_NVLS_ENABLE=0"), ("", "NCCL_BUFFSIZE=8388608"), ("", "NCCL_P2P_LEVEL=SYS")],
        Faults(),
    ))  # fmt: skip
    given = read_settings(table, Faults(), "")
    made = replace(choice("nccl"), setup=setup("dgx1v").but(nccl=given))
    found = environment(export("nccl", made)["nccl.env"])

    again = read_settings({**found, "version": "2.20"}, Faults(), "")
    assert again == given


def test_a_workloads_name_ends_no_docstring_and_no_line():
    """It may be any path of a file."""
    named = Workload('a\\Nb"""c' + "d" * 300, (Gradient("x", 100),))
    made = replace(choice("nccl+ddp"), workload=named)
    assert "a/Nb'''c" in ast.get_docstring(ast.parse(export("pytorch", made)["simreduce_ddp.py"]))
    assert plugin(export("nccl", made)["nccl_tuner.csv"])


def test_ranges_of_sizes_and_rules_are_told_by_the_plugin():
    made = choice("nccl:tree+simple:64k:nccl:ring+simple".replace("+simple:", ":"), "dgx-a100x2")
    files = export("nccl", made)
    rows = [row for row in plugin(files["nccl_tuner.csv"])
            if row["collective_type"] == "allreduce" and row["nRanks"] == 16]  # fmt: skip

    assert {row["algorithm"] for row in rows if row["max_bytes"] <= 4 * 65536} == {"tree"}
    assert {row["algorithm"] for row in rows if row["min_bytes"] > 4 * 65536} == {"ring"}
    assert environment(files["nccl.env"])["NCCL_TUNER_CONFIG_FILE"] == "nccl_tuner.csv"

    rule = Rule("all_reduce", 0, MIB, "tree", "ll", 3, -1, -1)
    ruled = export("nccl", choice("nccl+ddp", "dgx-a100x2", rules=(rule,)))["nccl_tuner.csv"]
    [row] = [row for row in plugin(ruled) if row["max_bytes"] == MIB]
    assert (row["algorithm"], row["protocol"], row["channels"]) == ("tree", "ll", 3)


def _ruled(*rules):
    """NCCL's environment for DDP's buckets of resnet50 by rules."""
    rules = [Rule("all_reduce", *rule, -1, -1) for rule in rules]
    return environment(
        export("nccl", choice("nccl+ddp", "dgx-a100x2", rules=tuple(rules)))["nccl.env"]
    )


def test_variables_say_what_one_rule_says_of_all_calls():
    """Channels only where NCCL would take others."""
    at = choice("nccl+ddp", "dgx-a100x2")
    sizes = [call.nbytes for call in at.setup.calls_of(at.strategy, at.workload)]
    own = [choose(at.facts, "all_reduce", n, algorithm="ring", protocol="simple") for n in sizes]
    [channels] = {each.channels for each in own}
    pinned = {"NCCL_ALGO": "allreduce:ring", "NCCL_PROTO": "allreduce:simple"}
    buffer = {"NCCL_BUFFSIZE": str(4 * MIB)}

    assert pinned | buffer == _ruled((0, None, "ring", "simple", channels))
    fewer = {"NCCL_MIN_NCHANNELS": "2", "NCCL_MAX_NCHANNELS": "2"}
    assert pinned | fewer | buffer == _ruled((0, None, "ring", "simple", 2))
    unused = (min(sizes), None, "ring", "simple", channels)
    assert pinned | buffer == _ruled((0, min(sizes) - 1, "tree", "ll", 2), unused)
    most = max(sizes)
    two = (0, most - 1, "tree", "ll", 2), (most, None, "ring", "simple", channels)
    assert "NCCL_TUNER_CONFIG_FILE" in _ruled(*two)
    assert "NCCL_TUNER_CONFIG_FILE" in _ruled((0, most - 1, "ring", "simple", channels))


@pytest.mark.parametrize(
    ("strategy", "arguments", "hook"),
    [
        ("nccl+ddp", {"gradient_as_bucket_view": False}, False),
        ("nccl+ddp=50,view", {"bucket_cap_mb": 50, "gradient_as_bucket_view": True}, False),
        ("nccl:ring+ddp=5,fp16", {"bucket_cap_mb": 5, "gradient_as_bucket_view": False}, True),
        ("nccl+ddp=40,2",
         {"bucket_cap_mb_list": [2, 40], "gradient_as_bucket_view": False}, False),
        ("nccl+bucket=0",
         {"bucket_cap_mb": 2**30, "gradient_as_bucket_view": False}, False),
    ],
)  # fmt: skip
def test_ddp_gets_the_arguments_of_its_buckets(strategy, arguments, hook):
    text = export("pytorch", choice(strategy))["simreduce_ddp.py"]
    tree = ast.parse(text)
    [table] = [node for node in tree.body if isinstance(node, ast.Assign)]

    assert ast.literal_eval(table.value) == arguments
    assert ("fp16_compress_hook" in text) is hook
    assert ("_DEFAULT_FIRST_BUCKET_BYTES" in text) is False


def test_the_first_cap_beside_the_default_one_is_set_by_its_own_name():
    [text] = export("pytorch", choice("nccl+ddp=25,4")).values()
    assert f"dist._DEFAULT_FIRST_BUCKET_BYTES = {4 * MIB}" in text
    [text] = export("pytorch", choice("nccl+ddp=25,4,bf16")).values()
    assert "default_hooks.bf16_compress_hook" in text
    assert "bucket_cap_mb" not in text


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(1, 500_000), min_size=1, max_size=30), st.integers(1, 2_000_000))
def test_packs_of_bytes_are_told_to_ddp_as_buckets_of_the_same_gradients(elements, size):
    workload = Workload("w", tuple(Gradient(f"g{i}", n) for i, n in enumerate(elements)))
    made = replace(choice(f"nccl+bucket={size}"), workload=workload)
    groups = made.strategy.packer.arrange(workload.gradients).groups
    if any(len(group) == 1 for group in groups):  # which DDP copies, and packs of bytes do not
        with pytest.raises(StrategyError, match="copies a gradient into its bucket"):
            export("pytorch", made)
        return
    [text] = export("pytorch", made).values()
    [table] = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    cap = int(ast.literal_eval(table.value)["bucket_cap_mb"] * 1024 * 1024)  # as DDP reads it

    assert DdpBuckets(cap, cap).arrange(workload.gradients).groups == groups


def test_horovod_gets_its_threshold_cycle_and_hierarchy():
    [text] = export("horovod", choice("nccl+fusion=64M", cycle=2.5e-3)).values()
    assert environment(text) == {
        "HOROVOD_FUSION_THRESHOLD": str(64 * MIB), "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0", "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
    }  # fmt: skip
    [text] = export("horovod", choice("nccl/pscpu+fusion=0,fp16")).values()
    assert environment(text)["HOROVOD_HIERARCHICAL_ALLREDUCE"] == "1"
    assert environment(text)["HOROVOD_FUSION_THRESHOLD"] == "0"
    assert "Compression.fp16" in text


def test_deepspeed_gets_its_stage_buckets_and_precision():
    [text] = export("deepspeed", choice("nccl+bucket=0", accumulate=4, batch=16)).values()
    assert json.loads(text) == {
        "train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 0},
    }  # fmt: skip
    made = choice("nccl", method="zero2", shards=Sharded(), unit=7_000_000)
    [text] = export("deepspeed", made).values()
    assert json.loads(text)["zero_optimization"] == {
        "stage": 2, "reduce_scatter": True, "reduce_bucket_size": 7_000_000,
        "allgather_partitions": True, "allgather_bucket_size": 7_000_000, "overlap_comm": True,
        "contiguous_gradients": True,
    }  # fmt: skip
    assert json.loads(text)["bf16"] == {"enabled": True}
    waits = replace(made, shards=Sharded(overlap=False))
    [text] = export("deepspeed", waits).values()
    assert json.loads(text)["zero_optimization"]["overlap_comm"] is False
    assert any("FSDP reduces beside" in why for why in why_not("pytorch", waits))
    made = replace(made, method="zero3")
    zero = json.loads(export("deepspeed", made)["ds_config.json"])["zero_optimization"]
    assert (zero["stage"], zero["stage3_prefetch_bucket_size"]) == (3, 7_000_000)


def test_jax_gets_thresholds_of_what_its_program_reduces():
    [text] = export("jax", choice("nccl+fusion=30M")).values()
    flags = environment(text)["XLA_FLAGS"].split()
    assert f"--xla_gpu_all_reduce_combine_threshold_bytes={30 * MIB}" in flags
    made = choice("nccl", method="fsdp", shards=Sharded(), unit=MIB)
    flags = environment(export("jax", made)["xla.env"])["XLA_FLAGS"].split()
    for what, width in (("all_gather", 2), ("reduce_scatter", 4)):  # bfloat16, float32
        assert f"--xla_gpu_{what}_combine_threshold_bytes={width * MIB}" in flags


def test_fsdp1_gets_its_arguments():
    made = choice("nccl", method="hsdp", shards=Sharded(), unit=1000)
    [text] = export("fsdp=1", made).values()
    ast.parse(text)
    for line in (
        '"sharding_strategy": ShardingStrategy.HYBRID_SHARD,',
        '"backward_prefetch": BackwardPrefetch.BACKWARD_POST,',
        '"forward_prefetch": True,', '"limit_all_gathers": False,',
        "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),",
        "def wrap(model, blocks, **more):", "ModuleWrapPolicy(blocks)",
    ):  # fmt: skip
        assert line in text
    assert "device_mesh" not in text


@pytest.mark.parametrize(
    ("method", "shards", "line"),
    [
        ("fsdp", Sharded(reshard_after_forward=False), "ShardingStrategy.SHARD_GRAD_OP,"),
        ("hsdp", Sharded(group=2), 'init_device_mesh("cuda", (4, 2))'),
        ("hsdp", Sharded(group=8), "ShardingStrategy.HYBRID_SHARD,"),
        ("fsdp", Sharded(units="layers"), "of the classes `blocks`, those of its layers"),
        ("fsdp", Sharded(units=36), "min_num_params=9)  # a unit for each module of 9 parameters"),
        ("fsdp", Sharded(units="model"), "policy = None"),
    ],
)
def test_fsdp1_gets_groups_and_units(method, shards, line):
    [text] = export("fsdp=1", choice("nccl", method=method, shards=shards, unit=9)).values()

    assert compile(text, "simreduce_fsdp.py", "exec")
    assert line in text
    assert ("device_mesh" in text) is (shards.group == 2)


@pytest.mark.parametrize(
    ("method", "shards", "passes", "lines"),
    [
        ("fsdp", Sharding(), 1,
         ("def wrap(model, blocks, **more):", '"reshard_after_forward": True,',
          "# a unit for each block: fully_shard(block)")),
        ("zero2", Sharding(), 2, ('"reshard_after_forward": False,',)),
        ("fsdp", Sharding(reshard_after_forward=False), 2,
         ("wrapped.set_requires_gradient_sync(False)", "wrapped.set_reshard_after_backward(True)")),
        ("fsdp", Sharding(param_dtype=3, reduce_dtype=0), 1,
         ("(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),", '"mp_policy": MixedPrec')),
        ("hsdp", Sharding(), 1, ("    ways = 1, 8  # shards within groups of 8 GPUs",)),
        ("hsdp", Sharding(group=2), 1, ("    ways = 4, 2  # shards within groups of 2 GPUs",)),
        ("fsdp", Sharding(units="layers"), 1, ("  # a unit for each linear or norm layer",)),
        ("fsdp", Sharding(units=36), 1, ("_runs(model, 9)  # a unit for each run of layers ",)),
        ("fsdp", Sharding(units="model"), 1, ("units = []  # the whole model as one unit",)),
        ("fsdp", Sharding(forward_prefetch=3), 1,
         ("    ahead = 3  # set_modules_to_forward_prefetch: 3 of the next units",)),
    ],
)  # fmt: skip
def test_fsdp2_gets_its_arguments(method, shards, passes, lines):
    """What it does with them is in `validate/pytorch`."""
    made = choice("nccl", method=method, shards=shards, unit=9, accumulate=passes)
    [text] = export("pytorch", made).values()

    assert compile(text, "simreduce_fsdp.py", "exec")
    assert all(line in text for line in lines)
    assert ("set_modules_to_forward_prefetch" in text) is (shards.forward_prefetch > 0)
    assert ("init_device_mesh" in text) is (method == "hsdp")
    assert ("def backward" in text) is (passes > 1 and method == "fsdp")


@pytest.mark.parametrize(
    ("target", "shards", "reason"),
    [
        ("pytorch", Sharding(backward_prefetch="none"), "ahead in a backward pass (pre), not none"),
        ("pytorch", Sharding(limit_all_gathers=0), "FSDP2 takes no limit_all_gathers"),
        ("fsdp=1", Sharding(forward_prefetch=2), "FSDP1 gathers at most 1 unit ahead"),
        ("fsdp=1", Sharding(limit_all_gathers=3), "2 units or no limit, not 3"),
    ],
)
def test_each_fsdp_says_what_only_the_other_can(target, shards, reason):
    other = {"pytorch": "fsdp=1", "fsdp=1": "pytorch"}[target]
    [found] = why_not(target, choice("nccl", method="fsdp", shards=shards, unit=9))

    assert reason in found
    if shards.limit_all_gathers != 3:
        assert () == why_not(other, choice("nccl", method="fsdp", shards=shards, unit=9))


def test_tensorflow_plans_a_choice_once_and_the_work_counts_each_time():
    """A budget of work ends where it would if nothing was known."""
    spent, made = [], []
    original = Setup.compile
    counted = lambda *args, **more: made.append(1) or original(*args, **more)  # noqa: E731
    with mock.patch.object(Setup, "compile", counted):
        for _ in range(2):
            with within(1e3, of_work=True):
                assert () == why_not("tensorflow", choice("nccl+packs=3", workload="bytes:7MiB"))
                spent.append(1e3 - time_left())
    assert 2 == len(made)
    assert 0 < spent[0] == pytest.approx(spent[1])


def test_tensorflow_gets_a_call_and_tf_cnn_benchmarks_its_flags():
    [text] = export("tensorflow", choice("hierarchical_copy+packs=8")).values()
    ast.parse(text)
    assert "HierarchicalCopyAllReduce(num_packs=8)" in text
    [text] = export("tf_cnn_benchmarks", choice("xring#2")).values()
    assert text.splitlines() == [
        "--num_gpus=8", "--variable_update=replicated", "--all_reduce_spec=xring#2",
    ]  # fmt: skip


def test_msccl_gets_a_file_for_each_range_of_sizes():
    files = export("msccl", choice("direct:16k:ring"))
    small, large = (read_algorithm(text, name) for name, text in files.items())

    assert [problems_of(each) for each in (small, large)] == [[], []]
    assert (small.least, small.most, large.least) == (0, 65536, 65537)
    assert (small.name, large.name) == ("direct on dgx1v", "ring on dgx1v")


@pytest.mark.parametrize(
    ("target", "strategy", "near"),
    [
        ("nccl", "ring", "nccl:ring"), ("nccl", "double_tree+ddp", "nccl:tree+ddp"),
        ("pytorch", "nccl+fusion=64M", "nccl+ddp=64"), ("pytorch", "ring+packs=8", "nccl+ddp"),
        ("horovod", "nccl:ring+ddp=50", "nccl:ring+fusion=50MiB"),
        ("deepspeed", "nccl+ddp", "nccl+bucket=0"), ("jax", "nccl+ddp", "nccl+fusion=25MiB"),
        ("tf_cnn_benchmarks", "ring", "collective"), ("msccl", "nccl:tree", "double_tree"),
        ("msccl", "ring+mean", "ring"), ("nccl", "nccl:nvls", "nccl"),
        ("nccl", "in_switch", "nccl"),
        ("pytorch", "nccl:nvls+ddp", "nccl+ddp"), ("horovod", "nccl:nvls", "nccl+fusion"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_nearest_that_is_not_refused(target, strategy, near):
    made = choice(strategy)

    assert nearest(target, made) == near
    assert not why_not(target, replace(made, strategy=parse_strategy(near)))
    with pytest.raises(StrategyError) as caught:
        export(target, made)
    assert caught.value.problems[-1] == f"{strategy}: the nearest setting is that of {near}"
    assert len(caught.value.problems) == len(why_not(target, made)) + 1


def test_folded_machines_have_rules_for_all_their_nodes():
    folded = Setup(load_machine("dgx-a100x64", folded=True))
    assert isinstance(folded.machine, Folded)
    made = Choice(folded, load_workload("trivial"), parse_strategy("nccl"))
    rows = plugin(export("nccl", made)["nccl_tuner.csv"])
    assert {(row["nNodes"], row["nRanks"]) for row in rows} == {(64, 512), (-1, -1)}


def test_every_target_has_a_setting_or_a_reason_for_every_kind_of_strategy():
    for strategy in ("nccl+ddp", "nccl+fusion", "ring", "nccl:tree", "hierarchical_copy+packs=2"):
        for target in TARGETS:
            made = choice(strategy, "switch:4", "trivial")
            reasons = why_not(target, made)
            assert reasons or export(target, made)
            assert not reasons or nearest(target, made)


def test_settings_without_a_variable_say_what_applications_call():
    setup = Setup("dgx-h100", nccl=Settings(symmetric=True, registered=True))
    made = Choice(setup, load_workload("bytes:1MiB"), parse_strategy("nccl"))
    said = "# As predicted where applications call ncclCommWindowRegister and ncclCommRegister."

    assert said in export("nccl", made)["nccl.env"].splitlines()
    plain = replace(made, setup=setup.but(nccl=Settings()))
    assert "applications call" not in export("nccl", plain)["nccl.env"]


def test_other_collectives_have_settings_of_nccl_and_msccl_only():
    made = Choice(
        setup("dgx1v"), load_workload("trivial"), parse_strategy("nccl:ring", "all_gather")
    )
    files = export("nccl", made)
    assert environment(files["nccl.env"])["NCCL_ALGO"] == "allgather:ring"
    assert not why_not("msccl", replace(made, strategy=parse_strategy("ring", "all_gather")))
    for target in set(TARGETS) - {"nccl", "msccl", "mscclpp"}:
        assert why_not(target, made)


@pytest.mark.parametrize(
    ("target", "packing"),
    [("pytorch", "+ddp=38,view"), ("horovod", "+fusion"), ("jax", "+fusion=1M")],
)
def test_what_a_strategy_has_nccl_do_stands_beside_a_frameworks_files(target, packing):
    """Its variables; without any, NCCL has nothing to set."""
    setup, work = Setup("dgx1v"), load_workload("resnet50")
    told, own = (
        export(target, Choice(setup, work, parse_strategy(f"{spec}{packing}")))
        for spec in ("nccl:tree+simple+channels=2", "nccl")
    )

    assert {*told} == {*own, "nccl.env", "nccl_tuner.csv"}
    assert "NCCL_ALGO=allreduce:tree\n" in told["nccl.env"]
    assert "NCCL_PROTO=allreduce:simple\nNCCL_MIN_NCHANNELS=2\n" in told["nccl.env"]
