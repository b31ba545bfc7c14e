"""`run`'s outputs: the table for people and the document for programs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import simreduce
from simreduce.engine import Calibration
from simreduce.engine.setup import Setup
from simreduce.export import StrategySettings
from simreduce.planners.strategy import parse_strategy
from simreduce.report.headings import factor_keys
from simreduce.report.ranking import RUN, preview_lines, ranking_table
from simreduce.study.scenario import Scenario
from simreduce.study.tune.rank import Bounded, Candidate, StrategyRanking
from simreduce.workload.loader import load_workload

MORE = "more algorithms, packings and orders of the GPUs"
NONE = StrategySettings(None, None)
FLAGS = StrategySettings("--num_gpus=4 --flag", "tf.call()")


def _candidate(
    text: str,
    seconds: float,
    wrong: int = 0,
    settings: StrategySettings = FLAGS,
    chosen_by: tuple[str, ...] = (),
    upstream: str = "",
) -> Candidate:
    return Candidate(
        strategy=parse_strategy(text),
        seconds=seconds,
        floor_seconds=seconds / 2,
        transfers=12,
        wrong=wrong,
        link="gpu0>gpu1 cable",
        link_share=0.25,
        lane="",
        lane_share=0.0,
        settings=settings,
        chosen_by=chosen_by,
        upstream=upstream,
    )


def _ranking(
    *candidates: Candidate, refused: tuple[tuple[str, str], ...] = (), repeat: int = 1
) -> StrategyRanking:
    scenario = Scenario(
        "name", "a title", Setup("full:4"), load_workload("bytes:1MB"), None, repeat
    )
    return StrategyRanking(scenario, candidates, refused)


def test_the_table_names_what_was_asked_and_what_came_out():
    """Every number can be traced: machine and its digest, workload, runtime, calibration."""
    ranking = _ranking(
        _candidate("psgpu#4", 0.5e-3, chosen_by=("a_rule", "another")),
        _candidate("ring+packs=8", 1.25e-3, upstream="upstream makes 7 transfers of it"),
        refused=(("hierarchical_copy", "hierarchical_copy: not here"),),
    )
    digest = ranking.scenario.setup.topology.digest

    assert f"""\
# a title
Recommended: Use call: an all-reduce takes 500 us.
  tf_cnn_benchmarks  Use --flag: 500 us.
  of the settings ranked here; `simreduce tune FILE --target tensorflow` also tries {MORE}

# topology     full:4: 4 devices, every pair linked, 25 GB/s, 1 us, 4 ranks, {digest}
# workload     bytes:1MB: 1 gradient, 250000 elements, 1 MB
# runtime      tensorflow, time of one all-reduce
# calibration  nominal (published link rates and latencies, no fitted constant, no dispatch cost)
#
#  strategy       time   algbw   busbw  transfers  busiest link         busiest lane\
         #wrong  chosen by
                  (ms)  (GB/s)  (GB/s)             (share of the time)  (share of the time)
1  psgpu#4       0.500    2.00    3.00         12  gpu0>gpu1 cable 25%  -\
                         0  a_rule, another
2  ring+packs=8  1.250    0.80    1.20         12  gpu0>gpu1 cable 25%  -                         0

Upstream does something else under these names (--faithful ranks that):
  ring+packs=8: upstream makes 7 transfers of it

Not possible here (1):
  hierarchical_copy: not here\
""" == ranking_table(ranking)

    few = ranking_table(ranking, details=False)
    assert few.endswith("\n\n1 strategy not possible here: --details shows them")


def test_other_names_of_a_plan_stand_below_the_table():
    """All of them in the document, with what each is typed as."""
    row = _candidate("nccl+bucket=0", 1e-3, chosen_by=("a_rule",))
    packs = [_candidate(f"nccl+packs={k}", 1e-3, settings=NONE) for k in range(1, 12)]
    ranking = _ranking(replace(row, also=tuple(packs)))
    lines = ranking_table(ranking).splitlines()
    start = lines.index("The same plan under other names:")
    others = RUN.write(ranking)["candidates"][0]["also"]

    assert lines[start + 1].startswith("  nccl+bucket=0 = nccl+packs=1, nccl+packs=2, ")
    assert lines[start + 2].startswith("    nccl+packs=")
    assert all(len(line) <= 100 for line in lines[start:])
    assert [c.strategy.text for c in packs] == [other["strategy"] for other in others]
    assert {"tf_cnn_benchmarks": None, "tensorflow": None} == others[0]["settings"]


def test_rows_of_several_runtimes_say_which():
    """In a column; of one runtime, the header says it."""
    row = _candidate("ring", 1e-3)
    table = ranking_table(_ranking(replace(_candidate("ring+ddp", 5e-4), runtime="nccl"), row))
    of_one = ranking_table(_ranking(replace(_candidate("ring+ddp", 5e-4), runtime="nccl")))

    assert "# runtime      by strategy (nccl or tensorflow), time of one all-reduce" in table
    assert "1  ring+ddp  nccl        0.500" in table
    assert "2  ring      tensorflow  1.000" in table
    assert "# runtime      nccl, time of one all-reduce" in of_one
    assert "1  ring+ddp  0.500" in of_one


def test_a_lower_bound_is_not_recommended_before_nccl_that_may_be_as_fast():
    """A time without dispatch comes first only where it is faster for certain."""
    bound = replace(_candidate("collective", 1e-3), undispatched=True)
    nccl = replace(_candidate("nccl+packs=1", 1.1e-3), shortest=0.9e-3)
    table = ranking_table(_ranking(bound, nccl))
    unsure = (
        "  collective takes 1 ms and the dispatch of its copies, which this calibration does not"
    )

    assert f"{unsure} know" in table.partition("\n\n")[0].splitlines()
    assert "nccl+packs=1" == _ranking(bound, nccl).recommended.strategy.text
    slower = replace(nccl, shortest=1.05e-3)
    assert "collective" == _ranking(bound, slower).recommended.strategy.text
    dispatched = replace(bound, undispatched=False)
    assert "collective" == _ranking(dispatched, nccl).recommended.strategy.text


def test_a_chained_step_is_said_to_be_one():
    """The time is still that of one all-reduce."""
    table = ranking_table(_ranking(_candidate("ring", 1e-3), repeat=5))

    assert (
        "# runtime      tensorflow, time of one all-reduce, each of 5 chained in one step"
        in table.splitlines()
    )


def test_a_ranking_of_what_upstream_does_says_so():
    """To people and to programs."""
    ranking = _ranking(_candidate("ring", 1e-3))
    ranking = replace(ranking, scenario=replace(ranking.scenario, faithful=True))

    assert (
        "# runtime      tensorflow, time of one all-reduce, faithful to upstream"
        in ranking_table(ranking).splitlines()
    )
    assert RUN.write(ranking)["faithful"] is True


def _advice(ranking: StrategyRanking) -> list[str]:
    """The advice below the title, without the last line of what `tune` tries besides."""
    title, *lines = ranking_table(ranking).partition("\n\n")[0].splitlines()
    assert title.startswith("# ")
    for name in filter(None, [each.framework for each in ranking.advice[:1]]):
        command = f"`simreduce tune FILE --target {name}`"
        assert f"  of the settings ranked here; {command} also tries {MORE}" == lines.pop()
    return lines


def test_a_faster_plan_that_nothing_can_run_is_told():
    """Beside the recommendation, which can be run."""
    assert [
        "Recommended: Use call: an all-reduce takes 2 ms.",
        "  tf_cnn_benchmarks  Use --flag: 2 ms.",
        "  ring takes 1 ms, and no framework has a setting for it",
    ] == _advice(_ranking(_candidate("ring", 1e-3, settings=NONE), _candidate("psgpu", 2e-3)))


@pytest.mark.parametrize(
    ("strategy", "call"),
    [
        ("multimem", "torch.ops.symm_mem.multimem_all_reduce_"),
        ("symmetric", "torch.distributed.all_reduce after register_mem_pool(pool, symm=True)"),
    ],
)
def test_a_faster_plan_without_a_setting_is_told_with_the_call_that_a_framework_has(strategy, call):
    ranking = _ranking(_candidate(strategy, 1e-3, settings=NONE), _candidate("psgpu", 2e-3))

    assert f"  {strategy} takes 1 ms, and PyTorch has it as {call}" == _advice(ranking)[-1]


def test_a_faster_plan_that_is_wrong_is_not_said_to_be_only_hard_to_run():
    """It stands in the table with its #wrong; the recommendation is not compared with it."""
    assert [
        "Recommended: Use call: an all-reduce takes 2 ms.",
        "  tf_cnn_benchmarks  Use --flag: 2 ms.",
    ] == _advice(_ranking(_candidate("ring", 1e-3, wrong=3), _candidate("psgpu", 2e-3)))


def test_where_no_framework_has_a_setting_the_fastest_is_run():
    ranking = _ranking(_candidate("ring", 1e-3, settings=NONE), _candidate("xring", 2e-3, 0, NONE))

    assert ["Recommended: Run ring: an all-reduce takes 1 ms."] == _advice(ranking)
    assert "ring" == RUN.write(ranking)["recommended"]


def test_each_framework_gets_the_fastest_that_it_has_a_setting_for():
    ranking = _ranking(
        _candidate("ring", 1e-3, settings=NONE),
        _candidate("xring", 2e-3, settings=StrategySettings("--a=1", None)),
        _candidate("nccl", 3e-3, wrong=1),
        _candidate("psgpu", 4e-3, settings=StrategySettings(None, "tf.call()")),
        _candidate("reduce_to_one", 5e-3),
    )

    assert [
        "Recommended: Use call: an all-reduce takes 4 ms.",
        "  tf_cnn_benchmarks  Set --a=1: 2 ms.",
        "  ring takes 1 ms, and no framework has a setting for it",
    ] == _advice(ranking)
    document = RUN.write(ranking)
    assert "psgpu" == document["recommended"]
    found = {each["framework"]: each["strategy"] for each in document["advice"]}
    assert {"tensorflow": "psgpu", "tf_cnn_benchmarks": "xring"} == found

    named = replace(ranking, scenario=replace(ranking.scenario, framework="tf_cnn_benchmarks"))
    assert "xring" == named.recommended.strategy.text


def test_what_runs_today_is_kept_unless_a_change_is_worth_it():
    """By the rule that TensorFlow chooses by; the reason is said, and what it would save."""
    today = _candidate("copy_to_gpus", 1e-3, settings=StrategySettings("--reduce=nccl", None))
    ranking = _ranking(
        _candidate("psgpu", 0.995e-3, settings=StrategySettings("--reduce=gpu", None)), today
    )

    [line] = _advice(ranking)
    assert line == (
        "Recommended: Keep variable_update=replicated with its own all-reduce: an all-reduce takes "
        "1 ms. --reduce=gpu would save 0.5 %, less than the 1 % that a change has to save."
    )
    assert "copy_to_gpus" == RUN.write(ranking)["recommended"]

    worth = replace(ranking, scenario=replace(ranking.scenario, worth=0.001))
    [line] = _advice(worth)
    assert line == (
        "Recommended: Set --reduce=gpu: an all-reduce takes 995 us, 0.5% faster than "
        "variable_update=replicated with its own all-reduce (1 ms)."
    )


@pytest.mark.parametrize(
    "candidates", [(), (_candidate("ring", 1e-3, wrong=1),)], ids=["none", "wrong"]
)
def test_without_a_proven_plan_there_is_no_recommendation(candidates):
    """In words for people, null for programs."""
    ranking = _ranking(*candidates)

    assert ["No strategy has a plan that is proven right."] == _advice(ranking)
    assert RUN.write(ranking)["recommended"] is None


def test_the_document_has_the_keys_that_others_rely_on():
    """In this order; quantities with their units in their names; it is JSON as it stands."""
    ranking = _ranking(
        _candidate("psgpu#4+mean", 0.5e-3, chosen_by=("a_rule",)),
        _candidate("ring+packs=8", 1.25e-3, wrong=2, settings=NONE, upstream="upstream refuses it"),
        refused=(("xring#9", "xring#9: too many"),),
    )
    document = RUN.write(ranking)

    assert {
        "command": "run",
        "version": simreduce.__version__,
        "schema": "run/1",
        "scenario": "name",
        "title": "a title",
        "topology": "full:4",
        "topology_digest": ranking.scenario.setup.topology.digest,
        "equal_paths": "",
        "workload": "bytes:1MB",
        "size_bytes": 1_000_000,
        "ranks": 4,
        "runtime": "tensorflow",
        "nccl_settings": "",
        "calibration": "nominal",
        "call_cost_us": 0.0,
        "faithful": False,
        "disturbance": "",
        "candidates": [
            {
                "place": 1,
                "strategy": "psgpu#4+mean",
                "spec": "psgpu#4",
                "packing": "none",
                "runtime": "tensorflow",
                "time_us": pytest.approx(500),
                "floor_us": pytest.approx(250),
                "algbw_gb_per_s": pytest.approx(2),
                "busbw_gb_per_s": pytest.approx(3),
                "transfers": 12,
                "wrong": 0,
                "bottleneck": "gpu0>gpu1 cable",
                "bottleneck_share": 0.25,
                "busiest_lane": "",
                "busiest_lane_share": 0.0,
                "chosen_by": ["a_rule"],
                "upstream": "",
                "settings": {"tf_cnn_benchmarks": "--num_gpus=4 --flag", "tensorflow": "tf.call()"},
                "also": [],
            },
            {
                "place": 2,
                "strategy": "ring+packs=8",
                "spec": "ring",
                "packing": "packs=8",
                "runtime": "tensorflow",
                "time_us": pytest.approx(1250),
                "floor_us": pytest.approx(625),
                "algbw_gb_per_s": pytest.approx(0.8),
                "busbw_gb_per_s": pytest.approx(1.2),
                "transfers": 12,
                "wrong": 2,
                "bottleneck": "gpu0>gpu1 cable",
                "bottleneck_share": 0.25,
                "busiest_lane": "",
                "busiest_lane_share": 0.0,
                "chosen_by": [],
                "upstream": "upstream refuses it",
                "settings": {"tf_cnn_benchmarks": None, "tensorflow": None},
                "also": [],
            },
        ],
        "bounded": [],
        "refused": [{"strategy": "xring#9", "reason": "xring#9: too many"}],
        "advice": [
            {
                "framework": name,
                "title": title,
                "change": True,
                "state": "change",
                "do": do,
                "strategy": "psgpu#4+mean",
                "time_us": pytest.approx(500),
                "today": "",
                "fits": True,
                "today_fits": True,
                "error_us": None,
                "caveat": "",
                "more": MORE,
                "today_strategy": None,
                "today_time_us": None,
                "fastest": do.partition(" ")[2],
                "fastest_strategy": "psgpu#4+mean",
                "fastest_time_us": pytest.approx(500),
                "reason": "",
            }
            for name, title, do in (
                ("tensorflow", "TensorFlow", "Use call"),
                ("tf_cnn_benchmarks", "tf_cnn_benchmarks", "Use --flag"),
            )
        ],
        "recommended": "psgpu#4+mean",
        **factor_keys(ranking.scenario),
        "complete": True,
        "hurried": False,
    } == document
    assert json.loads(json.dumps(document)) == document

    promised = [
        "command",
        "version",
        "scenario",
        "topology",
        "workload",
        "ranks",
        "runtime",
        "calibration",
        "candidates",
        "recommended",
        "factor",
        "ratio_factor",
    ]
    of_each = [
        "place",
        "strategy",
        "spec",
        "packing",
        "runtime",
        "time_us",
        "floor_us",
        "transfers",
        "wrong",
        "bottleneck",
        "settings",
    ]
    assert promised == [key for key in document if key in promised]
    assert of_each == [key for key in document["candidates"][0] if key in of_each]


def test_the_calibration_is_named_with_what_it_is():
    """Its title, where it has one."""
    setup = Setup("full:2", calibration=Calibration("mine"))
    scenario = Scenario("n", "t", setup, load_workload("bytes:4"), None)

    assert "# calibration  mine" in ranking_table(StrategyRanking(scenario, (), ())).splitlines()


def test_rows_that_are_bounds_stand_below_and_say_so():
    ranking = replace(
        _ranking(_candidate("psgpu", 1e-3), _candidate("ring", 2e-3)),
        bounded=(Bounded(parse_strategy("xring"), "busiest link", seconds=1.5e-3),),
    )
    lines = ranking_table(ranking).splitlines()
    document = RUN.write(ranking)
    at = next(i for i, line in enumerate(lines) if " xring " in line)

    assert lines[at - 1].split()[1] == "ring"
    assert ["-", "xring", ">=1.500", *"------"] == lines[at].split()
    assert (
        "Rows with >= (1) say what a strategy takes at least: none is among the first 10 or"
        in lines
    )
    assert ["psgpu", "ring"] == [row["strategy"] for row in document["candidates"]]
    assert [
        {
            "strategy": "xring", "spec": "xring", "packing": "none", "runtime": "tensorflow",
            "at_least_us": pytest.approx(1500), "reason": "busiest link",
        }
    ] == document["bounded"]  # fmt: skip


def test_a_preview_has_the_fastest_first():
    found = enumerate([_candidate("ring", 2e-3), _candidate("psgpu#4", 1e-3)])
    lines = [line.strip() for line in preview_lines(found)]

    assert ["1.000 ms  psgpu#4", "2.000 ms  ring"] == lines
