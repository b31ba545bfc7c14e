"""Keys of questions, and digests: equal questions are one, and whatever changes an answer is in."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

import simreduce
from simreduce.errors import InputError
from simreduce.study import sweep
from simreduce.study.scenario_files import load_replicas
from simreduce.study.sweep import _OURS, _SHOWN, Cell, calibration_digest
from simreduce.study.sweep.evaluate import evaluate
from simreduce.study.sweep.grid import read_specification
from simreduce.study.sweep.question import read_question, set_machine
from simreduce.training.stragglers import repeat


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        ("dgx-a100", {"nodes": 4}, ("dgx-a100x4", {})),
        ("dgx-a100", {"nodes": 1, "fabric": "fat_tree"}, ("dgx-a100", {})),
        ("dgx-a100x4,nic=ib_hdr", {"machine": "p4d"}, ("p4dx4,nic=ib_hdr", {})),
        ("dgx-a100x4,fabric=fat_tree,oversubscription=2", {"fabric": "rail_optimised"},
         ("dgx-a100x4,fabric=rail_optimised", {})),
        ("dgx-a100x4,fabric=fat_tree", {"oversubscription": 2, "links.nvlink3.bandwidth": "9 GB/s"},
         ("dgx-a100x4,fabric=fat_tree,oversubscription=2", {"links.nvlink3.bandwidth": "9 GB/s"})),
        ("switch:8", {"nodes": 16, "bandwidth": "5GB/s"}, ("switch:16,bandwidth=5GB/s", {})),
        ("dgx-a100x8", {"seed": 3, "equal_cost": "hashed"},
         ("dgx-a100x8,seed=3,equal_cost=hashed", {})),
    ],
)  # fmt: skip
def test_settings_of_a_machine_go_into_its_text(text, settings, expected):
    assert set_machine(text, settings) == expected


def test_every_fault_of_keys_and_values_is_said_at_once():
    with pytest.raises(InputError) as error:
        read_specification(
            "step-dgx1p-resnet50",
            {
                "bach": "1,2",
                "strategy": "ring,rng",
                "calibration": "nominl",
                "nodes": "8..2",
                "size": "1X,2Y",
                "seed": "1,2",
                "rate": "1 TFLOP/s",
            },
            {"machine": "dgx1w", "nccl.version": "2.18", "step.time": "1 ms"},
            [("bach", "nodez")],
        )

    text = str(error.value)
    assert text.count("unknown key") == 1
    for words in ("bach: unknown key (did you mean 'batch'?)", "did you mean 'ring'?",
                  "did you mean 'nominal'?", "did you mean 'dgx1v'?", "over.nodes: '8..2' ends",
                  "over.size: '1X' is not a size", "over.size: '2Y' is not a size",
                  "set.step.time and over.rate exclude each other",
                  "seed: only jitter draws from it", "zip: nodez has no values"):  # fmt: skip
        assert words in text


@pytest.mark.parametrize(
    ("over", "fixed", "words"),
    [
        ({"nodes": "1,2"}, {"nodes": 4}, "set.nodes and over.nodes are one key"),
        ({"size": "1K"}, {"bytes": "2K"}, "set.bytes and over.size are one key"),
        ({"seed": "1,2"}, {}, "seed: only jitter draws from it"),
        ({"root": "0,1"}, {}, "root: only reduce and broadcast have one"),
    ],
)
def test_two_words_for_one_thing_are_refused(over, fixed, words):
    """Not the last of them taken without a word."""
    with pytest.raises(InputError, match=words):
        read_specification("dgx1v", over, fixed)


def test_a_strategy_is_one_of_the_collectives_of_the_sweep():
    """Of any of them: only a broadcast is made of a scatter."""
    of_broadcasts = {"strategy": "scatter_all_gather,nccl"}

    assert len(read_specification("dgx1v", of_broadcasts, {"collective": "broadcast"}).plan()) == 2
    both = of_broadcasts | {"collective": "all_reduce,broadcast"}
    assert len(read_specification("dgx1v", both, {}).plan()) == 4
    with pytest.raises(InputError, match="scatter_all_gather"):
        read_specification("dgx1v", of_broadcasts, {})


def test_options_replace_what_a_file_varies_or_sets(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'question = "switch:4"\n[over]\nnodes = "2..4"\nsize = "1K,2K"\n[set]\ndtype = "half"\n'
    )
    found = read_specification(str(file), {"dtype": "float,half"}, {"nodes": 8})

    assert (dict(found.fixed), [*found.over]) == ({"nodes": 8}, ["size", "dtype"])


def test_a_cell_travels_as_json():
    cell = read_question("step-dgx1p-resnet50").cell({"batch": 32, "slow": "gpu1=1.5"})

    assert Cell(**json.loads(json.dumps(asdict(cell)))) == cell


def test_equal_questions_have_one_digest_and_the_words_do_not_matter():
    question = read_question("dgx-a100")
    digest = question.cell({"size": "1M", "nodes": 2}).digest

    assert digest == question.cell({"nodes": 2, "size": 1 << 20}).digest
    assert digest == question.cell({"bytes": "1MiB", "nodes": 2}).digest
    assert digest != question.cell({"size": "2M", "nodes": 2}).digest


FILES = {
    "machine.toml": ('extends = "dgx1v"\n', '[links.qpi]\nbandwidth = "9 GB/s"\n'),
    "model.csv": ("name,elements\na,1024\n", "b,4096\n"),
    "mine.toml": ('[dispatch]\ncopy = "10 us"\n', 'concat = "20 us"\n'),
    "profile.csv": ("name,forward,backward\na,1 ms,2 ms\n", "b,1 ms,3 ms\n"),
}


@pytest.mark.parametrize("changed", FILES)
def test_the_content_of_every_file_that_is_named_is_in_the_digest(tmp_path, changed):
    def digest(folder, name=""):
        folder.mkdir()
        for file, (first, more) in FILES.items():
            (folder / file).write_text(first + (more if file == name else ""))
        (folder / "it.toml").write_text(
            'topology = "machine.toml"\nworkload = "model.csv"\ncalibration = "mine.toml"\n'
            '[step]\nbatch = 1\nprofile = "profile.csv"\n'
        )
        cell = read_question(str(folder / "it.toml")).cell({})
        assert set(cell.contents) == {"topology", "workload", "calibration", "step.profile"}
        return cell.contents

    one, other = digest(tmp_path / "one"), digest(tmp_path / "two", changed)
    assert len([key for key in one if one[key] != other[key]]) == 1


def test_a_calibration_counts_by_its_constants_not_by_its_words(tmp_path):
    for name, text in (("a", "# one\n"), ("b", "# two\n"), ("c", "")):
        cost = "30 us" if name == "c" else "20 us"
        (tmp_path / f"{name}.toml").write_text(f'{text}[dispatch]\ncopy = "{cost}"\n')
    digests = [calibration_digest(str(tmp_path / f"{name}.toml")) for name in "abc"]

    assert digests[0] == digests[1] != digests[2]


def test_a_cell_of_another_version_is_not_computed():
    cell = read_question("switch:4").cell({})
    other = Cell(cell.kind, cell.document, code="0.0.9")

    row = evaluate(other)
    assert row.state == "failed"
    assert re.search(r"not 0\.0\.9", row.reason)


def test_a_sweep_file_says_what_options_say(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'question = "switch:4"\ntitle = "Mine"\nzip = [["nodes", "size"]]\n[set]\ndtype = "half"\n'
        '[over]\nnodes = [2, "4..8*2"]\nsize = "1K..4K*2"\nstrategy = ["ring", "direct"]\n'
    )
    plan = read_specification(str(file), {}, {}).plan()

    assert [tuple(each.settings.values()) for each in plan][:3] == [
        (2, 1024, "ring"), (2, 1024, "direct"), (4, 2048, "ring"),
    ]  # fmt: skip
    assert len(plan) == 6
    assert all(each.cell.document["dtype"] == "half" for each in plan)


def test_every_fault_of_a_sweep_file_is_said_with_its_place(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'question = "dgx1w"\nkind = "benhc"\n[over]\nnodes = "8..2"\n[sample]\ncuont = 3\n'
    )
    with pytest.raises(InputError) as error:
        read_specification(str(file), {}, {})

    text = str(error.value)
    for words in ("kind: unknown", "sample.cuont: unknown key (did you mean 'count'?)",
                  "over.nodes: '8..2' ends before it begins"):  # fmt: skip
        assert f"{file}: {words}" in text


def test_a_sample_has_ten_million_cells_at_most(tmp_path):
    file = tmp_path / "mine.toml"
    text = 'question = "switch:4"\n[over]\nbandwidth = "1..2 GB/s"\n[sample]\ncount = {}\n'
    file.write_text(text.format(10_000_000))
    assert 10_000_000 == read_specification(str(file), {}, {}).sample.count

    file.write_text(text.format(10_000_001))
    with pytest.raises(InputError, match=r"sample\.count: must be"):
        read_specification(str(file), {}, {})


def test_the_digest_covers_every_source_that_makes_answers(monkeypatch, tmp_path):
    """And none that only shows them."""
    package = tmp_path / "simreduce"
    names = ("engine/kernel.py", "files/calibrations/nccl.toml", "files/calibrations/errors.csv",
             "study/sweep/evaluate.py", "report/bench.py", "app/cli/run.py")  # fmt: skip
    for name in names:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("1")
    monkeypatch.setattr(sweep, "files", lambda _: package)

    def changes(name):
        before = sweep.code.__wrapped__()
        (package / name).write_text("2")
        return sweep.code.__wrapped__() != before

    assert [changes(name) for name in names] == [True, True, True, True, False, False]


def test_less_than_one_element_is_no_collective():
    row = evaluate(read_question("switch:4").cell({"size": 3}))

    assert (row.state, row.reason) == (
        "refused", "size: must be at least 4 bytes, one element of every part",
    )  # fmt: skip


def test_why_a_cell_cannot_be_names_its_key_and_no_file_that_there_is_not():
    """The same words on every computer."""
    row = evaluate(read_question("step-dgx1p-resnet50").cell({"rate": "0 TFLOP/s"}))

    assert (row.state, row.reason) == ("refused", "step.rate: must be a rate above 0")


def test_replicas_are_asked_as_by_step(tmp_path):
    """Any key of `[replicas]`; `slow` and `seed` by themselves are of devices and of jitter."""
    file = tmp_path / "mine.toml"
    text = (
        'topology = "dgx1v"\n[replicas]\nworkers = 4\nbackups = {}\nsize = "2097152 B"\n'
        'updates = 20\nrepetitions = 3\nseed = 5\ncompute = {{distribution = "exponential",'
        ' mean = "9 ms"}}\n'
    )
    file.write_text(text.format(0).replace("2097152 B", "1 KB").replace("5", "1"))
    over = {"backups": "0,1,4", "size": "2M"}
    plan = read_specification(str(file), over, {"replicas.seed": 5, "repetitions": 3}).plan()
    rows = [evaluate(each.cell) for each in plan]

    assert [row.state for row in rows] == ["done", "done", "refused"]
    assert rows[2].reason == "replicas.backups: must be fewer than the 4 workers, got 4"
    for backups, row in enumerate(rows[:2]):
        file.write_text(text.format(backups))
        question = load_replicas(str(file)).question
        found = repeat(question.job, question.updates, question.repetitions)
        assert row.seconds == found.step(question.skip).mean
        assert (row.dropped, row.ranks) == (found.wasted, 4)
    with pytest.raises(InputError, match=r"or replicas\.seed"):
        read_specification(str(file), {"seed": "1,2"}, {})
    with pytest.raises(InputError, match=r"over\.strategy: unknown key"):
        read_specification(str(file), {"strategy": "ring"}, {})


def test_a_name_of_no_machine_is_said_before_anything_starts():
    """With the nearest, as other commands say it."""
    with pytest.raises(InputError, match=r"no topology 'dgx1w'.*did you mean 'dgx1v'"):
        read_question("dgx1w")


def test_a_machine_that_is_too_large_to_hold_is_a_question():
    """It is folded when a cell is asked."""
    assert read_question("dgx-h100x16384").document == {"topology": "dgx-h100x16384"}


def test_a_part_that_fails_is_a_key():
    """`none` is as if never said; a spine is its links cut, a node its GPUs left out."""
    tree = "dgx1vx2,fabric=fat_tree,radix=4,oversubscription=2"
    question = read_question(tree)
    plain = question.cell({"strategy": "nccl"})
    found = {
        name: evaluate(question.cell({"strategy": "nccl", "fails": name}))
        for name in ("spine", "spine0", "node", "core")
    }

    assert question.cell({"strategy": "nccl", "fails": "none"}).digest == plain.digest
    assert found["spine"].seconds == found["spine0"].seconds > evaluate(plain).seconds
    assert (16, 8) == (found["spine"].ranks, found["node"].ranks)
    assert "has no core" in found["core"].reason
    with pytest.raises(InputError, match="did you mean 'spine'"):
        read_specification(tree, {"fails": "none,spin"}, {})


def test_the_code_that_makes_answers_is_where_it_is_said_to_be():
    """So that answers of other code are not taken for answers of this one."""
    package = Path(simreduce.__file__).parent
    assert [name for name in (*_OURS, *_SHOWN) if not (package / name).exists()] == []


@pytest.mark.parametrize("key", ["link_bandwidth", "links.bandwidth", "nvlink.bandwidth"])
def test_a_guess_at_the_bandwidth_of_links_gets_the_keys_that_there_are(key):
    """Of the machine's file, and of a scenario the one that scales networks too."""
    of_file = r"topology\.links\.nvlink\.bandwidth"
    with pytest.raises(InputError, match=f"unknown key; of this machine there are.*{of_file}"):
        read_specification("dgx-h100x2", {key: "1,2"}, {})
    with pytest.raises(InputError, match=f"{of_file}.*link_factors.LINKS"):
        read_specification("dgx-h100-gpt2-ddp", {key: "1,2"}, {})


def test_links_of_a_network_are_scaled_by_their_class(tmp_path):
    file = tmp_path / "two.toml"
    file.write_text('topology = "dgx-h100x2"\nworkload = "bytes:64MiB"\nstrategies = ["nccl"]\n')
    plan = read_specification(str(file), {"link_factors.ib_ndr": "0.1,1"}, {}).plan()
    slow, own = (evaluate(each.cell).seconds for each in plan)

    assert slow > 1.5 * own
    assert own == evaluate(read_question(str(file)).cell({})).seconds


def test_ways_to_run_are_compared():
    """As keys of a step; they are no constants of others."""
    ask = read_question("dgx-h100-gpt2-ddp").cell
    eager, compiled = (
        evaluate(ask({"kernels": way, "precision": "bf16", "strategy": "nccl+ddp"}))
        for way in ("eager", "compiled")
    )

    assert eager.compute > 1.3 * compiled.compute
    assert eager.constants is None is compiled.constants
