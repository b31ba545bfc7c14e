"""What of real runs needs no TensorFlow: the numbers that are summed, where devices are, what the
command is asked.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import click
import numpy as np
import pytest
from hypothesis import given, strategies as st
from simreduce_validate.devices import read_workers
from simreduce_validate.running.builtin import BUILTINS, Builtin
from simreduce_validate.running.contents import Contents, KeptValues, difference, unmade
from simreduce_validate.running.discover import from_table, model_of, parts_of, visible
from simreduce_validate.running.execution import expect_execution
from simreduce_validate.running.placement import by_task, device, logical_cpus, process
from simreduce_validate.running.program import parts
from simreduce_validate.running.serve import _answer
from simreduce_validate.running.workers import Worker, beside
from simreduce_validate.validate import validate

import simreduce as sr
from simreduce import dtypes
from simreduce.app.cli import main
from simreduce.errors import DeviceError, InputError
from simreduce.plan import Contract, Kind, PlanBuilder
from simreduce.workload import Gradient, Workload

SWITCH = sr.layout(sr.load_topology("switch:4"))


def plan(text="ring", count=100, dtype=0, layout=SWITCH):
    return sr.compile(text, Workload("w", (Gradient("g", count, dtype),)), layout)


def of(dtype, ranks=8, mean=False):
    return Contents.of(
        plan(
            "one_shot" + "+mean" * mean,
            500,
            dtypes.code(dtype),
            sr.layout(sr.load_topology(f"switch:{ranks}")),
        )
    )


NUMPY = {
    "float32": np.float32,
    "float16": np.float16,
    "float64": np.float64,
    "int32": np.int32,
    "int64": np.int64,
}


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 7, 8])
@pytest.mark.parametrize("dtype", NUMPY)
def test_sums_are_exact_in_any_order(dtype, ranks, mean):
    """Added up in the dtype, from either end and divided, they are what int64 gives; whatever is
    missing shows.
    """
    contents = of(dtype, ranks, mean)
    own = [contents.of_contributor(rank, 0, 500) for rank in range(ranks)]
    narrow = [values.astype(NUMPY[dtype]) for values in own]
    there, back = narrow[0].copy(), narrow[-1].copy()
    for values in narrow[1:]:
        there += values
    for values in narrow[-2::-1]:
        back += values
    (output, *_) = np.flatnonzero(contents.plan.kind == Kind.OUTPUT)
    promised = contents.promised(int(output))

    assert (np.sum(own, axis=0).astype(np.int64) == there).all()
    assert (there == back).all()
    assert (promised * (ranks if mean else 1) == there).all()
    assert (promised.astype(NUMPY[dtype]) == promised).all()
    assert all(values.min() >= 1 for values in own)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
def test_numbers_differ_by_rank_and_by_element(dtype):
    """So that a part that is misplaced, or taken from another rank, shows: at all but some elements
    of the narrowest.
    """
    contents = of(dtype)
    own = np.array([contents.of_contributor(rank, 0, 500) for rank in range(8)])
    alike = max(np.mean(own[i] == own[j]) for i in range(8) for j in range(i))
    moved = np.mean(own[0][1:] == own[0][:-1])

    assert alike < 0.1
    assert moved < 0.1
    assert dtype != "float32" or alike < 0.01


@given(lo=st.integers(0, 300), size=st.integers(0, 50), rank=st.integers(0, 7))
def test_a_number_belongs_to_its_address(lo, size, rank):
    contents = of("float32")
    whole = contents.of_contributor(rank, 0, 400)

    assert (whole[lo : lo + size] == contents.of_contributor(rank, lo, lo + size)).all()


def test_nothing_is_promised_of_padding():
    b = PlanBuilder(["gpu0"])
    b.output(b.concat([b.input(0, 0, 3), b.zeros(0, 3, 5)]))
    contents = Contents.of(b.finish(Contract.all_reduce([0], [(0, 3, 0)])))

    assert [False] * 3 + [True] * 2 == np.isnan(contents.promised(3)).tolist()
    assert [0, 0] == contents.given(1).tolist()
    assert "gpu0 [0, 5): element 3 is not in the contract" == difference(
        "gpu0", 0, np.array([*contents.given(0), 0, 0]), contents.promised(3)
    )


def test_a_wrong_dtype_is_no_result():
    b = PlanBuilder(["gpu0"])
    b.output(b.cast(b.input(0, 0, 3), 1))

    assert ["gpu0 [0, 3): not all of it is an output"] == list(
        unmade(b.finish(Contract.all_reduce([0], [(0, 3, 0)])))
    )


@given(cuts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted), max_size=6))
def test_outputs_in_parts_make_a_result_when_no_element_lacks(cuts):
    b = PlanBuilder(["gpu0"])
    whole = b.input(0, 0, 9)
    for lo, hi in cuts:
        b.output(whole._replace(lo=lo, hi=hi))
    covered = {i for lo, hi in cuts for i in range(lo, hi)} == set(range(9))

    assert covered == (not list(unmade(b.finish(Contract.all_reduce([0], [(0, 9, 0)])))))


def test_a_ring_s_result_stays_in_its_parts():
    """A CONCAT in place is no op: each part is kept as it is, and together they are all of it."""
    ring = plan("ring", 102)
    for op in np.flatnonzero(ring.kind == Kind.OUTPUT).tolist():
        intervals = parts(ring, op)
        assert 4 == len(intervals)
        assert list(range(102)) == [i for lo, hi in intervals for i in range(lo, hi)]


def test_a_chained_step_makes_every_transfer_as_often():
    once, thrice = (expect_execution(plan(), logical_cpus(5), times) for times in (1, 3))

    assert {key: 3 * count for key, count in once.transfers.items()} == thrice.transfers
    assert {key: 3 * count for key, count in once.sums.items()} == thrice.sums
    assert 24 == sum(once.transfers.values())


def test_tasks_are_processes():
    """A task's host is its first CPU; what is in no task is a process of its own."""
    names = by_task([(0, 1), (2, 3)], [4, -1], 6)

    assert [("worker", 0, n) for n in (1, 2)] + [("worker", 1, n) for n in (0, 1)] == [
        _parsed(n) for n in names[:4]
    ]
    assert ("worker", 0, 0) == _parsed(names[4])
    assert ("worker", 2, 0) == _parsed(names[5])
    assert len(names) == len(set(names))


def _parsed(name):
    job, _, task = process(name).removeprefix("/job:").split("/")
    return job, int(task.removeprefix("task:")), int(name.rpartition(":")[2])


def test_a_device_has_its_full_name():
    assert "/job:worker/replica:0/task:2/device:GPU:1" == device("GPU", 1, "worker", 2)


@pytest.mark.parametrize(
    ("product", "model"),
    [("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
    ("NVIDIA A100-SXM4-40GB", "A100"),
     ("Tesla V100-PCIE-32GB", "V100-PCIE"), ("Tesla V100-SXM2-16GB", "V100"),
     ("NVIDIA GeForce RTX 4090", "RTX4090"),
     ("NVIDIA A10G", "A10G"), ("Radeon", "")],
)  # fmt: skip
def test_products_are_models(product, model):
    assert model == model_of(product).name


def test_a_table_of_nvidia_smi_is_a_machine():
    machine = from_table(
        "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-19\nGPU1\tNV2\t X \t0-19\n", model_of("V100")
    )

    assert ("gpu0", "gpu1") == sr.layout(machine).ranks
    assert 2 == sr.layout(machine).links[0][1]


def test_parts_of_a_gpu_copy_through_its_memory():
    """A copy reads and writes: half of what the memory carries. Links to the host are of a class of
    their own, in the text by which the machine can be had again.
    """
    machine = parts_of(model_of("H200"), 4)

    assert 4 == sr.layout(machine).n
    assert {2400e9} == {each.bandwidth for each in machine.links if each.link_class == "cable"}
    assert {4800e9} == {machine.nodes[name].memory_bandwidth for name in sr.layout(machine).ranks}
    assert {"host"} == {
        each.link_class for each in machine.links if "cpu0" in (each.source, each.target)
    }
    assert sr.load_topology(machine.name).digest == machine.digest
    with pytest.raises(InputError, match="2 to 64"):
        parts_of(model_of("H200"), 65)


@pytest.mark.parametrize(
    ("text", "found"), [(None, [0, 1, 2, 3]), ("1,3", [1, 3]), ("0", [0]), ("3,1", "ascending"),
    ("", "ascending"),
                        ("4", "by number, 0 to 3"), ("GPU-8f", "by number")],
)  # fmt: skip
def test_gpus_that_tensorflow_may_use(monkeypatch, text, found):
    if text is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    if isinstance(found, list):
        assert found == visible(4)
    else:
        with pytest.raises(InputError, match=found):
            visible(4)


@pytest.mark.parametrize("name", BUILTINS)
def test_builtins_promise_what_our_plans_do(name):
    """The same contract, for the same gradients, as the plan that a prediction is made from."""
    ours = sr.compile(BUILTINS[name], Workload("w", (Gradient("a", 5), Gradient("b", 7))), SWITCH)
    theirs = Builtin(name, (5, 7), 4).plan(SWITCH.devices)

    assert _rows(ours.contract) == _rows(theirs.contract)


def _rows(contract):
    columns = (contract.device, contract.lo, contract.hi, contract.dtype, contract.divisor)
    return sorted(
        (*row, contract.sets[m])
        for *row, m in zip(*(c.tolist() for c in columns), contract.members, strict=True)
    )


def test_hosts_are_workers_that_a_command_starts():
    assert [Worker("a:2222", ("ssh", "a")), Worker("b:2223", ("ssh", "b"))] == read_workers(
        "a:2222,b:2223", "ssh {host}"
    )
    assert [Worker("10.0.0.1:1", ("ip", "netns", "exec", "ns0"))] == read_workers(
        "10.0.0.1:1", "ip netns exec ns{i}"
    )
    assert [] == read_workers(None, "")
    assert Worker("a:2229", ("ssh", "a")) == beside(Worker("a:2222", ("ssh", "a")), 7)


@pytest.mark.parametrize(
    ("hosts", "launch", "problem"),
    [("a", "", "'a' is not HOST:PORT"), ("a:0,b:99999", "", "'b:99999' is not"),
    (None, "ssh", "needs --hosts"),
     ("a:1", "ssh {node}", "only {host} and {i}"), ("a:1", "ssh {", "only {host} and {i}"),
     ("a:1", "'", "only {host} and {i}")],
)  # fmt: skip
def test_bad_hosts_are_told(hosts, launch, problem):
    with pytest.raises(InputError) as error:
        read_workers(hosts, launch)

    assert any(problem in text for text in error.value.problems)


@pytest.fixture
def asked(monkeypatch, capsys):
    def ask(*arguments):
        monkeypatch.setattr(sys, "argv", ["simreduce validate", *arguments])
        with pytest.raises(SystemExit) as end:
            main(validate)
        return end.value.code, *capsys.readouterr()

    return ask


def test_every_fault_of_a_question_is_told_at_once(asked):
    status, out, err = asked(
        "swich:4", "--algo", "rng", "--backend", "inprc", "--route", "sesion", "--hosts", "a",
        "--dtype", "floot", "-b", "x",
        "--builtin", "NcclReduce", "--calibration", "nowhere", "--timeout", "0",
    )  # fmt: skip

    assert (2, "") == (status, out)
    for part in ("swich", "rng", "'inproc'", "'session'", "'a' is not HOST:PORT", "floot", "-b",
    "'NcclAllReduce'", "nowhere",
                 "--timeout 0"):  # fmt: skip
        assert part in err, part
    assert all(line.startswith("simreduce: ") for line in err.splitlines())


def test_without_tensorflow_it_says_what_to_install(asked, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    status, _, err = asked("switch:2", "-b", "64")

    assert 2 == status
    assert [
        "simreduce: devices need TensorFlow: pip install 'simreduce[tensorflow]'"
    ] == err.splitlines()


def test_no_gpu_is_told(asked, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    status, _, err = asked("auto", "--backend", "gpu")

    message = "simreduce: auto: this machine has no nvidia-smi, so its GPUs are unknown\n"

    assert (2, message) == (status, err)


def test_devices_that_fail_are_one_line(monkeypatch, capsys):
    @click.command()
    def failing():
        raise DeviceError("worker 3: it has ended")

    monkeypatch.setattr(sys, "argv", ["failing"])
    with pytest.raises(SystemExit) as end:
        main(failing)

    assert (1, "simreduce: worker 3: it has ended\n") == (end.value.code, capsys.readouterr().err)


@pytest.mark.slow
def test_the_way_in_loads_no_tensorflow():
    """The process that asks stays light, and can be one without TensorFlow."""
    code = "import sys, simreduce_validate.validate; sys.exit('tensorflow' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode


def test_a_contract_s_other_sets_have_other_sums():
    """Of an all-gather, each part is its giver's own."""
    whole = plan("one_shot", 8)
    contract = replace(Contract.all_gather(range(4), [(0, 8, 0)]))
    contents = Contents.of(replace(whole, contract=contract))
    op = int(np.flatnonzero(whole.kind == Kind.OUTPUT)[0])

    assert [contents.of_contributor(i // 2, i, i + 1)[0] for i in range(8)] == contents.promised(
        op
    ).tolist()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ""),
        ("no such node\nand a long trace", "no such node"),
        ("From /job:worker/replica:0/task:1:\n\n  Step was cancelled\n more",
        "From /job:worker/replica:0/task:1: Step was cancelled"),
        ("x" * 600, "x" * 500),
    ],
)  # fmt: skip
def test_an_error_is_told_in_one_line(text, told):
    def fails():
        raise RuntimeError(text)

    assert (False, f"RuntimeError: {told}") == _answer(fails, ())


def test_values_are_kept_while_there_is_room():
    """Two of 40 bytes fit into 100, the third one makes room, and one of 400 is never kept."""
    kept, made = KeptValues(100), []

    def make(name, many):
        made.append(name)
        return np.zeros(many, np.float32)

    for name in "abacac":
        kept.get((name, 10), make)
        assert kept.held == sum(each.nbytes for each in kept.values.values()) <= 100
    kept.get(("large", 100), make)
    kept.get(("large", 100), make)

    assert [*"abca", "large", "large"] == made
    assert 80 == kept.held
