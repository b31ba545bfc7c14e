"""Machine code in files: one for each function, types of its arguments, processor and version.

They are beside this file, in `__pycache__`, or in the user's folder for caches where that cannot be
written, or in SIMREDUCE_CACHE_DIR. A file is a shared object, which a linker has made, or an object
file, which llvmlite loads, where there is no linker.

Machine code that another user wrote would run as us. So a folder counts only if it belongs to this
user, to root or to the owner of this package, and nobody else can write there; so does a file.
Both are checked on open descriptors, and files are reached through that of their folder.

Files in folders where another user may have put something first: no link is followed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType
from typing import IO, Any

from simreduce.computing import breadth_first
from simreduce.computing.workers import announce

_SCRATCH = ".simreduce"
"""The end of the names of folders that go at the end."""

NO_LOCK = (errno.ELOOP, errno.EINVAL)
"""Numbers of the errors that say that something else has the name of a lock."""


def open_plain(path: str, flags: int, mode: int = 0o666) -> int:
    """Return a descriptor of the plain file at `path`. OSError, and no wait, for anything else."""
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):  # few systems have all
        flags |= getattr(os, name, 0)
    try:
        number = os.open(path, flags, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "is a link, not a file") from None
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "is no plain file")
    return number


def open_lock(path: str, mode: int = 0o666) -> int:
    """Return a descriptor of the lock file at `path`, which is made with `mode` if it is missing.

    It changes nothing of what is there. OSError also for a file with a second name, which may be a
    file of ours that another user has linked.
    """
    number = open_plain(path, os.O_RDWR | os.O_CREAT, mode)
    if os.fstat(number).st_nlink > 1:
        os.close(number)
        raise OSError(errno.EINVAL, "is no lock: the file has other names")
    return number


@contextmanager
def scratch_folder(prefix: str, where: Path | None = None) -> Iterator[str]:
    """A folder in `where`, by default the system's for such, that goes at the end.

    It is locked until then, so the next one with this prefix removes what a killed process left,
    and nothing of another name: a user may have folders in `where`.
    """
    where = where or Path(tempfile.gettempdir())
    for place in where.glob(f"{prefix}*{_SCRATCH}"):
        with ExitStack() as stack:
            if _holds(stack, place):
                shutil.rmtree(place, ignore_errors=True)
    with ExitStack() as stack:
        while True:
            name = tempfile.mkdtemp(_SCRATCH, prefix, where)
            stack.callback(shutil.rmtree, name, ignore_errors=True)
            if _holds(stack, Path(name)) is not False and os.path.isdir(name):  # noqa: PTH112
                break  # else somebody has just removed it
        yield name


def _holds(stack: ExitStack, place: Path) -> bool | None:
    """Whether a folder of ours could be locked for the stack; None where there are no locks."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows

        number = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (ImportError, AttributeError):
        return None
    except OSError:
        return False
    stack.callback(os.close, number)
    if os.fstat(number).st_uid != os.geteuid():
        return False
    with suppress(BlockingIOError):
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


_FOLDER = "SIMREDUCE_CACHE_DIR"
_LINKERS = ("cc", "gcc", "clang", "ld")
_SHARED, _OBJECT = ".so", ".o"
_DAMAGED = OSError, AttributeError, RuntimeError, ValueError
"""Exceptions from loading a damaged file."""

_MAKERS = ("compiler.py", "loops.py", "own_files.py")
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
        with _writable() as folder, _alone(folder, name):
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
    with scratch_folder("scratch-", folder) as scratch:
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
    for place in _folders():
        with contextlib.suppress(OSError), _opened(place) as folder:
            shared, made = folder / f"{name}{_SHARED}", folder / f"{name}{_OBJECT}"
            with contextlib.suppress(*_DAMAGED), _checked(shared):
                return ctypes.CDLL(str(shared))[symbol]
            with contextlib.suppress(*_DAMAGED), _checked(made) as file:
                return _from_object(file.read(), symbol)
    return None


class _UntrustedError(PermissionError):
    """What another user may have written."""


def check_owner(found: os.stat_result) -> None:
    """Raises _UntrustedError if another user may have written or may replace a file or folder.

    In a folder with the sticky bit, others add files but replace none.
    """
    if os.name != "posix":
        return
    if found.st_uid not in _owners():
        raise _UntrustedError(errno.EPERM, f"belongs to another user ({found.st_uid})")
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
        raise _UntrustedError(errno.EPERM, "others may write there; `chmod go-w` forbids it")


def _owners() -> set[int]:
    """Users whose code runs here anyway: this one, root, and who owns this package."""
    owners = {0, os.geteuid()}
    with contextlib.suppress(OSError):  # a package that is not kept as files
        owners.add(Path(__file__).stat().st_uid)
    return owners


@contextlib.contextmanager
def _opened(place: Path) -> Iterator[Path]:
    """The folder at `place`, by its open descriptor where the system has names for these: whoever
    puts another folder in its place changes nothing. OSError unless it can be trusted.
    """
    if os.name != "posix":
        yield place
        return
    number = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        check_owner(os.fstat(number))
        held = Path(f"/proc/{os.getpid()}/fd/{number}")  # not `self`: a linker has it too
        yield held if held.exists() else place
    finally:
        os.close(number)


@contextlib.contextmanager
def _checked(path: Path) -> Iterator[IO[bytes]]:
    """The file at `path`, open. OSError unless it is a plain one that can be trusted."""
    with os.fdopen(open_plain(str(path), os.O_RDONLY), "rb") as file:
        check_owner(os.fstat(file.fileno()))
        yield file


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


_PATIENCE, _PAUSE = (3.0, 120.0), 0.05
"""Seconds after which a wait for another process is mentioned, and ends; and between looks.

The kernel takes 10 s to compile on an idle core; who ends lets go of the lock.
"""


@contextlib.contextmanager
def _alone(folder: Path | None, name: str) -> Iterator[None]:
    """No other process compiles this function for this folder meanwhile, where it and the system
    can lock: a byte of one file for each function.

    Who waits in vain compiles all the same, as files are written whole.
    """
    if folder is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl  # noqa: PLC0415 - not on Windows

            number = open_lock(str(folder / "lock"), 0o600)
            stack.callback(os.close, number)
            check_owner(os.fstat(number))
            os.fchmod(number, 0o600)  # others would lock what they can read
            place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
            _wait_for(lambda: fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place))
        yield


def _wait_for(take: Callable[[], None]) -> None:
    """Try to take a lock until it is ours, or too long."""
    began, limits = time.monotonic(), list(_PATIENCE)
    while limits:
        try:
            return take()
        except BlockingIOError:
            if time.monotonic() - began > limits[0]:
                del limits[0]
                doing = "waiting" if limits else "no longer waiting"
                announce(f"{doing} for another process, which may be compiling the same")
            time.sleep(_PAUSE)
    return None


@cache
def _names() -> list[str]:
    found = []
    for place in _folders():
        with contextlib.suppress(OSError), _opened(place) as folder:
            found += os.listdir(folder)  # noqa: PTH208 - quicker
    return found


def user_cache() -> Path:
    """Where a user's programs keep what can be made again; RuntimeError for one without a home."""
    user = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return user if user.is_absolute() else Path.home() / ".cache"


def _folders() -> list[Path]:
    """Where files may be."""
    if given := os.environ.get(_FOLDER):
        return [Path(given).absolute()]  # a bare name would be looked for in the system's folders
    folders = [Path(__file__).parent / "__pycache__"]
    with contextlib.suppress(RuntimeError):  # a user without a home
        # Earlier releases let a group write to `simreduce` itself where the umask did.
        folders.append(user_cache() / "simreduce" / "code")
    return folders


@contextlib.contextmanager
def _writable() -> Iterator[Path | None]:
    """The first folder where files can be kept. Says so if there is none that can be trusted."""
    with contextlib.ExitStack() as stack:
        refused: list[str] = []
        for place in _folders():
            try:
                place.mkdir(mode=0o755, parents=True, exist_ok=True)
                folder = stack.enter_context(_opened(place))
                with tempfile.TemporaryFile(dir=folder):
                    pass
            except _UntrustedError as error:
                refused.append(f"{place} {error.strerror}")
            except OSError:
                continue
            else:
                yield folder
                return
        if refused:
            announce(f"compiled code is not kept: {'; '.join(refused)}")
        yield None


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


def callees(function: FunctionType) -> Iterator[tuple[str, FunctionType]]:
    """The functions of the same package that it calls, by the names that it calls them by."""
    package = _package(function)
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType) and _package(value) == package:
            yield name, value


def _package(function: FunctionType) -> str:
    return function.__module__.split(".", maxsplit=1)[0]


@cache
def digest_of(function: Callable[..., Any]) -> str:
    """A hash of all that the machine code depends on, but for the types of arguments."""
    found = {f"{each.__module__}.{each.__qualname__}": _facts(each) for each in _needed(function)}
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:16]


def code_size(function: Callable[..., Any]) -> int:
    """Bytes of Python's code, with all that it calls."""
    return sum(len(each.__code__.co_code) for each in _needed(function))


def _needed(function: Callable[..., Any]) -> Iterable[FunctionType]:
    """It, and what it calls, and what these call."""
    assert isinstance(function, FunctionType)  # noqa: S101
    return breadth_first(function, lambda each: [callee for _, callee in callees(each)])


def _facts(function: FunctionType) -> tuple[Any, ...]:
    constants = {
        each: value
        for each in function.__code__.co_names
        if isinstance(value := function.__globals__.get(each), (int, float, str))
    }
    return _describe(function.__code__), function.__defaults__, sorted(constants.items())


def _describe(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(_describe(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.co_code, constants, code.co_names, code.co_varnames
