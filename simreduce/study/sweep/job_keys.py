"""Keys of one job or traffic by its name: `job.NAME.KEY` and `traffic.NAME.KEY`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files.formats import Faults, Field, field_at
from simreduce.study.jobs import JOB, TRAFFIC
from simreduce.training import STEP
from simreduce.training.mesh.question import MESH

FORMATS = {"job": JOB, "traffic": TRAFFIC}


def key_of_job(document: Mapping[str, Any], section: str, text: str) -> str:
    """`job[0].count` of the text `a.count` behind `job.`, if the first job is named `a`.

    Names stand as they are, blanks and dots included; of several that fit, the longest is meant.
    InputError for a name or a key that there is not.
    """
    names = [each["name"] for each in document.get(section, ())]
    fitting = [name for name in names if f"{text}.".startswith(f"{name}.")]
    if not fitting:
        name = text.partition(".")[0]
        near = did_you_mean(name, names) or f"; there are {', '.join(map(quote, names)) or 'none'}"
        raise InputError(f"no {section} is named {quote(name)}{near}")
    name = max(fitting, key=len)
    path = text[len(name) + 1 :]
    field_of_job(section, path)
    return f"{section}[{names.index(name)}].{path}"


def field_of_job(section: str, path: str) -> Field:
    """The field at a path of a job or traffic. InputError if there is none."""
    table, dot, rest = path.partition(".")
    if (section, table, dot) == ("job", "step", "."):
        return field_at(rest, STEP, MESH)
    return field_at(path, FORMATS[section])


def split_key(key: str) -> tuple[str, int, str] | None:
    """The section, the place there and the path of such a key; None for others."""
    section, bracket, rest = key.partition("[")
    place, _, path = rest.partition("].")
    return (section, int(place), path) if bracket and section in FORMATS else None


def check_value(field: Field, value: Any) -> None:
    """InputError if no table could have this value of a key."""
    faults = Faults()
    field.kind.take(value, faults, "")
    faults.raise_any()
