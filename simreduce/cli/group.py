"""Groups of commands that know what a misspelt one may have meant."""

from __future__ import annotations

import click

from simreduce.errors import did_you_mean


class Group(click.Group):
    """As click has it; options it compares with what there is by itself."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names; with its usage, the nearest one if it names
        none.
        """
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            ctx.fail(
                f"No such command {name!r}{did_you_mean(name, self.list_commands(ctx)) or '.'}"
            )
        return super().resolve_command(ctx, args)
