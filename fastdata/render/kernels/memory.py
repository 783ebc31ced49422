"""Memory by address inside a compiled kernel: single numbers, and vectors of them.

Addresses are integers: a kernel walks over rows of pictures of all sizes, which no array type describes. Whoever calls a function
here answers for the bounds.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from fastdata.render.kernels.compiled import instruction
from fastdata.render.kernels.lanes import (
    B16,
    B32,
    HAS_PAIR_SUMS,
    I8,
    I16,
    I32,
    V16,
    V32,
    WIDTH,
    Lanes,
    call,
    i16x16,
    i32x16,
    indices,
    u8x32,
)


def _pointer(builder: Any, address: Any, what: Any) -> Any:
    return builder.inttoptr(address, what.as_pointer())


def _loader(memory: Any, signed: bool) -> Any:
    """Make a function that reads element ``i`` of numbers at an address."""

    @instruction
    def load(typingctx: Any, address: Any, i: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            at = builder.gep(_pointer(builder, args[0], memory), [args[1]], source_etype=memory)
            value = builder.load(at, typ=memory)
            value.align = 1
            if memory == ir.IntType(64):
                return value
            return builder.sext(value, ir.IntType(64)) if signed else builder.zext(value, ir.IntType(64))

        return types.int64(types.int64, types.int64), codegen

    return load


def _storer(memory: Any) -> Any:
    """Make a function that writes element ``i`` of numbers at an address."""

    @instruction
    def store(typingctx: Any, address: Any, i: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            at = builder.gep(_pointer(builder, args[0], memory), [args[1]], source_etype=memory)
            builder.store(builder.trunc(args[2], memory), at, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    return store


load_u8, load_u16, load_i64 = _loader(I8, False), _loader(I16, False), _loader(ir.IntType(64), True)
store_u8, store_i16 = _storer(I8), _storer(I16)


@instruction
def address_of(typingctx: Any, array: Any) -> Any:
    """Address of an array's first element.

    Numba lets go of an array after its last use and sees no use in an address: :func:`keep` has to come after the last access.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:

        struct = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=args[0])
        return builder.ptrtoint(struct.data, ir.IntType(64))

    return types.int64(array), codegen


@instruction
def keep(typingctx: Any, arrays: Any) -> Any:
    """Count as a use of a tuple of arrays, and do nothing."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_dummy_value()

    return types.void(arrays), codegen


def _vector_load(lanes: Lanes, what: Any) -> Any:
    @instruction
    def load(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_pointer(builder, args[0], what), typ=what)
            value.align = 1
            return value

        return lanes(types.int64), codegen

    return load


load_v16, load_i32, load_bytes32 = _vector_load(i16x16, V16), _vector_load(i32x16, V32), _vector_load(u8x32, B32)


@instruction
def store_v16(typingctx: Any, address: Any, value: Any) -> Any:
    """Write 16 numbers of 16 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], _pointer(builder, args[0], V16), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, i16x16), codegen


@instruction
def store_low_bytes(typingctx: Any, address: Any, value: Any) -> Any:
    """Write 16 numbers of 0..255 as bytes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if HAS_PAIR_SUMS:
            halves = [builder.shuffle_vector(args[1], args[1], indices(range(i, i + 8))) for i in (0, 8)]
            packed = call(builder, "llvm.x86.sse2.packuswb.128", B16, halves)
        else:
            packed = builder.trunc(args[1], B16)
        builder.store(packed, _pointer(builder, args[0], B16), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, i16x16), codegen


@instruction
def load_two_halves(typingctx: Any, first: Any, second: Any) -> Any:
    """16 bytes from each of two addresses."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        halves = []
        for address in args:
            half = builder.load(_pointer(builder, address, B16), typ=B16)
            half.align = 1
            halves.append(half)
        order = ir.Constant(ir.VectorType(I32, 32), list(range(32)))
        return builder.shuffle_vector(halves[0], halves[1], order)

    return u8x32(types.int64, types.int64), codegen


@instruction
def prefetch(typingctx: Any, address: Any) -> Any:
    """Have the processor fetch what lies at an address; no address is wrong."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(builder, args[0], I8)
        how = [ir.Constant(I32, n) for n in (0, 3, 1)]  # to read, into all caches, as data
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, I32, I32, I32])
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", (pointer.type,), kind), [pointer, *how])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@instruction
def load_pairs(typingctx: Any, address: Any, places: Any) -> Any:
    """Two neighbouring bytes from each of 16 places after an address, the first in the low byte."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        base = _pointer(builder, args[0], I8)
        pairs = ir.Constant(V16, ir.Undefined)
        for i in range(WIDTH):
            lane = ir.Constant(I32, i)
            place = builder.sext(builder.extract_element(args[1], lane), ir.IntType(64))
            at = builder.gep(base, [place], source_etype=I8)
            pair = builder.load(builder.bitcast(at, I16.as_pointer()), typ=I16)
            pair.align = 1
            pairs = builder.insert_element(pairs, pair, lane)
        return pairs

    return i16x16(types.int64, i32x16), codegen


@instruction
def fill_bytes(typingctx: Any, address: Any, count: Any, value: Any) -> Any:
    """Write the same byte ``count`` times."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:

        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I8, ir.IntType(64), ir.IntType(1)])
        memset = builder.module.declare_intrinsic("llvm.memset", (I8.as_pointer(), ir.IntType(64)), kind)
        is_volatile = ir.Constant(ir.IntType(1), 0)
        builder.call(memset, [_pointer(builder, args[0], I8), builder.trunc(args[2], I8), args[1], is_volatile])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen
