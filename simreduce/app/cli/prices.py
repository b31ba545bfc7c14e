"""`simreduce prices [NAME]`: what a price list says, with where and when each price was found."""

from __future__ import annotations

from functools import partial

import click

from simreduce.app.cli.group import command, completes
from simreduce.app.cli.reply import Reply, report_options
from simreduce.files.formats import Faults
from simreduce.report.prices import LISTS, PRICES, lists_text, prices_text
from simreduce.study.capacity.price_list import join, load_prices, shipped


@command(
    examples="""
    simreduce prices
    simreduce prices aws-on-demand
    simreduce prices servers-2026 h100-cluster-2024
    """
)
@click.argument("name", nargs=-1, shell_complete=completes(shipped))
@report_options
def prices(faults: Faults, name: tuple[str, ...]) -> Reply:
    """Print the price list NAME, a shipped one or a file, with the source and the date of every
    price. Several are printed as one, as a capacity file joins them. Without NAME, list those that
    are shipped.
    """
    found = [faults.attempt("", load_prices, each) for each in name or shipped()]
    lists = [each for each in found if each is not None]
    if not name:
        named = [*zip(shipped(), lists, strict=True)]
        return Reply(partial(lists_text, named), partial(LISTS.write, named))
    whole = faults.require(faults.attempt("", join, lists) if len(lists) == len(found) else None)
    return Reply(partial(prices_text, whole), partial(PRICES.write, whole))
