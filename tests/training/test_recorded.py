"""Recorded jobs as workloads: a step that is simulated, recorded and read is the same step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from simreduce import dtypes
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import InputError, ScenarioError
from simreduce.export.frameworks import FRAMEWORKS
from simreduce.planners.strategy import parse_strategy
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.search.targets import nccl_packings
from simreduce.study.tune.search.tune import tune
from simreduce.training import Profile, StepJob, StepResult, method_for_strategy, simulate_step
from simreduce.training.recorded import load_model, load_profile, read_recorded
from simreduce.workload import Gradient, Layer, Model
from simreduce.workload.loader import load_workload
from tests.thorough import examples
from tests.training.executions import traces as t

EXAMPLE = str(Path(__file__).parents[2] / "docs" / "examples" / "ddp-resnet50.json")
MIB = 1 << 20
SETUP, OTHER = Setup("switch:4", BY_STRATEGY), Setup("pcie-single-root-4", BY_STRATEGY)


def _model(mebibytes: Sequence[int]) -> Model:
    """Layers in the order of the forward pass."""
    layers = [
        Layer(f"layer{i}", (Gradient(f"g{i}", size * MIB // 4),), counted=False)
        for i, size in enumerate(mebibytes)
    ]
    return Model("small", tuple(layers))


def _simulate(model: Model, profile: Profile, text: str, setup: Setup, update: float):
    setup = setup.running(parse_strategy(text))
    method = method_for_strategy(parse_strategy(text), model.workload, setup.layout)
    return simulate_step(StepJob(model, profile, 1, update), method, setup)


def _all_reduce(nbytes: int, number: int = 4, dtype: str = "Float") -> dict[str, object]:
    return {
        "Collective name": "allreduce", "In msg nelems": nbytes // 4, "Group size": number,
        "dtype": dtype, "Process Group Ranks": str([*range(number)]),
    }  # fmt: skip


def _timeline(step: StepResult, update: float, *, marks: bool = True, times: int = 1):
    """Events of a profiler that watched steps like this one, whose CPU is always far ahead."""
    events, us, number = [], 1e6, 0
    spans = [span for span in step.spans if span.device == step.spans[0].device]
    end = max([*(span.end for span in spans), *(bucket.finish for bucket in step.buckets)])

    def add(name, stream, begin, took, launched, **args):
        nonlocal number
        number += 1
        events.extend(t.kernel(name, stream, begin, took, launched, number, **args))

    def mark(category, name, begin, took):
        if marks:
            events.append({"ph": "X", "cat": category, "name": name, "ts": begin, "dur": took})

    for turn in range(times):
        start = turn * us * (end + update)
        mark("user_annotation", f"ProfilerStep#{turn}", start, 1.0)
        for place, span in enumerate(spans):
            launched = start + 2e-3 * (place + 1)
            begin = start + us * span.begin
            add(span.layer, 7, begin, us * (span.end - span.begin), launched)
            if span.backward:
                name = "autograd::engine::evaluate_function: Backward0"
                mark("cpu_op", name, launched, 1.5e-3)
        for bucket in step.buckets:
            before = [i for i, s in enumerate(spans) if s.end <= bucket.ready * (1 + 1e-12)]
            took = us * (bucket.finish - bucket.start)
            launched = start + 2e-3 * (max(before) + 1) + 1e-3
            begin = start + us * bucket.start
            add("ncclDevKernel", 20, begin, took, launched, **_all_reduce(bucket.nbytes))
        launched = start + 2e-3 * (len(spans) + 1)
        add("adam", 7, start + us * end + 1e-5, us * update, launched)
    return {"distributedInfo": {"rank": 0, "world_size": 4}, "traceEvents": events}


def _write(path: Path, document: object) -> str:
    path.write_text(json.dumps(document))
    return str(path)


jobs = st.lists(
    st.tuples(st.integers(1, 40), st.floats(1e-4, 1e-2), st.floats(1e-4, 1e-2)),
    min_size=1, max_size=8,
)  # fmt: skip


@given(jobs, st.sampled_from([1, 16, 64]), st.floats(1e-4, 1e-3), st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_a_step_that_is_recorded_is_read_again(tmp_path_factory, layers, cap, update, marks):
    """On the machine where it ran, and on another: buckets, passes and update are the same."""
    sizes, forward, backward = zip(*layers, strict=True)
    model, profile = _model(sizes), Profile(forward, backward, "")
    text = f"nccl+ddp={cap},view"
    step = _simulate(model, profile, text, SETUP, update)
    path = _write(tmp_path_factory.mktemp("job") / "job.json", _timeline(step, update, marks=marks))
    found = read_recorded(path)

    assert found.sizes == tuple(bucket.nbytes for bucket in step.buckets)
    assert found.update == pytest.approx(update)
    assert found.forward + found.backward == pytest.approx(sum(forward) + sum(backward))
    if marks:
        assert found.forward == pytest.approx(sum(forward))
    times = load_profile(path, found.model)
    for setup in (SETUP, OTHER):
        again = _simulate(found.model, times, "nccl", setup, found.update)
        there = _simulate(model, profile, text, setup, update)
        assert again.seconds == pytest.approx(there.seconds, rel=1e-6)


def test_joined_buckets_are_those_of_a_larger_cap(tmp_path):
    """Where the cuts of the larger cap are cuts of the record."""
    model, profile = _model([4] * 8), Profile((1e-3,) * 8, (2e-3,) * 8, "")
    step = _simulate(model, profile, "nccl+ddp=4,view", SETUP, 1e-3)
    found = read_recorded(_write(tmp_path / "job.json", _timeline(step, 1e-3)))

    assert found.model.finest == 4 * MIB
    for cap in (8, 16, 32):
        text = f"nccl+ddp={cap},view"
        again = _simulate(found.model, found.profile(found.model), text, SETUP, found.update)
        there = _simulate(model, profile, text, SETUP, 1e-3)
        assert again.seconds == pytest.approx(there.seconds, rel=1e-6)


def test_of_several_steps_the_median_is_read(tmp_path):
    """Each with its own passes; without marks the update counts as part of the next step."""
    model, profile = _model([4, 8, 30]), Profile((1e-3,) * 3, (2e-3,) * 3, "")
    step = _simulate(model, profile, "nccl+ddp=4,view", SETUP, 1e-3)
    marked = read_recorded(_write(tmp_path / "a.json", _timeline(step, 1e-3, times=3)))
    bare = read_recorded(_write(tmp_path / "b.json", _timeline(step, 1e-3, times=3, marks=False)))

    assert (marked.forward, marked.backward, marked.update) == pytest.approx((3e-3, 6e-3, 1e-3))
    assert (bare.forward + bare.backward, bare.update) == pytest.approx((10e-3, 0.0))
    assert marked.sizes == bare.sizes == (30 * MIB, 8 * MIB, 4 * MIB)
    assert any("of 3 equal steps" in note for note in marked.notes)


def test_equal_buckets_are_no_steps(tmp_path):
    """Nothing waits for the all-reduce between them."""
    model, profile = _model([4] * 5), Profile((1e-3,) * 5, (2e-3,) * 5, "")
    step = _simulate(model, profile, "nccl+ddp=4,view", SETUP, 1e-3)
    found = read_recorded(_write(tmp_path / "a.json", _timeline(step, 1e-3, marks=False)))

    assert found.sizes == (4 * MIB,) * 5


def test_a_chakra_trace_is_read_by_its_dependencies(tmp_path):
    """Two steps: the optimizer waits for both buckets, the next forward pass for the optimizer."""
    nodes, last = [], ()
    for step in range(2):
        n, call = 10 * step, {"comm_type": t.ALL_REDUCE, "is_cpu_op": False}
        nodes += [
            t.node(n + 1, t.COMPUTE, last, 300, is_cpu_op=False),
            t.node(n + 2, t.COMPUTE, (n + 1,), 200, is_cpu_op=False),
            t.node(n + 3, t.COLLECTIVE, (n + 2,), 900, comm_size=8 * MIB, **call),
            t.node(n + 4, t.COMPUTE, (n + 2,), 100, is_cpu_op=False),
            t.node(n + 5, t.COLLECTIVE, (n + 4,), 900, comm_size=2 * MIB, **call),
            t.node(n + 6, t.COMPUTE, (n + 3, n + 5), 50, is_cpu_op=False),
        ]
        last = (n + 6,)
    found = read_recorded(t.chakra(tmp_path / "job.0.et", nodes))

    assert found.sizes == (8 * MIB, 2 * MIB)
    assert found.forward + found.ready[0] == pytest.approx(500e-6)
    assert found.ready[1] - found.ready[0] == pytest.approx(100e-6)
    (layer, _) = found.model.layers
    assert (layer.name, layer.gradients[0].nbytes) == ("bucket1", 2 * MIB)


def test_nodes_of_a_chakra_trace_come_in_any_order(tmp_path):
    """And wait for each other in no circle."""
    nodes = [
        t.node(3, t.COLLECTIVE, (2,), comm_type=t.ALL_REDUCE, comm_size=4096, is_cpu_op=False),
        t.node(2, t.COMPUTE, (1,), 100, is_cpu_op=False),
        t.node(1, t.COMPUTE, (), 200, is_cpu_op=False),
    ]
    found = read_recorded(t.chakra(tmp_path / "job.0.et", nodes))

    assert found.forward + found.backward == pytest.approx(300e-6)
    assert not any("one rank" in note for note in found.notes)
    circle = [nodes[0], nodes[1], t.node(1, t.COMPUTE, (3,), 200, is_cpu_op=False)]
    with pytest.raises(InputError, match="wait for each other"):
        read_recorded(t.chakra(tmp_path / "circle.0.et", circle))


def test_ddps_logging_data_has_times_of_both_passes(tmp_path):
    """Its cap is that of the job, and its type that of the gradients."""
    data = {
        "world_size": 4, "bucket_sizes": "1048576, 10485760, 4194304", "dtypes": "c10::BFloat16",
        "avg_forward_compute_time": 5_000_000, "avg_backward_compute_time": 9_000_000,
        "bucket_cap_bytes": 10 * MIB,
    }  # fmt: skip
    found = read_recorded(_write(tmp_path / "ddp.json", data))

    assert (found.forward, found.backward) == pytest.approx((5e-3, 9e-3))
    assert found.ready == pytest.approx((3e-3, 6e-3, 9e-3))
    assert found.model.finest == 10 * MIB
    assert {"bfloat16"} == {dtypes.NAMES[g.dtype] for g in found.model.workload.gradients}
    del data["avg_forward_compute_time"], data["avg_backward_compute_time"]
    bare = _write(tmp_path / "bare.json", data)
    assert load_scenario(bare, topology="switch:4").step is None
    with pytest.raises(InputError, match="has no times of compute"):
        load_profile(bare, load_model(bare))


@pytest.mark.parametrize(
    ("sizes", "finest"),
    [
        ("8200192, 27283968, 26255360, 14175904", 25 * MIB),  # what a cap of 25 MiB makes
        ("8200192, 104857600, 104857600, 14175904", 100 * MIB),
        ("1048576, 2097152, 2097153, 100", 2 * MIB),
        ("104857600", 100 * MIB),
    ],
)
def test_the_smallest_buckets_are_those_that_a_cap_made(tmp_path, sizes, finest):
    """The first may have a cap of its own, and the last is what was left over."""
    path = _write(tmp_path / "ddp.json", {"world_size": 8, "bucket_sizes": sizes})

    assert read_recorded(path).model.finest == finest


def test_all_that_no_gradients_need_is_named_at_once(tmp_path):
    """With the command that runs it."""
    call = {"is_cpu_op": False, "comm_size": 64}
    nodes = [
        t.node(1, t.COMPUTE, (), 10, is_cpu_op=False),
        t.node(2, t.COLLECTIVE, (1,), comm_type=t.ALL_REDUCE, pg_name="pair", **call),
        t.node(3, t.COLLECTIVE, (1,), comm_type=t.ALL_GATHER, pg_name="all", **call),
        t.node(4, t.COLLECTIVE, (1,), comm_type=t.ALL_GATHER, pg_name="all", **call),
        t.node(5, t.SEND, (1,), comm_dst=1, **call),
    ]
    path = t.chakra(tmp_path / "job.0.et", nodes)
    events = [
        *t.kernel("gemm", 7, 0, 5, 0, 1),
        *t.kernel("nccl", 20, 5, 5, 1, 2, **_all_reduce(64, 2)),
        *t.kernel("nccl", 20, 9, 5, 2, 3, **{**_all_reduce(64), "Collective name": "all_gather"}),
    ]
    profiled = _write(
        tmp_path / "job.json",
        {"distributedInfo": {"rank": 0, "world_size": 4}, "traceEvents": events},
    )
    with pytest.raises(InputError) as error:
        read_recorded(path)
    assert ["2 calls of all-gather among all ranks" in p for p in error.value.problems].count(True)
    assert any("1 call of send of one rank" in p for p in error.value.problems)
    assert any("process groups 'all', 'pair'" in p for p in error.value.problems)
    with pytest.raises(InputError) as error:
        read_recorded(profiled)
    first, second, last = error.value.problems
    assert "1 call of all-reduce among ranks 0, 1 of 4" in first
    assert "1 call of all-gather among all ranks" in second
    assert f"`simreduce replay {profiled} --topology MACHINE` runs" in last


@pytest.mark.parametrize(("number", "shown"), [(4, "0, 1, 2, 3"), (5, "0, 1, 2, 3, ...")])
def test_of_many_ranks_that_no_gradients_need_the_first_are_named(tmp_path, number, shown):
    """With dots only where there are more."""
    events = [
        *t.kernel("gemm", 7, 0, 5, 0, 1),
        *t.kernel("nccl", 20, 5, 5, 1, 2, **_all_reduce(64, number)),
    ]
    info = {"rank": 0, "world_size": 8}
    path = _write(tmp_path / "job.json", {"distributedInfo": info, "traceEvents": events})
    with pytest.raises(InputError) as error:
        read_recorded(path)

    assert f"1 call of all-reduce among ranks {shown} of 8," in error.value.problems[0]


def test_calls_that_reduce_no_gradients_are_left_out(tmp_path):
    """A count of whole numbers, a barrier, buffers, and a loss that is summed after the pass."""
    model, profile = _model([4, 4]), Profile((1e-3,) * 2, (2e-3,) * 2, "")
    step = _simulate(model, profile, "nccl+ddp=4,view", SETUP, 1e-3)
    document = _timeline(step, 1e-3)
    barrier = _all_reduce(0) | {"Collective name": "barrier"}
    buffers = _all_reduce(4096) | {"Collective name": "broadcast"}
    for number, (launched, args) in enumerate(
        [
            (7e-3, _all_reduce(512, dtype="Int")),
            (1e-3, buffers),
            (7e-3, barrier),
            (1.0, _all_reduce(4)),
        ]
    ):
        document["traceEvents"] += t.kernel("nccl", 20, 0, 1, launched, 100 + number, **args)
    found = read_recorded(_write(tmp_path / "job.json", document))

    assert found.sizes == (4 * MIB, 4 * MIB)
    left = " ".join(note for note in found.notes if note.startswith("left out"))
    for words in ("all-reduces of int", "buffers", "barriers", "outside of the backward pass"):
        assert words in left


def test_gradients_within_a_bucket_become_ready_by_their_bytes():
    """And at its end the bucket is, as recorded."""
    found, model = read_recorded(EXAMPLE), load_workload("resnet50")
    scenario = load_scenario(EXAMPLE, topology="dgx1v", workload="resnet50")
    profile = scenario.step.job.profile

    assert sum(profile.backward) == pytest.approx(found.backward)
    assert scenario.workload.finest == 0
    done, at = 0, 0.0
    for layer, seconds in zip(
        reversed(scenario.step.job.model.layers), reversed(profile.backward), strict=True
    ):
        done, at = done + sum(g.nbytes for g in layer.gradients), at + seconds
        if done <= found.sizes[0]:
            share = done / found.sizes[0]
            assert at == pytest.approx(share * found.ready[0], rel=1e-4)
    assert done == model.nbytes
    with pytest.raises(ScenarioError, match=r"its buckets hold 102.2 MB, and the gradients of vgg"):
        load_scenario(EXAMPLE, topology="dgx1v", workload="vgg16")


def test_a_scenario_names_a_record_beside_it(tmp_path):
    """As its workload, its profile, or both; `update` of the scenario goes before the record's."""
    model, profile = _model([4, 8, 30]), Profile((1e-3,) * 3, (2e-3,) * 3, "")
    step = _simulate(model, profile, "nccl+ddp=4,view", SETUP, 1e-3)
    _write(tmp_path / "job.json", _timeline(step, 1e-3))
    path = tmp_path / "own.toml"
    text = 'topology = "switch:4"\nworkload = "job.json"\n[step]\nbatch = 2\n'
    path.write_text(text + 'profile = "job.json"\n')
    job = load_scenario(str(path)).step.job
    path.write_text(text + 'profile = "job.json"\nupdate = "7 ms"\nspeed = 2.0\n')
    faster = load_scenario(str(path)).step.job
    path.write_text(text + 'time = "9 ms"\n')
    own = load_scenario(str(path))

    assert (job.profile.seconds, job.update) == pytest.approx((9e-3, 1e-3))
    assert (faster.profile.seconds, faster.update) == pytest.approx((4.5e-3, 7e-3))
    assert own.workload.gradients == job.model.workload.gradients
    path.write_text(text + 'time = "9 ms"\nmethod = "fsdp"\n')
    with pytest.raises(ScenarioError, match=r"step.method: fsdp shards what layers hold"):
        load_scenario(str(path))


def test_settings_that_would_cut_recorded_buckets_are_not_tried():
    """Whatever asks for them; what joins buckets is."""
    scenario = load_scenario(EXAMPLE, topology="dgx1v")
    with pytest.raises(ScenarioError) as error:
        load_scenario(
            EXAMPLE, topology="dgx1v",
            strategies=["nccl+ddp=10", "nccl+fusion=0", "nccl+ddp=25,4", "nccl+ddp=50"],
        )  # fmt: skip

    refused = [problem.split(": ")[1] for problem in error.value.problems]
    assert refused == ["nccl+ddp=10", "nccl+fusion=0", "nccl+ddp=25,4"]
    for target in [each.name for each in FRAMEWORKS.values() if each.packings]:
        found = nccl_packings(target, scenario, half=False)
        for packing in found:
            sizes = [sum(size.nbytes for size in group) for group in packing.sizes]
            assert len(found) == 1 or not packing.knob or max(sizes) >= 25 * MIB
            assert packing.knob == 0 or packing.knob >= 25 * MIB


def test_the_best_setting_of_a_recorded_job_is_by_ddp():
    """Layers are not known, so nothing is sharded, and the default is as recorded."""
    found = tune(load_scenario(EXAMPLE, topology="dgx1v"))

    assert {"ddp"} == {row.setting.method for row in found.rows}
    assert found.default.setting.strategy == "nccl+ddp"
    assert found.best.seconds <= found.default.seconds


@pytest.mark.parametrize(
    ("sizes", "default"),
    [("4194304, 104857600, 104857600, 1024", "+ddp=100"), ("419430400", "+ddp=400")],
)
def test_the_default_of_larger_buckets_is_the_cap_that_made_them(tmp_path, sizes, default):
    """PyTorch's own would divide them."""
    data = {"world_size": 8, "bucket_sizes": sizes, "avg_backward_compute_time": 10**7}
    scenario = load_scenario(_write(tmp_path / "ddp.json", data), topology="dgx1v")
    packings = {
        target: nccl_packings(target, scenario, half=False)[0].text
        for target in ("pytorch", "nccl", "deepspeed")
    }

    assert packings == {"pytorch": default, "nccl": "", "deepspeed": "+bucket=2000000000"}
    assert [each.text for each in scenario.strategies][:2] == ["nccl", f"nccl{default}"]
