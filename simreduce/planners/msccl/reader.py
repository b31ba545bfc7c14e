"""Reads MSCCL's XML as a value. What the value means is for `interpreter`."""

from __future__ import annotations

import re

from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files.formats import Faults
from simreduce.files.formats.xml import Element, read_xml
from simreduce.planners.msccl.algorithm import (
    COLLECTIVES,
    KINDS,
    PROTOCOLS,
    ChunkPlace,
    MscclAlgorithm,
    MscclGpu,
    Step,
    ThreadBlock,
)

_BUFFERS = ("i", "o", "s")
_MOST = 1 << 62


def read_algorithm(text: str, name: str) -> MscclAlgorithm:
    """The algorithm of a file named `name`; raises `InputError` with every fault and its line."""
    root = read_xml(text, name)
    if root.tag != "algo":
        raise InputError(f"{name}: line {root.line}: MSCCL's root is <algo>, this is <{root.tag}>")
    faults = Faults(name)
    algorithm = _algorithm(root, faults)
    faults.raise_any()
    return algorithm


def _algorithm(root: Element, faults: Faults) -> MscclAlgorithm:
    count = _number(root, "ngpus", faults, 1)
    found = [_gpu(each, faults) for each in _numbered(root, "gpu", "id", faults)]
    if len(found) != count and "ngpus" in root.attributes:
        faults.add(_at(root), f"ngpus is {count}, and there are {len(found)} gpu elements")
    return MscclAlgorithm(
        root.get("name"),
        COLLECTIVES.get(_word(root, "coll", tuple(COLLECTIVES), faults), ""),
        _word(root, "proto", PROTOCOLS, faults),
        _number(root, "nchannels", faults, 1),
        _number(root, "nchunksperloop", faults, 1),
        tuple(found),
        bool(_number(root, "inplace", faults, 0, 1)),
        bool(_number(root, "outofplace", faults, 0, 1)) if "outofplace" in root.attributes else
        not _number(root, "inplace", Faults(), 0, 1),
        _number(root, "minBytes", faults, 0) if "minBytes" in root.attributes else 0,
        _number(root, "maxBytes", faults, 0) if "maxBytes" in root.attributes else _MOST,
    )  # fmt: skip


def _gpu(element: Element, faults: Faults) -> MscclGpu:
    inputs, outputs, scratch = (_number(element, f"{b}_chunks", faults, 0) for b in _BUFFERS)
    blocks = (_block(each, faults) for each in _numbered(element, "tb", "id", faults))
    return MscclGpu(inputs, outputs, scratch, tuple(blocks))


def _block(element: Element, faults: Faults) -> ThreadBlock:
    send, receive = (_number(element, each, faults, -1) for each in ("send", "recv"))
    steps = (_step(each, faults) for each in _numbered(element, "step", "s", faults))
    return ThreadBlock(send, receive, _number(element, "chan", faults, 0), tuple(steps))


def _step(element: Element, faults: Faults) -> Step:
    kind = _word(element, "type", tuple(KINDS), faults) or "nop"
    source, target = (
        ChunkPlace(
            _word(element, f"{end}buf", _BUFFERS, faults) or "i",
            _number(element, f"{end}off", faults, -1),
        )
        for end in ("src", "dst")
    )
    block, of = _number(element, "depid", faults, -1), _number(element, "deps", faults, -1)
    return Step(
        kind, source, target, _number(element, "cnt", faults, 0),
        (block, of) if block >= 0 else None, bool(_number(element, "hasdep", faults, 0, 1)),
    )  # fmt: skip


def _numbered(parent: Element, tag: str, key: str, faults: Faults) -> list[Element]:
    """The children with this tag, which must be numbered from 0 on without gaps."""
    found = sorted(parent.all(tag), key=lambda each: _number(each, key, Faults(), 0))
    for each in parent.children:
        if each.tag != tag:
            near = did_you_mean(each.tag, [tag])
            faults.add(_at(each), f"<{each.tag}> has no place in <{parent.tag}>{near}")
    for number, each in enumerate(found):
        if _number(each, key, faults, 0) != number:
            faults.add(_at(each), f'{tag} {key}="{each.get(key)}": expected {number}')
    return found


def _number(element: Element, key: str, faults: Faults, least: int, most: int = _MOST) -> int:
    text = element.get(key)
    if re.fullmatch(r"-?[0-9]{1,19}", text) and least <= int(text) <= most:
        return int(text)
    span = f"{least} or {most}" if most == least + 1 else f"a whole number from {least}"
    have = f"got {quote(text)}" if key in element.attributes else "it is missing"
    faults.add(_at(element), f"{element.tag} {key}: must be {span}; {have}")
    return least


def _word(element: Element, key: str, words: tuple[str, ...], faults: Faults) -> str:
    text = element.get(key)
    if text in words:
        return text
    near = did_you_mean(text, words) or f"; one of {', '.join(words)}"
    faults.add(_at(element), f"{element.tag} {key}: unknown {quote(text)}{near}")
    return ""


def _at(element: Element) -> str:
    return f"line {element.line}"
