"""Kernels for memory bandwidth and launch latency in PTX, which the driver itself compiles.

PTX 6.0 and compute capability 5.0, as in goldnode-smoke. A block of 256 threads moves 16 KiB: four
loads of 16 bytes per thread are under way at once. A grid-stride loop with one 4-byte access per
thread reaches little more than half of HBM3e's rate.
"""

from __future__ import annotations

THREADS = 256
BLOCK_BYTES = 16384  # of one array

_OFFSET = """\
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d0, %r0, 16384;
    mul.wide.u32 %d1, %r1, 16;
    add.u64 %d0, %d0, %d1;
"""


def _pointer(register: str, name: str) -> str:
    return (
        f"    ld.param.u64 {register}, [{name}];\n    cvta.to.global.u64 {register}, {register};\n"
        f"    add.u64 {register}, {register}, %d0;\n"
    )


def _vector(first: int) -> str:
    return "{" + ", ".join(f"%f{first + part}" for part in range(4)) + "}"


def _load(register: str, first: int) -> str:
    return "".join(
        f"    ld.global.v4.f32 {_vector(first + 4 * step)}, [{register}+{4096 * step}];\n"
        for step in range(4)
    )


def _store(register: str, first: int) -> str:
    return "".join(
        f"    st.global.v4.f32 [{register}+{4096 * step}], {_vector(first + 4 * step)};\n"
        for step in range(4)
    )


_FMA = "".join(f"    fma.rn.f32 %f{part}, %f32, %f{16 + part}, %f{part};\n" for part in range(16))
_REGISTERS = "    .reg .b32 %r<4>; .reg .b64 %d<6>; .reg .f32 %f<33>;\n"

SOURCE = f"""\
.version 6.0
.target sm_50
.address_size 64

.visible .entry goldnode_nothing()
{{
    ret;
}}

.visible .entry goldnode_copy(.param .u64 to, .param .u64 source)
{{
{_REGISTERS}{_OFFSET}{_pointer("%d2", "to")}{_pointer("%d3", "source")}{_load("%d3", 0)}{_store("%d2", 0)}    ret;
}}

.visible .entry goldnode_triad(.param .u64 to, .param .u64 left, .param .u64 right, .param .f32 factor)
{{
{_REGISTERS}{_OFFSET}{_pointer("%d2", "to")}{_pointer("%d3", "left")}{_pointer("%d4", "right")}\
    ld.param.f32 %f32, [factor];
{_load("%d3", 0)}{_load("%d4", 16)}{_FMA}{_store("%d2", 0)}    ret;
}}
"""
