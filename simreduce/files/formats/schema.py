"""The JSON Schema of a declaration, for editors, and its table in the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simreduce.files.formats.fields import Format, ListOf, MapOf, TableOf, TablesOf, ValueKind

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(form: Format) -> dict[str, Any]:
    """The JSON Schema of a file.

    It demands no key of files that may extend others: these may have what this one lacks.
    """
    whole = all(field.key != "extends" for field in form.fields)
    return {"$schema": DRAFT, "title": form.name, **_object(form, whole=whole)}


def _object(form: Format, *, whole: bool) -> dict[str, Any]:
    properties = {}
    for field in form.fields:
        default = {"default": field.default} if _is_plain(field.default) else {}
        properties[field.key] = {
            **_of(field.kind, whole=whole),
            "description": field.about,
            **default,
        }
    required = [field.key for field in form.fields if field.required and whole]
    return {
        "description": form.about,
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | str)


def _of(kind: ValueKind[Any], *, whole: bool) -> dict[str, Any]:
    if isinstance(kind, TableOf):
        found = [_object(form, whole=whole) for form in (kind.form, *kind.others)]
        return {"anyOf": found} if kind.others else found[0]
    if isinstance(kind, TablesOf):
        return {"type": "array", "items": _object(kind.form, whole=whole)}
    if isinstance(kind, ListOf):
        return {**kind.schema, "items": _of(kind.kind, whole=whole)}
    if isinstance(kind, MapOf) and kind.known:
        properties = {key: _of(kind.kind, whole=whole) for key in kind.known}
        return {"type": "object", "properties": properties, "additionalProperties": False}
    if isinstance(kind, MapOf):
        return {"type": "object", "additionalProperties": _of(kind.kind, whole=whole)}
    return dict(kind.schema)


def reference(form: Format) -> str:
    """Return the reference of a format in Markdown: its keys, then its tables' keys."""
    return "\n".join(_tables(form, "")).rstrip() + "\n"


def _tables(form: Format, place: str) -> Iterator[str]:
    yield from (f"### `[{place}]`" if place else f"## {form.name}", "", form.about, "")
    yield from ("| key | value | default | meaning |", "| --- | --- | --- | --- |")
    inner: list[tuple[Format, str]] = []
    for field in form.fields:
        default = "required" if field.required else field.default_words or _words(field.default)
        cells = (f"`{field.key}`", field.kind.words, default, field.about)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        kind, path = field.kind, f"{place}.{field.key}".lstrip(".")
        if isinstance(kind, MapOf) and isinstance(kind.kind, TableOf):
            inner.append((kind.kind.form, f"{path}.{kind.key}"))
        elif isinstance(kind, TableOf):
            inner += [(form, path) for form in (kind.form, *kind.others)]
        elif isinstance(kind, TablesOf):
            inner.append((kind.form, f"[{path}]"))
    yield ""
    for inside, path in inner:
        yield from _tables(inside, path)


def _words(default: object) -> str:
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`" if _is_plain(default) and default != "" else ""
