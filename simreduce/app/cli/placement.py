"""What `simreduce tune --placement` and `simreduce topo place` share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from simreduce.app.cli.progress import Progress
from simreduce.app.cli.reply import Reply
from simreduce.app.cli.setups import SetupOptions, read_scenario
from simreduce.errors import ScenarioError
from simreduce.files.formats import Faults
from simreduce.report.placement import PLACEMENT, placement_text
from simreduce.study.scenario import Scenario, read_scenario_file
from simreduce.study.tune.placement.search import place
from simreduce.topology.switch_groups import find_machines


def asks_for_placement(text: str) -> bool:
    """Whether a scenario has `[tune] placement = true`, sensible or not."""
    try:
        table = read_scenario_file(text)[1].get("tune")
    except ScenarioError:
        return False
    return isinstance(table, dict) and table.get("placement") is True


def read_placement(
    faults: Faults,
    text: str,
    options: SetupOptions,
    free: str | None,
    unused: Mapping[str, object],
    worth: float | None = None,
) -> Scenario | None:
    """The scenario whose nodes are ordered, with the nodes that are `free` besides its own."""
    for name, value in unused.items():
        if value is not None and value is not False and value != ():
            faults.add(f"--{name}", "says nothing about the order of nodes")
    scenario = read_scenario(faults, text, options)
    if scenario is None:
        return None
    if free is not None:
        machine = scenario.setup.topology
        names = faults.attempt("--free", find_machines, machine, free)
        scenario = replace(scenario, free=names or ())
    return scenario if worth is None else replace(scenario, worth=worth)


def tune_placement(scenario: Scenario, workers: int, out: str | None = None) -> Reply:
    """The best order of nodes."""
    del out
    with Progress("simulated or excluded {} of {} orders") as progress:
        found = place(scenario, scenario.free, workers=workers, progress=progress)
    return Reply(
        lambda: placement_text(found),
        partial(PLACEMENT.write, found),
        complete=not found.stopped or found.hurried,
    )
