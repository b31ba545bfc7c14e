"""`simreduce schema`: JSON Schemas of documents and files."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from simreduce.cli.group import command
from simreduce.errors import InputError, did_you_mean, quote
from simreduce.schemas import schema_text, schemas
from simreduce.tables import Table, columns


def _names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in schemas() if name.startswith(incomplete)]


@command(
    examples="""
    simreduce schema
    simreduce schema run
    simreduce schema scenario.toml
    """
)
@click.argument("name", required=False, shell_complete=_names)
def schema(name: str | None) -> None:
    """Print the JSON Schema (draft 2020-12) NAME: every key with its type, its unit and what it
    means. Without NAME, list all.

    A document of --json names its schema: run/1 is the first version of run. Names in .toml are
    those of files that simreduce reads.
    """
    known = schemas()
    if name is None:
        rows = tuple((each, found["description"]) for each, found in known.items())
        click.echo("\n".join(Table(columns("name|of", left="name|of"), rows).lines()))
        return
    stem = name.partition("/")[0]
    if stem not in known:
        near = did_you_mean(stem, known) or "; simreduce schema lists all"
        raise InputError(f"unknown schema {quote(name)}{near}")
    click.echo(schema_text(known[stem]), nl=False)
