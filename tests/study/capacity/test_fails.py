"""What capacity says of parts that fail: as scenarios without them, and the worst of a class."""

from __future__ import annotations

import pytest

from simreduce.report.blocks import Attachments
from simreduce.report.capacity import CAPACITY
from simreduce.report.capacity_page import capacity_page, capacity_text
from simreduce.study.capacity import load_question
from simreduce.study.capacity.answer import answer
from simreduce.study.scenario_files import load_scenario
from simreduce.study.sweep.running import running
from simreduce.study.tune.steps import rank_steps

SCENARIO = """
topology = "{}"
workload = "alexnet"
runtime = "nccl"
strategies = ["nccl"]
fails = "{}"
[step]
batch = 32
rate = "3 TFLOP/s"
"""
NETWORK = "fat_tree,radix=8,oversubscription=4"
FILE = """
workload = "alexnet"
runtime = "nccl"
fails = ["spine", "nic", "node", "core"]
[prices.machines.dgx1v]
price = "1 USD/h"
[target]
samples_per_second = {}
[step]
batch = 32
rate = "3 TFLOP/s"
[[options]]
machine = "dgx1v"
nodes = {}
network = "fat_tree,radix=8,oversubscription=4"
strategy = "nccl"
"""


def asked(folder, nodes=3, rate=1):
    """The answer without a search for flips."""
    (folder / "plan.toml").write_text(FILE.format(rate, nodes), "utf-8")
    question = load_question(str(folder / "plan.toml"))
    with running(None) as runner:
        return answer(question, runner.rows, sensitivity=False)


def rate_without(folder, part):
    (folder / "one.toml").write_text(SCENARIO.format(f"dgx1vx3,fabric={NETWORK}", part), "utf-8")
    scenario = load_scenario(str(folder / "one.toml"))
    (found,) = rank_steps(scenario, with_today=False).candidates
    return found.step.samples_per_second


@pytest.mark.slow
def test_a_failure_is_a_scenario_without_the_part(tmp_path):
    """Of parts that differ, the worst."""
    found = asked(tmp_path)
    whole = rate_without(tmp_path, "none")
    by_class = {each.fails: each for each in found.failures}
    nodes = {f"n{i}": rate_without(tmp_path, f"n{i}") for i in range(3)}
    node, spine, core = by_class["node"], by_class["spine"], by_class["core"]

    assert found.chosen.candidate.rate == pytest.approx(whole)
    assert spine.left == pytest.approx(rate_without(tmp_path, "spine0") / whole)
    assert 0.0 < spine.left < 1.0
    assert node.left == pytest.approx(min(nodes.values()) / whole)
    assert nodes[node.part] == min(nodes.values())
    assert (3, node.offer.candidate.devices) == (node.parts, 16)
    assert 0.0 < by_class["nic"].left < 1.0
    assert ("", 0) == (core.part, core.parts)


@pytest.mark.slow
def test_a_target_that_a_failure_misses(tmp_path):
    """In the document, the text and the page."""
    whole = rate_without(tmp_path, "none")
    found = asked(tmp_path, rate=0.9 * whole)
    document = CAPACITY.write(found)
    rows = {row["fails"]: row for row in document["failures"]}
    lines = [line.split() for line in capacity_text(found).splitlines()]
    page = capacity_page(document, Attachments())

    assert document["choice"]["misses"] == []
    assert (False, ["samples_per_second"]) == (rows["node"]["meets"], rows["node"]["misses"])
    assert (None, None) == (rows["core"]["left"], rows["core"]["meets"])
    assert any(line[:2] == ["node", f"{rows['node']['part']},"] and line[-2:] ==
               ["misses", "samples_per_second"] for line in lines)  # fmt: skip
    assert ["core", "there", "is", "none"] in lines
    assert "fails" in [section.key for section in page.sections]


@pytest.mark.slow
def test_a_job_that_cannot_go_on(tmp_path):
    """One NIC in each node: its node is cut off. One node: no other takes over."""
    machine = tmp_path / "box.toml"
    machine.write_text(
        '[nodes.gpu]\nnames = ["gpu0"]\nkind = "gpu"\n[nodes.nic]\nnames = ["nic0"]\nkind = "nic"\n'
        'network = "tcp_25"\n[nodes.cpu]\nnames = ["cpu0"]\nkind = "cpu"\n'
        '[links.pcie3_x16]\npairs = [["gpu0", "cpu0"], ["nic0", "cpu0"]]\n'
        '[links.staged_pcie3]\npairs = [["gpu0", "gpu0"]]\n'
    )  # fmt: skip
    text = FILE.replace("dgx1v", '"box.toml"', 1).replace('"dgx1v"', '"box.toml"')
    (tmp_path / "plan.toml").write_text(text.format(1, 2), "utf-8")
    with running(None) as runner:
        found = answer(load_question(str(tmp_path / "plan.toml")), runner.rows, sensitivity=False)
    nic = next(each for each in found.failures if each.fails == "nic")

    assert (0.0, None, False) == (nic.left, nic.offer, nic.meets)
    assert "no route from" in nic.reason
    assert "cuts" not in nic.reason
    alone = asked(tmp_path, nodes=1)
    assert ["spine", "node", "core"] == [each.fails for each in alone.failures if not each.part]
