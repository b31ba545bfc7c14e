"""The report of `simreduce calibrate step`: the constants, and what meshes take by them."""

from __future__ import annotations

from collections.abc import Iterator

from simreduce import units
from simreduce.files.formats.documents import (
    COUNT,
    RATIO,
    SECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
)
from simreduce.files.tables import Column
from simreduce.study.accuracy.step_fit import FittedMesh, FittedStep
from simreduce.training.step_errors import ask, step_interval

_FAR = 2.0
"""Times that a step or a constant changes, either way, from which on a scenario is hardly that of
the run.
"""

_MESH = Record(
    "mesh",
    "A mesh of the scenario; the first was measured.",
    Key("mesh", TEXT, "Its ways and choices.", "job.text", column=Column("mesh", left=True)),
    Key("before_s", SECONDS, "Its step by the constants before.", "before",
        column=Column("before", show=units.format_duration)),
    Key("fitted_s", SECONDS, "Its step by the fitted constants.", "after",
        column=Column("fitted", show=units.format_duration)),
    Key("low_s", SECONDS, "The lower end of the 80 % interval of that.",
        lambda mesh: mesh.after * mesh.low, column=Column("least", show=units.format_duration)),
    Key("high_s", SECONDS, "The upper end.",
        lambda mesh: mesh.after * mesh.high, column=Column("most", show=units.format_duration)),
)  # fmt: skip
FITTED_STEP = Document(
    "calibrate-step",
    "`simreduce calibrate step --json`: constants of a GPU that are fitted to a measured step.",
    Key("log", TEXT, "The log or the CSV.", "steps.name"),
    Key("program", TEXT, "What wrote it.", "steps.program"),
    Key("steps", COUNT, "Its steps, those that warm up too.",
        lambda found: len(found.steps.seconds or found.steps.per_gpu)),
    Key("measured_s", SECONDS, "The median of the others.", "seconds"),
    Key("kept", TEXT, "The file of the GPU, for `gpu` of a `[step]`.", "kept"),
    Key("constants", map_of(Record(
        "constant", "A constant in SI units.",
        Key("before", RATIO, "As it was.", "0"),
        Key("value", RATIO, "As it is fitted.", "1"),
    )), "The fitted constants by name; the others are as before.", "constants"),
    Key("meshes", list_of(_MESH), "The meshes of the scenario, the measured one first."),
    command="calibrate",
)  # fmt: skip
"""Of `FittedStep`."""


def fitted_step_lines(found: FittedStep) -> Iterator[str]:
    """What was fitted, and what each mesh takes then and within what."""
    one: FittedMesh = found.meshes[0]
    count = units.plural(len(found.steps.seconds or found.steps.per_gpu), "step")
    took = units.format_duration(found.seconds)
    yield f"# {found.steps.name}: {count} of {found.steps.program}, {took} in the median once warm"
    off = one.before / found.seconds - 1
    yield f"# {one.job.text} was predicted to take {units.format_duration(one.before)}: {off:+.1%}"
    ratios = [one.before / found.seconds, *(new / old for old, new in found.constants.values())]
    if not all(1 / _FAR < ratio < _FAR for ratio in ratios):
        yield "# that is far off: are mesh, batch, sequence, GPU and `kernels` those of the run?"
    for name, (before, value) in found.constants.items():
        yield f"{name} = {value:.4g} instead of {before:.4g}"
    yield ""
    yield from _MESH.table(map(_MESH.write, found.meshes)).lines()
    low, high = one.low, one.high
    yield f"# with 80 % a step of another mesh takes {low:.2f} to {high:.2f} times what is fitted"
    known = step_interval(ask(one.job.gpu, one.job.kernels, one.job.bits, one.job.shape))
    inside = known.low <= found.seconds / one.before <= known.high
    if inside and known.high / known.low < high / low:
        span = f"{known.low:.2f} to {known.high:.2f}"
        yield f"# without a fit it takes {span} times what is predicted, and so did this step:"
        yield "# it tells little that published steps of this GPU and stack do not"
    yield f'# kept in {found.kept}: gpu = "{found.kept}" in [step]'
