"""`simreduce schema`: JSON Schemas of documents and files."""

from __future__ import annotations

import click

from simreduce.app.cli.group import command, completes
from simreduce.app.cli.terminal import show
from simreduce.errors import InputError, did_you_mean, quote
from simreduce.report.schemas import schema_text, schemas


@command(
    examples="""
    simreduce schema
    simreduce schema run
    simreduce schema scenario.toml
    """
)
@click.argument("name", required=False, shell_complete=completes(schemas))
def schema(name: str | None) -> None:
    """Print the JSON Schema (draft 2020-12) NAME: every key with its type, its unit and what it
    means. Without NAME, list all.

    A document of --json names its schema: run/1 is the first version of run. Names in .toml are
    those of files that simreduce reads.
    """
    known = schemas()
    if name is None:
        width = max(map(len, known))
        first = {each: found["description"].partition(". ")[0] for each, found in known.items()}
        show("\n".join(f"{each:{width}}  {text.removesuffix('.')}" for each, text in first.items()))
        return
    stem = name.partition("/")[0]
    if stem not in known:
        near = did_you_mean(stem, known) or "; simreduce schema lists all"
        raise InputError(f"unknown schema {quote(name)}{near}")
    click.echo(schema_text(known[stem]), nl=False)
