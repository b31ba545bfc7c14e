"""The schemas under docs/schemas are those of the declarations."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from simreduce.report.schemas import FOLDER, FORMATS, schema_texts


def test_the_schemas_are_up_to_date():
    """`python -m simreduce.report.schemas` writes them."""
    assert schema_texts() == {
        path.relative_to(FOLDER).as_posix(): path.read_text("utf-8")
        for path in sorted(FOLDER.rglob("*.json"))
    }


def test_every_key_of_every_format_is_explained():
    """In one sentence, which ends as one."""
    for text in schema_texts().values():
        assert json.loads(text)["description"].endswith(".")
    for form in FORMATS.values():
        assert all(field.about.endswith(".") for field in form.fields)


ROOT = Path(__file__).parents[3]
SHIPPED = [
    *(("machine", path) for path in sorted((ROOT / "topologies").glob("*.toml"))),
    *(("scenario", path) for path in sorted((ROOT / "scenarios").glob("*.toml"))),
    *(
        ("calibration", path)
        for path in sorted((ROOT / "simreduce/files/calibrations").glob("*.toml"))
    ),
]


@pytest.mark.parametrize(("name", "path"), SHIPPED, ids=[path.name for _, path in SHIPPED])
def test_shipped_files_fit_their_schemas(name, path):
    """Also those that extend others and state only what differs."""
    schema = jsonschema.Draft202012Validator(json.loads(schema_texts()[f"{name}.json"]))

    assert [] == [fault.message for fault in schema.iter_errors(tomllib.loads(path.read_text()))]


def test_an_unknown_key_does_not_fit():
    schema = jsonschema.Draft202012Validator(json.loads(schema_texts()["machine.json"]))

    assert list(schema.iter_errors({"extends": "dgx1v", "lnks": {}}))
