"""Machine code of a function, by numba. The only module that imports numba."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core import cgutils as llvm_tools
from numba.extending import intrinsic

from simreduce.computing.own_files import callees

njit: Any = numba.njit
cgutils: Any = llvm_tools  # which has no types
types: Any = numba.types

_OPTIONS = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Nothing is allocated: to count references to arrays would take nine tenths of the time. Without
wrappers for Python and C, compiling takes half as long.
"""


def build(
    function: Callable[..., Any], arguments: tuple[Any, ...], symbol: str, *, bare: bool
) -> bytes:
    """An object file with a function of this name, in numba's calling convention:
    `int32 symbol(int64 *answer, void **fault, int64 *words)`; `words` are the arguments, as
    `Native` has them.
    """
    compiled = _with_callees(function, {})
    unpack = _unpacking(types.Tuple([_type_of(each, bare=bare) for each in arguments]))
    pack = _packing()

    def entry(words: Any) -> Any:
        return pack(compiled(*unpack(words)))

    run = njit(entry, **_OPTIONS)
    signature = (types.CPointer(types.int64),)
    run.compile(signature)
    result = run.overloads[signature]
    # As text, as all that numba knows of the module is of no use here.
    module = llvm.parse_assembly(str(result.library._final_module))  # noqa: SLF001
    module.get_function(result.fndesc.llvm_func_name).name = symbol
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="pic",
        codemodel="default",
    )
    _optimise(module, symbol, target)
    code: bytes = target.emit_object(module)
    return code


def _optimise(module: Any, symbol: str, target: Any) -> None:
    """Optimise the module once more, now that nothing but `symbol` is called from outside.

    A table is an argument for each of its columns. Inside, those that a function does not use go,
    and functions that are called in one place become part of their callers: a tenth fewer
    instructions in the kernel, for a tenth more time to compile it.
    """
    for function in module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = llvm.Linkage.internal
    passes = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)


def _with_callees(function: Callable[..., Any], done: dict[Callable[..., Any], Any]) -> Any:
    """The function under numba, which compiles copies: functions stay as they are."""
    if function not in done:
        assert isinstance(function, FunctionType)  # noqa: S101
        scope = dict(function.__globals__)
        for name, callee in callees(function):
            scope[name] = _with_callees(callee, done)
        copy = FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
        done[function] = njit(copy, **_OPTIONS)
    return done[function]


def _type_of(value: Any, *, bare: bool) -> Any:
    if isinstance(value, np.ndarray):
        item = numba.from_dtype(value.dtype)
        if bare:
            return types.CPointer(types.int8 if item == types.boolean else item)
        return types.Array(item, value.ndim, "C")
    if isinstance(value, tuple):
        parts = [_type_of(each, bare=bare) for each in value]
        return types.BaseTuple.from_types(parts, type(value))
    return types.float64 if isinstance(value, float) else types.int64


def _unpacking(arguments: Any) -> Any:
    """A function that makes the arguments of the words."""

    def generate(context: Any, builder: Any, _: Any, given: Any) -> Any:
        place = iter(range(1 << 30))

        def word() -> Any:
            at = context.get_constant(types.intp, next(place))
            return builder.load(builder.gep(given[0], [at]))

        def make(kind: Any) -> Any:
            if isinstance(kind, types.BaseTuple):
                return context.make_tuple(builder, kind, [make(each) for each in kind.types])
            if isinstance(kind, types.Float):
                return builder.bitcast(word(), context.get_value_type(kind))
            if isinstance(kind, types.Integer):
                return word()
            address = builder.inttoptr(word(), context.get_data_type(kind.dtype).as_pointer())
            if isinstance(kind, types.CPointer):
                return address
            return _array(context, builder, kind, address, [word() for _ in range(kind.ndim)])

        return make(arguments)

    @intrinsic
    def unpack(_: Any, words: Any) -> Any:
        return arguments(words), generate

    return unpack


def _array(context: Any, builder: Any, kind: Any, address: Any, shape: list[Any]) -> Any:
    """An array of this shape, without gaps, that nobody owns."""
    array = context.make_array(kind)(context, builder)
    size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    strides = [context.get_constant(types.intp, size)]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    items = shape[0]
    for length in shape[1:]:
        items = builder.mul(items, length)
    array.data, array.itemsize, array.nitems = address, strides[-1], items
    array.shape = cgutils.pack_array(builder, shape)
    array.strides = cgutils.pack_array(builder, strides)
    return array._getvalue()  # noqa: SLF001


def _packing() -> Any:
    """A function that makes an int64 of what a function returns."""

    @intrinsic
    def pack(_: Any, answer: Any) -> Any:
        def generate(context: Any, builder: Any, __: Any, given: Any) -> Any:
            if answer == types.none:
                return context.get_constant(types.int64, 0)
            return context.cast(builder, given[0], answer, types.int64)

        return types.int64(answer), generate

    return pack
