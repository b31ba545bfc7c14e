"""Settings in a few words: what their files say that the files of the defaults do not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_ENTRY = re.compile(r'"(\w+)": (.+?),?(?:  # (.+))?$')
"""An entry of a Python dictionary or of a JSON object, perhaps with what it means in words."""

_FLAG = re.compile(r"--\w+=[^\s\"]+")
_PATH = re.compile(r"\btf\.(?:\w+\.)*")
"""The modules before a name of TensorFlow."""

_ARGUMENT = re.compile(r"\w+=(?=[A-Z]\w*\()|CommunicationOptions(?=\()")
"""The name of an argument that is an object, whose class says as much; a class that says nothing
beside its arguments.
"""

_LONG = re.compile(r"\d+\.\d{7,}(?:e-?\d+)?")
_PLUGIN = re.compile(r"NCCL_TUNER_CONFIG_FILE=\S+")
_LEFT_OUT = ("NCCL_TUNER_PLUGIN", "#", '"""', "from ", "import ", "def ", "return ")
_TABLES = (".csv", ".xml", ".json5")
"""Files that another setting names."""


def changes(files: Mapping[str, str], before: Mapping[str, str]) -> str:
    """The settings of `files` that those `before` lack, as `bucket_cap_mb=100, ...`; "" if none."""
    known = set(_settings(before))
    return ", ".join(dict.fromkeys(each for each in _settings(files) if each not in known))


def _settings(files: Mapping[str, str]) -> Iterator[str]:
    for name, text in files.items():
        if not name.endswith(_TABLES):
            for line in text.splitlines():
                yield from _words(line.strip())


def _words(line: str) -> Iterator[str]:
    """The settings of a line: flags, an entry, or the line itself, in the words of its comment."""
    if not line or line.startswith(_LEFT_OUT) or line[-1] in "{[(":
        return
    if flags := _FLAG.findall(line):
        yield from flags
    elif entry := _ENTRY.match(line):
        typed = f"{entry[1]}={_LONG.sub(lambda number: f'{float(number[0]):.6g}', entry[2])}"
        yield f"{entry[3]} ({typed})" if entry[3] else typed
    elif _PLUGIN.match(line):
        yield f"NCCL's example tuner plugin with a table of sizes ({line})"
    elif len(line) > 1:
        call, _, meaning = line.partition("  # ")
        text = _PATH.sub("", call.removeprefix("strategy = "))
        if text != call:  # a call of TensorFlow, which no terminal has room for
            text, meaning = _ARGUMENT.sub("", text).replace("((", "(").replace("()", ""), ""
            text = text.replace("(", " with ").replace(")", "")
        yield re.sub(r" += +", "=", meaning or text)
