"""What `simreduce tune --placement` and `simreduce topo place` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from simreduce.app.cli.progress import Progress
from simreduce.app.cli.reply import Reply
from simreduce.app.cli.setups import SetupOptions, read_scenario
from simreduce.errors import InputError, ScenarioError
from simreduce.files.formats import Faults
from simreduce.files.textfiles import read_text
from simreduce.planners.layouts import layout
from simreduce.report.placement import PLACEMENT, placement_text
from simreduce.study.scenario import Scenario, read_scenario_file
from simreduce.study.tune.placement.search import place
from simreduce.topology.importers.hosts import read_hosts
from simreduce.topology.placed_hosts import with_hosts
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


def read_placed_hosts(
    faults: Faults, text: str, options: SetupOptions, file: str, job: str | None, free: str | None
) -> Scenario | None:
    """The scenario on the hosts of a file, all or those of the `job`, in their order."""
    scenario = read_scenario(faults, text, options)
    hosts = faults.attempt("", _read_hosts, file)
    if scenario is None or hosts is None:
        return None
    machine = faults.attempt("", with_hosts, scenario.setup.topology, hosts, file)
    if machine is None:
        return None
    names = tuple(hosts) if job is None else faults.attempt("--hosts", find_machines, machine, job)
    spare = () if free is None else faults.attempt("--free", find_machines, machine, free)
    for name in (*(names or ()), *(spare or ())):
        if name not in hosts:
            faults.add("", f"{name} is no host of {file}")
    if faults.problems or names is None:
        return None
    whole, order = layout(machine), scenario.setup.layout.order
    place = {machine.nodes[whole.ranks[task[0]]].machine: i for i, task in enumerate(whole.tasks)}
    part = whole.on([place[name] for name in names])
    part = part.with_order(order) if order else part
    scenario = scenario.but(machine=machine, part=part)
    return replace(scenario, free=spare or ())


def _read_hosts(file: str) -> Mapping[str, Sequence[str]]:
    return read_hosts(read_text(Path(file), InputError), file)


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
