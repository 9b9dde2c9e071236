"""Kernels for NVIDIA's GPUs in PTX. The driver itself compiles them, so they need no library of an image.

They use PTX 6.0 and compute capability 5.0, which every GPU and driver that goldnode knows
supports. Word i of a pattern is (i * 2654435761) ^ (i >> 32) ^ seed, so that words 16 GiB apart
differ, too. `goldnode_gemm` is column-major, with one thread per element, and not optimised.
"""

from __future__ import annotations

_HEAD = """\
    .reg .pred %p<2>; .reg .b32 %r<12>; .reg .b64 %d<16>;
"""
# %d0: index of this thread, %d1: number of threads
_INDEX = """\
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %d0, %r0, %r1;
    cvt.u64.u32 %d2, %r2;
    add.u64 %d0, %d0, %d2;
    mov.u32 %r3, %nctaid.x;
    mul.wide.u32 %d1, %r3, %r1;
"""
# %r5: the word at index %d0 with the seed in %r4
_WORD = """\
    cvt.u32.u64 %r5, %d0;
    mul.lo.u32 %r5, %r5, 2654435761;
    shr.u64 %d6, %d0, 32;
    cvt.u32.u64 %r6, %d6;
    xor.b32 %r5, %r5, %r6;
    xor.b32 %r5, %r5, %r4;
    shl.b64 %d5, %d0, 2;
    add.u64 %d5, %d3, %d5;
"""

SOURCE = f"""\
.version 6.0
.target sm_50
.address_size 64

.visible .entry goldnode_fill(.param .u64 memory, .param .u64 words, .param .u32 seed)
{{
{_HEAD}    ld.param.u64 %d3, [memory];
    cvta.to.global.u64 %d3, %d3;
    ld.param.u64 %d4, [words];
    ld.param.u32 %r4, [seed];
{_INDEX}AGAIN:
    setp.ge.u64 %p0, %d0, %d4;
    @%p0 bra DONE;
{_WORD}    st.global.u32 [%d5], %r5;
    add.u64 %d0, %d0, %d1;
    bra AGAIN;
DONE:
    ret;
}}

.visible .entry goldnode_verify(.param .u64 memory, .param .u64 words, .param .u32 seed, .param .u64 wrong)
{{
{_HEAD}    ld.param.u64 %d3, [memory];
    cvta.to.global.u64 %d3, %d3;
    ld.param.u64 %d4, [words];
    ld.param.u32 %r4, [seed];
    ld.param.u64 %d7, [wrong];
    cvta.to.global.u64 %d7, %d7;
{_INDEX}AGAIN:
    setp.ge.u64 %p0, %d0, %d4;
    @%p0 bra DONE;
{_WORD}    ld.global.u32 %r7, [%d5];
    setp.eq.u32 %p1, %r7, %r5;
    @%p1 bra NEXT;
    atom.global.add.u32 %r8, [%d7], 1;
NEXT:
    add.u64 %d0, %d0, %d1;
    bra AGAIN;
DONE:
    ret;
}}

.visible .entry goldnode_relu(.param .u64 memory, .param .u64 words)
{{
{_HEAD}    .reg .f32 %f<4>;
    ld.param.u64 %d3, [memory];
    cvta.to.global.u64 %d3, %d3;
    ld.param.u64 %d4, [words];
{_INDEX}AGAIN:
    setp.ge.u64 %p0, %d0, %d4;
    @%p0 bra DONE;
    shl.b64 %d5, %d0, 2;
    add.u64 %d5, %d3, %d5;
    ld.global.f32 %f0, [%d5];
    max.f32 %f0, %f0, 0f00000000;
    st.global.f32 [%d5], %f0;
    add.u64 %d0, %d0, %d1;
    bra AGAIN;
DONE:
    ret;
}}

.visible .entry goldnode_gemm(.param .u64 left, .param .u64 right, .param .u64 out, \
.param .u32 rows, .param .u32 columns, .param .u32 inner)
{{
{_HEAD}    .reg .f32 %f<4>;
    ld.param.u64 %d3, [left];
    cvta.to.global.u64 %d3, %d3;
    ld.param.u64 %d4, [right];
    cvta.to.global.u64 %d4, %d4;
    ld.param.u64 %d5, [out];
    cvta.to.global.u64 %d5, %d5;
    ld.param.u32 %r4, [rows];
    ld.param.u32 %r5, [columns];
    ld.param.u32 %r6, [inner];
{_INDEX}    mul.wide.u32 %d6, %r4, %r5;
    cvt.u64.u32 %d7, %r4;
AGAIN:
    setp.ge.u64 %p0, %d0, %d6;
    @%p0 bra DONE;
    rem.u64 %d8, %d0, %d7;
    div.u64 %d9, %d0, %d7;
    shl.b64 %d10, %d8, 2;
    add.u64 %d10, %d3, %d10;
    cvt.u32.u64 %r7, %d9;
    mul.wide.u32 %d11, %r7, %r6;
    shl.b64 %d11, %d11, 2;
    add.u64 %d11, %d4, %d11;
    shl.b64 %d12, %d7, 2;
    mov.f32 %f0, 0f00000000;
    mov.u32 %r8, 0;
TERM:
    setp.ge.u32 %p1, %r8, %r6;
    @%p1 bra STORE;
    ld.global.f32 %f1, [%d10];
    ld.global.f32 %f2, [%d11];
    fma.rn.f32 %f0, %f1, %f2, %f0;
    add.u64 %d10, %d10, %d12;
    add.u64 %d11, %d11, 4;
    add.u32 %r8, %r8, 1;
    bra TERM;
STORE:
    shl.b64 %d13, %d0, 2;
    add.u64 %d13, %d5, %d13;
    st.global.f32 [%d13], %f0;
    add.u64 %d0, %d0, %d1;
    bra AGAIN;
DONE:
    ret;
}}
"""
