"""What launchers, time stamps and mail put before each line of a text, and colours in it."""

from __future__ import annotations

import re
from collections.abc import Callable

_STAMP = (
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*( std(out|err) [FP]\b| (- )?"
    r"(DEBUG|INFO|WARNING|ERROR)\b( -)?)?"
    r"|([A-Z][a-z]{2} )?[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d [^\s<]+"
)
_MARK = (
    rf"^ *(?P<stamp>{_STAMP}|>+(?= ))"
    r"|^ *(\(\w{1,64} pid=\d+(, ip=[\w.:]+)?\)"
    r"|\[[^\]]{1,80}\](<std(out|err)>)?:?|[\w.-]{1,64}( *\||:)|<std(out|err)>:?)"
)
_PREFIX = re.compile(rf"({_MARK})\s*")
"""A prefix that mpirun (`[1,0]<stdout>:`), srun (`0:`), pdsh (`node1:`), Docker (`nccl-1  |`) or
Ray (`(RayWorker pid=7, ip=10.0.0.1)`) puts before a line; a time stamp of mpirun, of syslog, of a
container's log or of Python's logging; or `>`, as mail quotes.
"""
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def without_colours(text: str) -> str:
    """A text without what sets colours in it or moves the cursor."""
    return _COLOUR.sub("", text)


def without_marks(text: str) -> str:
    """A text without what a launcher puts before each of its lines, of several processes' that of
    the first; the text itself where a line has nothing of the kind.
    """
    lines = without_colours(text).splitlines()
    while any(lines):
        found = [re.match(_MARK, line) for line in lines if line.strip()]
        marks = [match for match in found if match]
        if len(marks) < len(found):
            break
        first = next((match[0] for match in marks if not match["stamp"]), "")
        lines = [
            match.string[match.end() :].removeprefix(" ")
            for match in marks
            if match["stamp"] or match[0] == first
        ]
    else:
        return text
    return "\n".join(lines)


def without_mark(line: str, whole: Callable[[str], bool]) -> str:
    """A line without what is put before it, unless it is `whole` as it is."""
    line = without_colours(line).strip()
    while not whole(line) and (match := _PREFIX.match(line)):
        line = line[match.end() :]
    return line
