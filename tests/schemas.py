"""Checks documents by their schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import jsonschema

from simreduce.report.schemas import schemas

Schema = Mapping[str, Any]


@cache
def schema_of(name: str) -> Schema:
    """The schema of that name, which is one of draft 2020-12."""
    found = schemas()[name]
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def read_strictly(text: str) -> Any:
    """A JSON value. NaN and Infinity, which JSON does not have, are faults."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number of JSON")

    return json.loads(text, parse_constant=refuse)


def faults_of(document: Any, name: str = "") -> list[str]:
    """What does not fit in a document: by the schema `name`, unless by the one that it names."""
    validator = _validator(name or document["schema"].partition("/")[0])
    return [
        f"{'.'.join(map(str, fault.absolute_path))}: {fault.message[:200]}"
        for fault in validator.iter_errors(document)
    ]


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of(name))


def declared_keys(name: str) -> set[str]:
    """Every key of a schema, as `object.key`; of the document itself, as `.key`."""
    schema = schema_of(name)
    objects = {"": schema, **schema.get("$defs", {})}
    return {
        f"{each}.{key}" for each, found in objects.items() for key in found.get("properties", {})
    }


def used_keys(name: str, document: Any) -> set[str]:
    """Those of them that a document has with another value than null."""
    return set(_used(schema_of(name), "", schema_of(name), document))


def _used(whole: Schema, place: str, schema: Schema, value: Any) -> Iterator[str]:
    if "$ref" in schema:
        place = schema["$ref"].rpartition("/")[2]
        schema = whole["$defs"][place]
    for each in (*schema.get("anyOf", ()), *_of_record(whole, schema, value)):
        yield from _used(whole, place, each, value)
    if isinstance(value, list):
        for each in value:
            yield from _used(whole, place, schema.get("items", {}), each)
    elif isinstance(value, dict):
        known = schema.get("properties", {})
        other = schema.get("additionalProperties") or {}
        for key, each in value.items():
            if key in known and each is not None:
                yield f"{place}.{key}"
            yield from _used(whole, place, known.get(key, other), each)


def _of_record(whole: Schema, schema: Schema, value: Any) -> list[Schema]:
    """Of a line of JSON Lines, the schema of what it is."""
    return [
        each
        for each in schema.get("oneOf", ())
        if whole["$defs"][each["$ref"].rpartition("/")[2]]["properties"]["record"]["const"]
        == value["record"]
    ]
