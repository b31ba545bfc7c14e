"""Functions as machine code, called like the functions, and loops over columns by either.

    sweep(function, reads, writes, compiled=worth_compiling(function, entries))

Interpreted, a loop is given lists. Machine code is used where it is there already (`own_files`),
or for so many entries that it is worth compiling.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from simreduce.computing import own_files, workers
from simreduce.computing.own_files import code_size, digest_of
from simreduce.errors import InternalError

Known = dict[tuple[int, ...], tuple[Any, list[int], str]]
"""Tables by their place among the arguments, with what `Native` has made of them."""

_SECONDS = 5e-4
"""Seconds that a byte of Python's code takes to compile, about: the kernel's 20 kB take 10 s."""


class Native:
    """A function as machine code. Its arguments are whole numbers, floats, arrays without gaps, and
    named tuples of them. It returns a whole number, a truth value or None, as a whole number.

    A `bare` function is given the address of an array instead of the array, so it must not ask for
    its length. Of every array, numba would hand seven numbers to each function that is called: for
    the tables of the kernel that would take half the time to compile.
    """

    def __init__(self, function: Callable[..., Any], label: str, *, bare: bool) -> None:
        self.function, self.label, self.bare = function, label, bare
        self.name = function.__name__
        self._code: dict[str, Any] = {}

    @property
    def is_kept(self) -> bool:
        """Whether machine code is there, perhaps for arguments of other types."""
        return bool(self._code) or own_files.is_kept(self._stem)

    @property
    def _stem(self) -> str:
        return f"{self.name}-{digest_of(self.function)}"

    def __call__(self, *arguments: Any, known: Known | None = None) -> int:
        """Run it. `known` is the caller's, and keeps what was made of tables, which are named
        tuples of arrays: it takes a while to find the addresses of many.
        """
        words, types = self._read_all(arguments, (), {} if known is None else known)
        code = self._code.get(types) or self._load(types, arguments)
        answer, fault = ctypes.c_int64(), ctypes.c_void_p()
        array = (ctypes.c_int64 * len(words))(*words)
        status = code(ctypes.byref(answer), ctypes.byref(fault), array)
        if status:
            raise InternalError(f"{self.name}: an error in compiled code ({status})")
        return answer.value

    def _read(self, value: Any, place: tuple[int, ...], known: Known) -> tuple[list[int], str]:
        """A value as 64-bit words, and its type."""
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise InternalError(f"{self.name}: a column has gaps")
            address = _address(value)
            words = [address] if self.bare else [address, *value.shape]
            return words, f"{value.dtype.char}{value.ndim}"
        if isinstance(value, float):
            return list(struct.unpack("q", struct.pack("d", value))), "d"
        if not isinstance(value, tuple):
            return [int(value)], "q"
        found = known.get(place)
        if found is None or found[0] is not value:
            words, types = self._read_all(value, place, known)
            fields = ",".join(getattr(value, "_fields", ()))
            found = known[place] = value, words, f"{type(value).__name__}[{fields}]({types})"
        return found[1], found[2]

    def _read_all(
        self, values: tuple[Any, ...], place: tuple[int, ...], known: Known
    ) -> tuple[list[int], str]:
        words: list[int] = []
        types: list[str] = []
        for i, value in enumerate(values):
            more, its_type = self._read(value, (*place, i), known)
            words += more
            types.append(its_type)
        return words, ",".join(types)

    def _load(self, types: str, arguments: tuple[Any, ...]) -> Any:
        def build(symbol: str) -> bytes:
            seconds = round(_SECONDS * code_size(self.function))
            if seconds > 1:
                workers.announce(f"compiling {self.label} (once, about {seconds} s)")
            from simreduce.computing.compiler import build  # noqa: PLC0415 - it takes a while to load

            return build(self.function, arguments, symbol, bare=self.bare)

        code = own_files.load(self._stem, f"{types} {self.bare}", build)
        code.argtypes = [ctypes.c_void_p] * 3
        code.restype = ctypes.c_int32
        self._code[types] = code
        return code


_NOTHING = ctypes.c_char * 0


def _address(array: npt.NDArray[Any]) -> int:
    """Where an array's memory is; `ctypes.data` takes twice as long."""
    try:
        return ctypes.addressof(_NOTHING.from_buffer(array.data))
    except TypeError:  # read only
        address: int = array.ctypes.data
        return address


@cache
def native(function: Callable[..., Any], label: str = "a loop", *, bare: bool = False) -> Native:
    """The function as machine code; `label` names it in messages."""
    return Native(function, label, bare=bare)


_COMPILING, _SMALL = 400_000, 64
"""Entries that take about as long interpreted as compiling does, and how few are quicker
interpreted even if the machine code is there.
"""

_seen = [0]


def worth_compiling(function: Callable[..., Any], entries: int) -> bool:
    """Whether to run machine code for a loop over so many entries.

    Without machine code of an earlier process, compiling must first be worth its time: once this
    process has had many entries.
    """
    if entries < _SMALL:
        return False
    _seen[0] += entries
    return _seen[0] >= _COMPILING or native(function).is_kept


def sweep(
    function: Callable[..., Any],
    reads: Sequence[Any],
    writes: Sequence[Any] = (),
    *,
    compiled: bool,
) -> Any:
    """`function(*reads, *writes)`, of whole numbers and one-dimensional arrays; it fills
    `writes`. It allocates nothing, indexes no array by a negative number, and returns a whole
    number, a truth value or None.
    """
    if compiled:
        whole = (np.ascontiguousarray(r) if isinstance(r, np.ndarray) else r for r in reads)
        return native(function)(*whole, *writes)
    lists = [column.tolist() for column in writes]
    value = function(*(r.tolist() if isinstance(r, np.ndarray) else r for r in reads), *lists)
    for column, numbers in zip(writes, lists, strict=True):
        column[:] = numbers
    return value
