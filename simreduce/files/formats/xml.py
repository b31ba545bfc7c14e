"""Reads XML of unknown origin safely: no document types, and limits on size and depth.

The parser is expat of Python's standard library. It refuses a document type before it reads its
content. Without one, XML has five entities only and cannot refer to other files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

from simreduce.errors import InputError, quote

MOST_CHARACTERS = 4 << 20
MOST_ELEMENTS = 50_000
MOST_DEPTH = 64
MOST_ATTRIBUTES = 64


@dataclass(slots=True)
class Element:
    """A tag with its attributes and what is inside it; `line` is where it begins.

    Text between tags is dropped.
    """

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def get(self, name: str, default: str = "") -> str:
        """An attribute, without the blanks around it."""
        return self.attributes.get(name, default).strip()

    def all(self, tag: str) -> list[Element]:
        """The children with this tag."""
        return [child for child in self.children if child.tag == tag]


def read_xml(text: str, name: str, error_type: type[InputError] = InputError) -> Element:
    """The root of a document; raises an `error_type` with the line of what is wrong."""
    if len(text) > MOST_CHARACTERS:
        raise error_type(f"{name}: more than {MOST_CHARACTERS >> 20} MiB of XML")
    if "\0" in text:
        raise error_type(f"{name}: not XML: it holds a zero byte")
    parser = expat.ParserCreate("utf-8")
    root = Element("", {}, 0)
    open_tags = [root]
    count = 0

    def refuse(*_: object) -> None:
        raise error_type(
            f"{name}: line {parser.CurrentLineNumber}: a document type or an entity is declared; "
            "remove it: such files are not read"
        )

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        line = parser.CurrentLineNumber
        if (
            count > MOST_ELEMENTS
            or len(open_tags) > MOST_DEPTH
            or len(attributes) > MOST_ATTRIBUTES
        ):
            raise error_type(
                f"{name}: line {line}: more than {MOST_ELEMENTS} elements, {MOST_DEPTH} one "
                "inside the other or "
                f"{MOST_ATTRIBUTES} attributes"
            )
        element = Element(tag, attributes, line)
        open_tags[-1].children.append(element)
        open_tags.append(element)

    def end(_: str) -> None:
        open_tags.pop()

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.UnparsedEntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = lambda *_: 0
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    try:
        parser.Parse(text.encode("utf-8", "surrogatepass"), True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise error_type(
            f"{name}: line {error.lineno}: not well-formed XML: {reason}; begins with "
            f"{quote(text[:40])}"
        ) from None
    return root.children[0]
