"""`simreduce step` and `tune` of a scenario with a `mesh`: meshes by the time of a step, and its
limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from simreduce import units
from simreduce.export.frameworks import MESH_PROGRAMS
from simreduce.files import tables
from simreduce.files.formats.documents import (
    ABSENT,
    BYTES,
    COUNT,
    FLAG,
    MICROSECONDS,
    PER_SECOND,
    PLACE,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    or_null,
)
from simreduce.files.tables import Column, Table, percent
from simreduce.report.headings import (
    CALIBRATION_KEY,
    DISTURBANCE_KEY,
    NOMINAL_KEY,
    PERCENTILES_ABOUT,
    best_rows,
    percentile_lines,
    refused_lines,
)
from simreduce.study.tune.steps import MeshRanking, programs_for
from simreduce.study.tune.whatif_steps import look_at_step, percentiles_of_step
from simreduce.training.mesh.job import ORDER, MeshJob
from simreduce.training.mesh.pipeline import grid, load_schedule
from simreduce.training.step import SPENT_ON, seconds_by_kind

_ALIKE = 0.01
"""Of two steps, the part of their time up to which the simpler one is named too."""


def _gigabytes(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:.1f}"


def _reasons(ranking: MeshRanking) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name, why in ranking.refused:
        found[name] = f"{found[name]}; {why}" if name in found else why
    return found


def _path(ranking: MeshRanking) -> Mapping[str, float]:
    """Seconds of each kind of piece on the critical path of the best step; transfers by lane."""
    found = seconds_by_kind(ranking.closely.path)
    return {f"{kind} {lane}".strip(): seconds for kind, lane, seconds, _ in found}


_HELD = Record(
    "held",
    "What a rank of a stage holds at most.",
    Key("place", COUNT, "The stage of the pipeline, from 1.", PLACE, column=Column("stage")),
    Key("parameters_bytes", BYTES, "Parameters.", "parameters",
        column=Column("parameters", "(GB)", show=_gigabytes)),
    Key("gradients_bytes", BYTES, "Gradients.", "gradients",
        column=Column("gradients", "(GB)", show=_gigabytes)),
    Key("optimizer_bytes", BYTES, "States of the optimizer.", "optimizer",
        column=Column("optimizer", "(GB)", show=_gigabytes)),
    Key("activations_bytes", BYTES, "Activations of all micro batches in flight.",
        "activations.nbytes",
        column=Column("activations", "(GB)", show=_gigabytes)),
    Key("in_flight", COUNT, "Passes whose activations are kept, at most.",
        column=Column("in flight")),
    Key("peak_bytes", BYTES, "All of it.", "peak", column=Column("all", "(GB)", show=_gigabytes)),
)  # fmt: skip
_CANDIDATE = Record(
    "candidate",
    "The step of a mesh.",
    Key("place", COUNT, "From 1.", PLACE, column=Column("#")),
    Key("mesh", TEXT, "Its ways.", "job.mesh.text", column=Column("mesh", left=True)),
    Key("order", TEXT, "How ranks lie on the machine: its axes, neighbours first.",
        "job.mesh.order"),
    Key("micro_batch", COUNT, "Sequences of a micro batch.", "job.micro_batch",
        column=Column("micro", "batch")),
    Key("micro_batches", COUNT, "Micro batches of a step on each replica.", "job.micros"),
    Key("schedule", TEXT, "How stages take turns.", "job.schedule",
        column=Column("schedule", left=True)),
    Key("virtual", COUNT, "Stages of a GPU.", "job.virtual", column=Column("virtual", spare=2)),
    Key("recompute", TEXT, "Activations that are made again.", "job.recompute",
        column=Column("recompute", left=True)),
    Key("optimizer", TEXT, "How replicas share.", "job.optimizer",
        column=Column("optimizer", left=True, spare=3)),
    Key("imbalance", RATIO, "Tokens of the busiest rank of experts over the mean.",
        "job.imbalance"),
    Key("time_us", MICROSECONDS, "A step.", "step.seconds",
        column=Column("step", "(ms)", show=lambda us: f"{us / 1e3:.1f}")),
    Key("tokens_per_second", PER_SECOND, "Tokens of all replicas.", "step.tokens_per_second",
        column=Column("tokens/s", show=lambda rate: f"{rate:,.0f}")),
    Key("mfu", RATIO, "Model FLOPs over those of the GPUs' data sheet.",
        column=Column("MFU", show=percent(1))),
    Key("peak_bytes", BYTES, "What the fullest rank holds.", "step.memory.peak",
        column=Column("memory", "(GB)", show=_gigabytes)),
    Key("fits", or_null(FLAG), "Whether that fits a GPU; null if nobody says how much one has.",
        "fit.fits"),
    Key("limit", TEXT, "What a rank waits for the longest.", "step.limit",
        column=Column("limited by", left=True, spare=1)),
    Key("programs", list_of(TEXT), "Those that can run it, as `tune --target` takes them.",
        lambda row: programs_for(row.job)),
    Key("spent_us", map_of(MICROSECONDS), "What the rank that ends last does or waits for.",
        "step.spent"),
    Key("held", list_of(_HELD), "What a rank of each stage holds.", "step.held"),
)  # fmt: skip
_RANKED = (
    Key("scenario", TEXT, "The scenario's name or file.", "scenario.name"),
    Key("title", TEXT, "Its title, or its name.", "scenario.title"),
    Key("topology", TEXT, "The name of the machine.", "scenario.setup.topology.name"),
    Key("topology_digest", TEXT, "Names the machine's content.", "scenario.setup.topology.digest"),
    Key("ranks", COUNT, "Its GPUs.", lambda r: r.scenario.setup.layout.n),
    Key("workload", TEXT, "The model.", "scenario.model.name"),
    Key("parameters", COUNT, "Its parameters.", lambda r: r.scenario.model.shape.parameters),
    Key("sequence", COUNT, "Tokens of a sequence.", "job.sequence"),
    Key("global_batch", COUNT, "Sequences of a step.", "job.global_batch"),
    Key("gpu", TEXT, "Whose rates of computing these are.", "job.gpu.title"),
    Key("framework", TEXT, 'Only what this can run is there; "": all.', "scenario.framework"),
    Key("memory_bytes", BYTES, "Of a GPU; 0 if nobody says.", "memory"),
    replace(CALIBRATION_KEY, get="scenario.setup.calibration.name"),
    replace(NOMINAL_KEY, get=lambda ranking: ranking.nominal or ABSENT),
    replace(DISTURBANCE_KEY, get="scenario.setup.disturbed"),
    Key("candidates", list_of(_CANDIDATE), "Steps, fastest first; what does not fit is last."),
    Key("percentiles_us", map_of(MICROSECONDS), PERCENTILES_ABOUT, percentiles_of_step),
    Key("path_us", map_of(MICROSECONDS), "The critical path of the first step, by kind of piece:"
        " passes, transfers by their lane, waits.", _path),
    Key("refused", map_of(TEXT), "Meshes that cannot be, with the reasons.",
        _reasons),
    Key("bounded", COUNT, "Meshes left out, as a lower bound is above the best, memory does not do,"
        " or another order of ranks changes nothing."),
    Key("complete", FLAG, "False if the command was stopped."),
)  # fmt: skip
MESHES = Document(
    "step-meshes",
    "`simreduce step --json` of a scenario with a `mesh`: meshes, fastest first.",
    *_RANKED,
    command="step",
)
"""Of `MeshRanking`."""
TUNED_MESHES = Document(
    "tune-meshes",
    "`simreduce tune --json` of a scenario with a `mesh`: what the target can run, fastest first.",
    *_RANKED,
    Key("files", map_of(TEXT), "What to paste or save, by the name of the file; empty if no mesh"
        " fits.", lambda _: {}),
    command="tune",
)  # fmt: skip
"""Of `MeshRanking`, without its files."""


def meshes_text(ranking: MeshRanking, most: int | None = None, *, details: bool = False) -> str:
    """Header, a row for each mesh, what the best does, and the answer last."""
    scenario, job = ranking.scenario, ranking.job
    at = scenario.setup
    shape = job.shape
    facts = [
        ("topology", f"{at.topology.name}: {at.topology.title}, {at.layout.n} ranks"),
        ("model", f"{scenario.model.name}: {shape.parameters / 1e9:.4g} billion parameters"),
        ("step", f"{job.global_batch} sequences of {job.sequence} tokens"),
        ("computing", f"{job.gpu.title}, products of {job.bits} bits"),
        ("calibration", tables.label(at.calibration.name, at.calibration.title)),
        ("", ranking.nominal),
    ]  # fmt: skip
    if scenario.framework:
        title = MESH_PROGRAMS[scenario.framework].title
        facts.insert(3, ("framework", f"{title}, what it can run"))
    document = MESHES.write(ranking)
    late = percentile_lines({n: us / 1e6 for n, us in document["percentiles_us"].items()})
    lines = tables.header(scenario.title, facts)
    lines += best_rows(candidates_table(document), most)
    if details or len(ranking.candidates) == 1:
        lines += ["", *_spent_lines(document["candidates"][0]), *(["", *late] if late else [])]
        lines += ["", *held_table(document).lines()]
    if details:
        lines += ["", *_path_lines(document), "", *_change_lines(ranking)]
    if details and job.mesh.pp > 1:
        lines += ["", *_grid_lines(job)]
    misfits = sum(row.misfit for row in ranking.candidates)
    if misfits:
        which, have = units.plural(misfits, "row"), units.format_size(ranking.memory)
        lines += ["", f"{which} marked *: more memory than the {have} that a GPU has"]
    if ranking.bounded:
        why = "a lower bound says slower, memory does not do, or another order changes nothing"
        lines.append(f"{ranking.bounded} left out: {why}")
    if scenario.question.named:
        lines += refused_lines(ranking.refused)
    return "\n".join([*lines, "", answer(document)])


def candidates_table(document: Mapping[str, Any], *, on: str = "text") -> Table:
    """A row for every mesh; a star at what does not fit, and the order unless it is the usual."""
    rows = [
        {**row, "mesh": name_of(row) + ("*" if row["fits"] is False else "")}
        for row in document["candidates"]
    ]
    return _CANDIDATE.table(rows, on=on)


def name_of(row: Mapping[str, Any]) -> str:
    """The mesh of a row, and the order unless it is the usual one."""
    order = row.get("order", ORDER)
    return row["mesh"] if order == ORDER else f"{row['mesh']} {order}"


def held_table(document: Mapping[str, Any], *, on: str = "text") -> Table:
    """What a rank of each stage of the best mesh holds."""
    return _HELD.table(document["candidates"][0]["held"], on=on)


def answer(document: Mapping[str, Any]) -> str:
    """What to train on, in a sentence."""
    best = document["candidates"][0]
    took = units.format_duration(best["time_us"] / 1e6)
    share = best["spent_us"].get(best["limit"], 0.0) / best["time_us"]
    why = f"{share:.0%} of it goes to {SPENT_ON[best['limit']]}"
    if best["fits"] is False:
        least = units.format_size(min(row["peak_bytes"] for row in document["candidates"]))
        return f"No mesh fits the memory of a GPU; the least that one needs is {least}."
    rate = f"{best['tokens_per_second']:,.0f} tokens/s"
    use = f"Train with {_settings(best)}: a step takes {took} ({rate}); {why}."
    return f"{use}{_programs(best)}{_simpler(document)}"


def _settings(row: Mapping[str, Any]) -> str:
    """The mesh of a row and how it is used, in words."""
    order = row.get("order", ORDER)
    lie = "" if order == ORDER else f" in the order {order}"
    use = f"{row['mesh']}{lie}, micro batches of {row['micro_batch']}"
    use += f", {row['schedule']}" if "pp=" in row["mesh"] else ""
    use += f" with {row['virtual']} stages on a GPU" if row["virtual"] > 1 else ""
    return use + (f", {row['recompute']} recomputation" if row["recompute"] != "none" else "")


def _simpler(document: Mapping[str, Any]) -> str:
    """What has fewer stages on a GPU, or plain 1F1B, and is about as fast, as a sentence."""
    best, *others = document["candidates"]

    def stages(row: Mapping[str, Any]) -> tuple[int, bool]:
        return row["virtual"], row["schedule"] != "1f1b"

    near = [
        row for row in others
        if row["fits"] is not False and row["time_us"] <= best["time_us"] * (1.0 + _ALIKE)
        and stages(row) < stages(best)
    ]  # fmt: skip
    if not near:
        return ""
    row = min(near, key=lambda row: (*stages(row), row["time_us"]))
    slower = row["time_us"] / best["time_us"] - 1.0
    return f" Simpler and {slower:.1%} slower: {_settings(row)}."


def _programs(best: Mapping[str, Any]) -> str:
    """Who can run the best mesh, as a sentence."""
    if "programs" not in best:  # as documents of versions before this key have it
        return ""
    titles = [MESH_PROGRAMS[name].title for name in best["programs"] if name in MESH_PROGRAMS]
    if not titles:
        return " No program that simreduce exports to can run it; see simreduce tune --target."
    words = " and ".join(filter(None, (", ".join(titles[:-1]), titles[-1])))
    return f" {words} can run it."


def _spent_lines(row: Mapping[str, Any]) -> list[str]:
    spent = sorted(row["spent_us"].items(), key=lambda pair: -pair[1])
    width = max(len(SPENT_ON.get(key, key)) for key, _ in spent)
    return [
        f"{SPENT_ON.get(key, key):{width}}  {us / 1e3:10.1f} ms  {us / row['time_us']:6.1%}"
        for key, us in spent
    ]


def _path_lines(document: Mapping[str, Any]) -> list[str]:
    """The critical path by kind, the longest first."""
    whole = document["candidates"][0]["time_us"]
    return _shares("critical path", "time", document["path_us"].items(), whole, ".1f")


def _change_lines(ranking: MeshRanking) -> list[str]:
    """What would help the best step."""
    rows = (
        (f"{s.change.resource} {s.change.figure} {s.change.amount}", s.saved * 1e6)
        for s in look_at_step(ranking, closely=False).savings
    )
    return _shares("what would help", "saves", rows, ranking.recommended.seconds * 1e6, ".2f")


def _shares(
    name: str, heading: str, rows: Iterable[tuple[str, float]], whole: float, form: str
) -> list[str]:
    """A table of microseconds by name, in milliseconds and as parts of a step."""
    columns = tables.columns(f"{name}|{heading}|of the step", units="|(ms)|", left=name)
    cells = ((row, f"{us / 1e3:{form}}", f"{us / whole:.1%}") for row, us in rows)
    return Table(columns, tuple(cells)).lines()


def _grid_lines(job: MeshJob) -> list[str]:
    """Who does what when, in ticks of a forward pass; a backward pass takes two."""
    schedule = load_schedule(job.schedule, job.mesh.pp, job.virtual, job.micros)
    rows, width = grid(schedule), tables.page_width(78) - 9
    shown = ("".join(map(_letter, row))[:width] for row in rows)
    return [
        f"{schedule.name}: a column is the time of a forward pass, . a bubble",
        *(f"stage {place:2} {row}" for place, row in enumerate(shown, 1)),
    ]


def _letter(cell: str) -> str:
    kind = cell.strip("0123456789")  # of both at once, "(" and more
    return "." if not cell else "B" if cell.startswith("(") else kind[0]
