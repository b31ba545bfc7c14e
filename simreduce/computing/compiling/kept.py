"""Machine code in files: one for each function, types of its arguments, processor and version.

They are beside this file, in `__pycache__`, or in the user's folder for caches where that cannot be
written, or in SIMREDUCE_CACHE_DIR. A file is a shared object, which a linker has made, or an object
file, which llvmlite loads, where there is no linker.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_FOLDER = "SIMREDUCE_CACHE_DIR"
_LINKERS = ("cc", "gcc", "clang", "ld")
_SHARED, _OBJECT = ".so", ".o"
_DAMAGED = OSError, AttributeError, RuntimeError, ValueError
"""Exceptions from loading a damaged file."""

_MAKERS = ("build.py", "code.py", "source.py")
"""Modules on which machine code depends."""

Build = Callable[[str], bytes]
"""From the name of the function to an object file with it."""


def is_kept(stem: str) -> bool:
    """Whether there is a file for this function on this processor, whatever its arguments."""
    return any(name.startswith(f"{stem}-{_processor()}") for name in _names())


def load(stem: str, types: str, build: Build) -> Any:
    """The function, from its file, which is written if there is none."""
    symbol = f"{stem}-{_processor()}-{hashlib.sha256(types.encode()).hexdigest()[:16]}"
    name, symbol = symbol, symbol.replace("-", "_")
    code = _from_file(name, symbol)
    if code is None:
        folder = _writable()
        with contextlib.nullcontext() if folder is None else _alone(folder / "lock"):
            # Perhaps another process has built it meanwhile.
            code = _from_file(name, symbol) or _make(folder, name, symbol, build)
    return code


def _make(folder: Path | None, name: str, symbol: str, build: Build) -> Any:
    content = build(symbol)
    if folder is not None:
        with contextlib.suppress(OSError):
            _write(folder, name, content)
            _names.cache_clear()
            if (code := _from_file(name, symbol)) is not None:
                return code
    return _from_object(content, symbol)


def _write(folder: Path, name: str, content: bytes) -> None:
    """Write the object file, or a shared object if there is a linker; whole, or not at all."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made, shared = Path(scratch, f"{name}{_OBJECT}"), Path(scratch, f"{name}{_SHARED}")
        with made.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # half a file would be loaded by every later process
        linker = next(filter(None, map(shutil.which, _LINKERS)), None)
        if linker is not None:
            command = [linker, "-shared", "-o", str(shared), str(made)]
            with contextlib.suppress(OSError):
                done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
                if done.returncode == 0 and ctypes.CDLL(str(shared)):
                    made = shared
        made.chmod(0o644)
        made.replace(folder / made.name)


def _from_file(name: str, symbol: str) -> Any:
    for folder in _folders():
        shared, made = folder / f"{name}{_SHARED}", folder / f"{name}{_OBJECT}"
        with contextlib.suppress(*_DAMAGED):
            if _is_ours(shared):
                return ctypes.CDLL(str(shared))[symbol]
        with contextlib.suppress(*_DAMAGED):
            if _is_ours(made):
                return _from_object(made.read_bytes(), symbol)
    return None


def _is_ours(path: Path) -> bool:
    """Whether nobody else can have written the file.

    A folder that the user has named may be shared, so only its files are checked. The others hold
    code of Python's anyway. OSError if there is no such file.
    """
    found = path.stat()
    if os.name != "posix" or _FOLDER not in os.environ:
        return True
    return found.st_uid in (0, os.getuid()) and not found.st_mode & 0o002


def _from_object(content: bytes, symbol: str) -> Any:
    import llvmlite.binding as llvm  # noqa: PLC0415 - takes 40 MB

    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(content))
    engine.finalize_object()
    signature = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)
    address = engine.get_function_address(symbol)
    if not address:
        raise OSError(f"no {symbol} in the machine code")
    return signature(address)


@cache
def _engine() -> Any:
    import llvmlite.binding as llvm  # noqa: PLC0415 - as above

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """No other process compiles meanwhile, where the system and the folder can lock."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl  # noqa: PLC0415 - not on Windows

            fcntl.flock(stack.enter_context(lock.open("w")), fcntl.LOCK_EX)
        yield


@cache
def _names() -> list[str]:
    found = []
    for folder in _folders():
        with contextlib.suppress(OSError):
            found += os.listdir(folder)  # noqa: PTH208 - quicker
    return found


def _folders() -> list[Path]:
    """Where files may be."""
    if given := os.environ.get(_FOLDER):
        return [Path(given).absolute()]  # a bare name would be looked for in the system's folders
    folders = [Path(__file__).parent / "__pycache__"]
    with contextlib.suppress(RuntimeError):  # a user without a home
        user = Path(os.environ.get("XDG_CACHE_HOME", ""))
        home = user if user.is_absolute() else Path.home() / ".cache"
        folders.append(home / "simreduce")
    return folders


def _writable() -> Path | None:
    for folder in _folders():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
    return None


@cache
def _processor() -> str:
    """A hash of what the machine code of a function depends on besides its source."""
    parts = [platform.system(), platform.machine(), *_cpu_facts()]
    numba = find_spec("numba")
    if numba is not None and numba.origin is not None:
        parts.append(_text(Path(numba.origin).with_name("_version.py")))
    parts += [_text(Path(__file__).with_name(name)) for name in _MAKERS]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _text(path: Path) -> str:
    """Its text; none where packages are not kept as files of source."""
    with contextlib.suppress(OSError):
        return path.read_text("utf-8")
    return ""


def _cpu_facts() -> list[str]:
    """Return Linux's lines on its first processor; elsewhere, the processor's and node's names."""
    facts = "model name", "flags", "Features", "CPU implementer", "CPU part"
    try:
        with Path("/proc/cpuinfo").open("rb") as file:
            lines = file.read(1 << 14).decode("utf-8", "replace").split("\n\n")[0].splitlines()
    except OSError:
        return [platform.processor(), platform.node()]
    return [line for line in lines if line.startswith(facts)]
