"""Gradient lists by name, from a file, or inline.

* a shipped model: `resnet50`, `vgg16`, ...; of a transformer also for other sequences,
  `bert-base,sequence=384`
* a decoder by its figures: `transformer:layers=48,hidden=8192,heads=64,vocab=51200`
* `bytes:64M` (powers of 1024) or `bytes:64MB`: one gradient; `bytes:64M,dtype=float16`
* a CSV file with the columns `name`, `elements` or `shape` (`7x7x3x64`), and optionally `dtype`
* a TOML file with `[[gradients]]` tables of the same keys, or with `[[layers]]`, which have such
  gradients and their work (`files.py`)
"""

from __future__ import annotations

from pathlib import Path

from simreduce import dtypes, units
from simreduce.errors import WorkloadError, did_you_mean, quote
from simreduce.files.formats import Faults
from simreduce.files.textfiles import exists
from simreduce.workload import architectures, convolutional
from simreduce.workload.architectures.decoder import DECODERS, EXAMPLE, STATED, read_shape
from simreduce.workload.files import read_file
from simreduce.workload.workload import Gradient, Model, Workload, of_list


def shipped() -> list[str]:
    """Names of the models that come with simreduce."""
    return sorted((*convolutional.NAMES, *architectures.NAMES))


def load_model(text: str) -> Model:
    """The model that `text` names; of a file or `bytes:`, every gradient is a layer. WorkloadError
    lists every fault.
    """
    found = _load(text)
    return found if isinstance(found, Model) else of_list(found)


def load_workload(text: str) -> Workload:
    """The gradient list that `text` names; WorkloadError lists every fault."""
    found = _load(text)
    return found.workload if isinstance(found, Model) else found


def _load(text: str) -> Model | Workload:
    """The model that `text` names, or the gradient list where its layers are not known."""
    model = _model(text)
    if model is not None:
        return model
    if text.startswith("bytes:"):
        return _inline(text)
    if Path(text).suffix not in (".csv", ".toml") and not exists(text):
        near = did_you_mean(text, shipped()) or f"; shipped: {', '.join(shipped())}"
        forms = (
            "a file ends in .csv or .toml, one gradient is 'bytes:64M', a decoder by its figures "
            f"{quote(EXAMPLE)}"
        )
        raise WorkloadError(f"no workload {quote(text)}{near}; {forms}")
    return read_file(text)


def _model(text: str) -> Model | None:
    """The shipped model that `text` names, if it names one."""
    if text in convolutional.NAMES:
        return convolutional.convolutional(text)
    if text.startswith(STATED):
        return _stated(text).model
    name, *options = text.split(",")
    if name not in architectures.NAMES:
        return None
    faults, sequence, most = Faults(text), None, architectures.longest(name)
    if options and not architectures.of_sequences(name):
        faults.add("", f"{name} reads images, and takes no options")
        faults.raise_any(WorkloadError)
    for value in _values(options, "sequence", faults):
        if not value.isdecimal() or len(value) > 9 or not 1 <= int(value) <= most:
            words = f"must be a whole number of tokens from 1 to {most}"
            faults.add("sequence", f"{words}, got {quote(value)}")
        else:
            sequence = int(value)
    faults.raise_any(WorkloadError)
    return architectures.transformer(name, sequence)


def _stated(text: str) -> architectures.Sequences:
    shape = read_shape(text)
    return architectures.Sequences(text, shape, shape.sequence)


def load_decoder(text: str) -> architectures.Sequences:
    """The decoder that `text` names or states; WorkloadError if it is none."""
    if text.startswith(STATED):
        return _stated(text)
    model = load_model(text)
    found = None
    if (name := text.split(",", maxsplit=1)[0]) in architectures.NAMES:
        found = architectures.decoder(name, model.tokens if "," in text else None)
    if found is None:
        known = ", ".join(DECODERS)
        words = "is no decoder of equal blocks, which a mesh could divide"
        raise WorkloadError(f"{text} {words}; such are {known}, and {EXAMPLE}")
    return found


def _values(options: list[str], key: str, faults: Faults) -> list[str]:
    """The values of `key=value`, the only option."""
    pairs = [option.partition("=") for option in options]
    faults.unknown("", [name for name, _, _ in pairs], [key])
    return [value for name, _, value in pairs if name == key]


def _inline(text: str) -> Workload:
    size, *options = text.removeprefix("bytes:").split(",")
    faults, dtype = Faults(text), 0
    nbytes = faults.attempt("", units.cli_size, size)
    if nbytes == 0:
        faults.add("", "a gradient has at least one element, and this has 0 bytes")
    for value in _values(options, "dtype", faults):
        dtype = faults.attempt("", dtypes.code, value) or 0
    nbytes = nbytes or 0
    if nbytes % dtypes.SIZES[dtype]:
        of_dtype = f"a whole number of {dtypes.NAMES[dtype]} elements"
        faults.add("", f"{nbytes} bytes are not {of_dtype}")
    faults.raise_any(WorkloadError)
    return Workload(text, (Gradient("gradient", nbytes // dtypes.SIZES[dtype], dtype),))
