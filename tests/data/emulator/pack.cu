// SPDX-License-Identifier: Apache-2.0
// float -> float16 (without its sign) with integers, as an author may write it to spare the conversion unit. ptxas
// 12.4 makes constants of `pack`: it takes mul.f32 and shl for one integer product.
#include <cstdint>

extern "C" __global__ void pack(const float *x, uint32_t *packed) {
    const uint32_t low = (__float_as_uint(x[2 * threadIdx.x] * 0x1p-112f) << 3) + 0x8000;
    const uint32_t high = (__float_as_uint(x[2 * threadIdx.x + 1] * 0x1p-112f) << 3) + 0x8000;
    packed[threadIdx.x] = __byte_perm(low, high, 0x7632);
}

extern "C" __global__ void pack_safely(const float *x, uint32_t *packed) {
    const uint32_t low = __float_as_uint(x[2 * threadIdx.x] * 0x1p-112f) + 0x1000;
    const uint32_t high = __float_as_uint(x[2 * threadIdx.x + 1] * 0x1p-112f) + 0x1000;
    packed[threadIdx.x] = __byte_perm(
        __funnelshift_l(0, low, 3), __funnelshift_l(0, high, 3), 0x7632);
}
