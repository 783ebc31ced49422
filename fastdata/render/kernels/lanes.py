"""Vectors of 16 pixels inside a compiled kernel: their types and arithmetic.

Numba has no vector type; LLVM has. ``Lanes`` is one, and each function below is one instruction or a few on it. Everything is
written in LLVM's own operations, which any processor can run, and where x86 with AVX2 has a single instruction for it, that one
is named: both give the same bits. Only ``pair_sums`` has no such form: where it is missing (``HAS_PAIR_SUMS``), a kernel goes
pixel by pixel.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import models, register_model

from fastdata.render.kernels.compiled import instruction

WIDTH = 16
"""Pixels that one vector holds."""
HAS_PAIR_SUMS = "+avx2" in cpu_target.target_context.codegen().magic_tuple()[2]
"""Whether the code is compiled for a processor with AVX2; ``NUMBA_CPU_NAME=generic`` says no."""


class Lanes(types.Type):
    """Vector of 16 whole numbers; signed or not is a matter of the operation."""

    def __init__(self, element: Any, count: int) -> None:
        self.element, self.count = element, count
        super().__init__(name=f"Lanes({element} x {count})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Lanes) -> None:
        super().__init__(dmm, fe_type, ir.VectorType(fe_type.element, fe_type.count))


I8, I16, I32, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()
V16, V32, VF = (ir.VectorType(e, WIDTH) for e in (I16, I32, F32))
B16, B32 = ir.VectorType(I8, 16), ir.VectorType(I8, 32)
i16x16 = Lanes(I16, WIDTH)
u8x32 = Lanes(I8, 32)
f32x16 = Lanes(F32, WIDTH)
i32x16 = Lanes(I32, WIDTH)
_FIRST_HALF, _SECOND_HALF = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
"""Order of the lanes of ``f32x16``: x86 widens and packs within halves of a register, and so need not cross them."""


def indices(numbers: Any) -> Any:
    return ir.Constant(ir.VectorType(I32, len(numbers)), list(numbers))


def call(builder: Any, name: str, result: Any, args: list[Any]) -> Any:
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(builder.module.declare_intrinsic(name, fnty=kind), args)


def splat(builder: Any, value: Any, what: Any) -> Any:
    one = builder.insert_element(ir.Constant(what, ir.Undefined), value, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, what.count), [0] * what.count)
    return builder.shuffle_vector(one, ir.Constant(what, ir.Undefined), zeros)


@instruction
def number(typingctx: Any, value: Any) -> Any:
    """The same whole number: one that is written down has a type of its own, for which a function is compiled once more."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return args[0]

    return types.int64(types.int64), codegen


@instruction
def all_lanes(typingctx: Any, value: Any) -> Any:
    """The same whole number 16 times."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return splat(builder, builder.trunc(args[0], I16), V16)

    return i16x16(types.int64), codegen


@instruction
def all_f32(typingctx: Any, value: Any) -> Any:
    """The same float 16 times."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return splat(builder, args[0], VF)

    return f32x16(types.float32), codegen


def _binary(lanes: Lanes, emit: Any) -> Any:
    """Make a function of two vectors from one that emits its instruction."""

    @instruction
    def operation(typingctx: Any, a: Any, b: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return emit(builder, args[0], args[1])

        return lanes(lanes, lanes), codegen

    return operation


def _named(name: str) -> Any:
    return lambda builder, a, b: call(builder, f"llvm.{name}.v16i16", V16, [a, b])


def _emit_rounded_product(builder: Any, a: Any, b: Any) -> Any:
    if HAS_PAIR_SUMS:
        return call(builder, "llvm.x86.avx2.pmul.hr.sw", V16, [a, b])
    one, fourteen = (ir.Constant(V32, [n] * WIDTH) for n in (1, 14))
    product = builder.mul(builder.sext(a, V32), builder.sext(b, V32))
    return builder.trunc(builder.lshr(builder.add(builder.lshr(product, fourteen), one), one), V16)


add = _binary(i16x16, lambda builder, a, b: builder.add(a, b))
sub = _binary(i16x16, lambda builder, a, b: builder.sub(a, b))
bit_and = _binary(i16x16, lambda builder, a, b: builder.and_(a, b))
bit_or = _binary(i16x16, lambda builder, a, b: builder.or_(a, b))
minimum = _binary(i16x16, _named("smin"))
maximum = _binary(i16x16, _named("smax"))
minimum_unsigned = _binary(i16x16, _named("umin"))
add_saturated = _binary(i16x16, _named("sadd.sat"))
"""Signed: the sum, at most 32767."""
add_unsigned = _binary(i16x16, _named("uadd.sat"))
sub_unsigned = _binary(i16x16, _named("usub.sat"))
"""Unsigned: the difference, at least 0."""
product_q15 = _binary(i16x16, _emit_rounded_product)
"""Signed: ``(a * b + 2**14) >> 15``, a product where 32768 stands for 1."""
f32_div = _binary(f32x16, lambda builder, a, b: builder.fdiv(a, b))
f32_mul = _binary(f32x16, lambda builder, a, b: builder.fmul(a, b))


def _comparison(how: str) -> Any:
    return _binary(i16x16, lambda builder, a, b: builder.sext(builder.icmp_signed(how, a, b), V16))


equal, greater = _comparison("=="), _comparison(">")
"""All bits set where it holds."""


@instruction
def choose(typingctx: Any, mask: Any, yes: Any, no: Any) -> Any:
    """Lanes of ``yes`` where all bits of the mask are set, of ``no`` where none is."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        is_set = builder.icmp_signed("<", args[0], ir.Constant(V16, [0] * WIDTH))
        return builder.select(is_set, args[1], args[2])

    return i16x16(i16x16, i16x16, i16x16), codegen


@instruction
def shift_right(typingctx: Any, value: Any, bits: Any) -> Any:
    """Unsigned, by the same number of bits in all lanes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.lshr(args[0], splat(builder, builder.trunc(args[1], I16), V16))

    return i16x16(i16x16, types.int64), codegen


@instruction
def shift_left(typingctx: Any, value: Any, bits: Any) -> Any:
    """By the same number of bits in all lanes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.shl(args[0], splat(builder, builder.trunc(args[1], I16), V16))

    return i16x16(i16x16, types.int64), codegen


@instruction
def to_f32(typingctx: Any, value: Any) -> Any:
    """Numbers of 0..32767 as floats."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(V16, [0] * WIDTH)
        halves = []
        for half in (_FIRST_HALF, _SECOND_HALF):
            with_zeros = builder.shuffle_vector(args[0], zero, indices([n for i in half for n in (i, 16)]))
            halves.append(builder.bitcast(with_zeros, ir.VectorType(I32, 8)))  # little-endian: the zero is the upper part
        return builder.sitofp(builder.shuffle_vector(halves[0], halves[1], indices(range(16))), VF)

    return f32x16(i16x16), codegen


@instruction
def to_i16(typingctx: Any, value: Any) -> Any:
    """Floats rounded to the nearest, half to even, then to -32768..32767."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = call(builder, "llvm.lrint.v16i32.v16f32", V32, [args[0]])
        if HAS_PAIR_SUMS:
            halves = [builder.shuffle_vector(whole, whole, indices(range(i, i + 8))) for i in (0, 8)]
            return call(builder, "llvm.x86.avx2.packssdw", V16, halves)
        low, high = (ir.Constant(V32, [n] * WIDTH) for n in (-32768, 32767))
        whole = call(builder, "llvm.smin.v16i32", V32, [call(builder, "llvm.smax.v16i32", V32, [whole, low]), high])
        lanes = builder.trunc(whole, V16)
        back = sorted(range(WIDTH), key=[*_FIRST_HALF, *_SECOND_HALF].__getitem__)
        return builder.shuffle_vector(lanes, lanes, indices(back))

    return i16x16(f32x16), codegen


@instruction
def pair_sums(typingctx: Any, pixels: Any, places: Any, weights: Any) -> Any:
    """``(pixel - 128) * weight`` of two pixels, summed, 16 times.

    Args:
        pixels: Two halves of 16 bytes.
        places: For each of the 16 results the two bytes of its half, 0 to 15.
        weights: For each of the 16 results the weights of the two; they add up to 255, so that 16 bits are enough.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        centred = builder.xor(args[0], ir.Constant(B32, [-128] * 32))
        pairs = call(builder, "llvm.x86.avx2.pshuf.b", B32, [centred, args[1]])
        return call(builder, "llvm.x86.avx2.pmadd.ub.sw", V16, [args[2], pairs])

    return i16x16(u8x32, u8x32, u8x32), codegen


i32_add = _binary(i32x16, lambda builder, a, b: builder.add(a, b))
i32_mul = _binary(i32x16, lambda builder, a, b: builder.mul(a, b))
i32_and = _binary(i32x16, lambda builder, a, b: builder.and_(a, b))
i32_min = _binary(i32x16, lambda builder, a, b: call(builder, "llvm.smin.v16i32", V32, [a, b]))
i32_max = _binary(i32x16, lambda builder, a, b: call(builder, "llvm.smax.v16i32", V32, [a, b]))


@instruction
def all_i32(typingctx: Any, value: Any) -> Any:
    """The same whole number 16 times."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return splat(builder, builder.trunc(args[0], I32), V32)

    return i32x16(types.int64), codegen


@instruction
def ramp(typingctx: Any, step: Any) -> Any:
    """0, step, 2 * step, ..."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        steps = splat(builder, builder.trunc(args[0], I32), V32)
        return builder.mul(steps, ir.Constant(V32, list(range(WIDTH))))

    return i32x16(types.int64), codegen


@instruction
def i32_shift_right(typingctx: Any, value: Any, bits: Any) -> Any:
    """Signed, by the same number of bits in all lanes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ashr(args[0], splat(builder, builder.trunc(args[1], I32), V32))

    return i32x16(i32x16, types.int64), codegen


@instruction
def narrow(typingctx: Any, value: Any) -> Any:
    """The low 16 bits of each number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.trunc(args[0], V16)

    return i16x16(i32x16), codegen


@instruction
def weighted_pairs(typingctx: Any, pairs: Any, weights: Any) -> Any:
    """``(pixel - 128) * weight`` of the two bytes of each number, summed; the weights add up to 255."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        centred = builder.xor(args[0], ir.Constant(V16, [-32640] * WIDTH))  # 0x80 in both bytes
        if HAS_PAIR_SUMS:
            as_bytes = [builder.bitcast(value, B32) for value in (args[1], centred)]
            return call(builder, "llvm.x86.avx2.pmadd.ub.sw", V16, as_bytes)
        low, high = (ir.Constant(V16, [n] * WIDTH) for n in (255, 8))
        first = builder.mul(builder.ashr(builder.shl(centred, high), high), builder.and_(args[1], low))
        second = builder.mul(builder.ashr(centred, high), builder.lshr(args[1], high))
        return builder.add(first, second)

    return i16x16(i16x16, i16x16), codegen
