"""The schemas under docs/schemas are those of the declarations."""

from __future__ import annotations

import json

from simreduce.schemas import FOLDER, FORMATS, reference_texts, schema_texts


def test_the_schemas_are_up_to_date():
    """`python -m simreduce.schemas` writes them."""
    assert schema_texts() == {
        path.name: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.json"))
    }


def test_every_key_of_every_format_is_explained():
    """In one sentence, which ends as one."""
    for text in schema_texts().values():
        assert json.loads(text)["description"].endswith(".")
    for form in FORMATS.values():
        assert all(field.about.endswith(".") for field in form.fields)
    assert set(reference_texts()) == set(FORMATS)
