"""FlashInfer: the argument of `flashinfer.args` in the signature of `allreduce_fusion`."""

from __future__ import annotations

import ast
import inspect
import json
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import get_args, get_type_hints

with warnings.catch_warnings(action="ignore"):
    from flashinfer.comm import allreduce_fusion


def main(folder: str) -> None:
    """Print what FlashInfer understood of the file of a folder."""
    text = Path(folder, "flashinfer.args").read_text("utf-8")
    [call] = [line for line in text.splitlines() if not line.startswith("#")]
    given = {
        each.arg: ast.literal_eval(each.value)
        for each in ast.parse(f"f({call})", mode="eval").body.keywords
    }
    signature = inspect.signature(allreduce_fusion)
    bound = signature.bind_partial(**given).arguments
    hints = get_type_hints(allreduce_fusion)
    understood = {name: value if isinstance(value, get_args(hints[name])) else "another type"
                  for name, value in bound.items()}  # fmt: skip
    try:
        signature.bind_partial(no_such_argument=True)
    except TypeError:
        understood["another argument"] = "refused"
    found = {"version": version("flashinfer-python"), "understood": understood}
    print(json.dumps(found, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1])
