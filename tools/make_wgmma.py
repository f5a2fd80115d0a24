#!/usr/bin/env python3
"""Write src/kernels/cuda/wgmma.cuh: wrappers of wgmma.mma_async, one per token tile.

    tools/make_wgmma.py > src/kernels/cuda/wgmma.cuh && clang-format-14 -i src/kernels/cuda/wgmma.cuh
"""
TILES = (8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256)
WIDE = (128,)  # of these also bf16_ss_n: B with N contiguous

HEAD = """/* Warpgroup matrix products (made by tools/make_wgmma.py): D [64 weight rows][N] += A B.
 *
 * rs: A in registers, 4 words of this thread's fragment. ss: A in shared memory. B in shared memory,
 * 128-byte swizzle, K contiguous; ss_n: N contiguous. keep = 0 starts from zero. bf16: K = 16; e4m3:
 * K = 32. */
#pragma once

#include <stdint.h>

template <int N> struct wgmma;
"""


def wrapper(name, n, kind, k, in_registers, n_contiguous=0):
    d = n // 2
    regs = ", ".join(f"%{i}" for i in range(d))
    outs = ", ".join(f'"+f"(d[{i}])' for i in range(d))
    if in_registers:
        a = "{%d, %d, %d, %d}" % tuple(d + i for i in range(4))
        ins = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep)'
        a = a.replace("{", "{%").replace(", ", ", %")
        b, keep, arg = d + 4, d + 5, "const uint32_t *a"
    else:
        a, ins = f"%{d}", '"l"(a), "l"(b), "r"(keep)'
        b, keep, arg = d + 1, d + 2, "uint64_t a"
    tail = "p, 1, 1"
    if kind == "bf16":
        tail += ", 0" if in_registers else f", 0, {n_contiguous}"
    return f"""
static __device__ __forceinline__ void {name}(float (&d)[{d}], {arg}, uint64_t b, int keep)
{{
    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{keep}, 0; "
    "wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{kind}.{kind} "
    "{{{regs}}}, {a}, %{b}, {tail};}}"
    : {outs} : {ins});
}}
"""


print(HEAD)
for n in TILES:
    print(f"template <> struct wgmma<{n}> {{")
    print(wrapper("bf16_rs", n, "bf16", 16, True))
    print(wrapper("bf16_ss", n, "bf16", 16, False))
    print(wrapper("e4m3_ss", n, "e4m3", 32, False))
    if n in WIDE:
        print(wrapper("bf16_ss_n", n, "bf16", 16, False, 1))
    print("};")
