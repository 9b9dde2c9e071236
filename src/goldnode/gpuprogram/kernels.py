"""The kernels of `ptx` as a single source for HIP and OpenCL. Macros cover their differences.

Matrices are column-major.
"""

from __future__ import annotations

HIP = """
#define KERNEL extern "C" __global__ void
#define GLOBAL
#define FIRST ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define ALL ((u64)gridDim.x * blockDim.x)
#define COUNT(p) atomicAdd(p, 1u)
typedef unsigned long long u64;
"""
OPENCL = """
#define KERNEL __kernel void
#define GLOBAL __global
#define FIRST get_global_id(0)
#define ALL get_global_size(0)
#define COUNT(p) atomic_inc(p)
typedef ulong u64;
"""
BODY = """
#define WORD(i, seed) ((unsigned)(i) * 2654435761u ^ (unsigned)((i) >> 32) ^ (seed))

KERNEL goldnode_fill(GLOBAL unsigned *memory, u64 words, unsigned seed) {
    for (u64 i = FIRST; i < words; i += ALL) memory[i] = WORD(i, seed);
}
KERNEL goldnode_verify(GLOBAL unsigned *memory, u64 words, unsigned seed, GLOBAL unsigned *wrong) {
    for (u64 i = FIRST; i < words; i += ALL)
        if (memory[i] != WORD(i, seed)) COUNT(wrong);
}
KERNEL goldnode_relu(GLOBAL float *memory, u64 words) {
    for (u64 i = FIRST; i < words; i += ALL) memory[i] = memory[i] > 0.0f ? memory[i] : 0.0f;
}
KERNEL goldnode_gemm(GLOBAL const float *left, GLOBAL const float *right, GLOBAL float *out, \
unsigned rows, unsigned columns, unsigned inner) {
    for (u64 at = FIRST; at < (u64)rows * columns; at += ALL) {
        u64 i = at % rows, j = at / rows;
        float sum = 0.0f;
        for (unsigned k = 0; k < inner; k++) sum += left[i + (u64)k * rows] * right[k + j * inner];
        out[at] = sum;
    }
}
"""
NAMES = ("goldnode_fill", "goldnode_verify", "goldnode_relu", "goldnode_gemm")
