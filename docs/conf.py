"""The documentation site: `make docs` builds it."""

from __future__ import annotations

import re

from pygments.lexers.shell import BashSessionLexer
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import simreduce

project = "simreduce"
author = "The simreduce authors"
release = version = simreduce.__version__
extensions = ["myst_parser", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"simreduce {version}"
copybutton_prompt_text = "$ "
nitpicky = True


class Console(BashSessionLexer):
    """Console blocks in which only `$` begins a command: our own output begins lines with `#`."""

    _ps1rgx = re.compile(r"^(\$ )(.*\n?)")
    _ps2 = "> "


def setup(app: Sphinx) -> None:
    app.add_lexer("console", Console)
    app.add_lexer("csv", TextLexer)
