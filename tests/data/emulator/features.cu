// SPDX-License-Identifier: Apache-2.0
// Kernels of many small things: what ptxas makes of them must give the same bits as their PTX.
#include <cstdint>
#include <cuda_fp16.h>

constexpr int kThreads = 64;

__constant__ float kTable[4] = {1.5f, -2.0f, 0.25f, 1e-3f};

// in: 4 words a thread; out: 16 words a thread, word i of thread t at i * kThreads + t.
struct Row {
    const uint32_t *in;
    uint32_t *out;
    __device__ uint32_t operator[](int i) const { return in[i * kThreads + threadIdx.x]; }
    __device__ void set(int i, uint32_t value) { out[i * kThreads + threadIdx.x] = value; }
    __device__ void set(int i, int value) { set(i, uint32_t(value)); }
    __device__ void set(int i, float value) { set(i, __float_as_uint(value)); }
    __device__ float real(int i) const { return __uint_as_float((*this)[i]); }
};

extern "C" __global__ void integers(const uint32_t *in, uint32_t *out) {
    Row row{in, out};
    const uint32_t a = row[0], b = row[1], c = row[2], d = row[3];
    const uint64_t wide = (uint64_t(a) << 32 | b) + c, other = (uint64_t(d) << 32 | c) - a;
    row.set(0, a / (b | 1) + int(c) / (int(d) | 1) + a % (d | 1));
    row.set(1, uint32_t(wide / (other | 1)));
    row.set(2, uint32_t(wide % (uint64_t(c) | 1)) ^ uint32_t((wide * other) >> 32));
    row.set(3, __umulhi(a, b) + __mulhi(int(c), int(d)));
    row.set(4, uint32_t(wide >> (d & 63)) + uint32_t(int64_t(other) >> (c & 63)));
    row.set(5, uint32_t((wide << (a & 63)) >> 20));
    row.set(6, __funnelshift_l(a, b, c) + __funnelshift_rc(a, b, d));
    row.set(7, (a << (b & 31)) ^ (c >> (d & 31)) ^ uint32_t(int(a) >> (c & 31)));
    row.set(8, __popc(a) + 100 * __clz(b) + 10000 * __ffs(c) + __brev(d));
    row.set(9, __byte_perm(a, b, c));
    row.set(10, min(int(a), int(b)) + max(c, d) + abs(int(a)));
    row.set(11, (int64_t(wide) < int64_t(other)) + 2 * (wide < other) + 4 * (wide == other) +
        8 * (int64_t(wide) >= int64_t(b)));
    row.set(12, (a & b) | (~c & d));
    row.set(13, (a ^ b ^ c) + ((a & b) | (b & c) | (a & c)));
    row.set(14, uint32_t(uint8_t(a)) + uint32_t(int16_t(b)) + uint32_t(int8_t(c >> 8)));
    row.set(15, a * 7u + b * (c + 3u) - d);
}

extern "C" __global__ void reals(const uint32_t *in, uint32_t *out) {
    Row row{in, out};
    const float a = row.real(0), b = row.real(1), c = row.real(2), d = row.real(3);
    row.set(0, __fmaf_rn(a, b, c));
    row.set(1, __fmaf_rz(a, b, c));
    row.set(2, __fmaf_ru(a, b, c));
    row.set(3, __fmaf_rd(a, b, d));
    row.set(4, __fadd_rn(a, b) - __fmul_rn(c, d));
    row.set(5, __fdiv_rn(a, b));
    row.set(6, __frcp_rn(c));
    row.set(7, __fsqrt_rn(fabsf(d)));
    row.set(8, fminf(a, b) + fmaxf(c, -d));
    row.set(9, uint32_t((a < b) + 2 * (c >= d) + 4 * (a != a) + 8 * !(b > c)));
    row.set(10, floorf(a) + ceilf(b) + truncf(c) + rintf(d));
    row.set(11, uint32_t(int(a)) + uint32_t(b) + __float2int_rd(c) + __float2int_ru(d));
    row.set(12, float(int(row[0])) + float(row[1]) + float(int64_t(row[2]) << 20));
    row.set(13, __saturatef(a) + kTable[row[3] & 3]);
    row.set(14, exp2f(a) + __expf(b));
    row.set(15, rsqrtf(fabsf(c)) + log2f(fabsf(d)));
}

extern "C" __global__ void halves(const uint32_t *in, uint32_t *out) {
    Row row{in, out};
    const auto half2_of = [](uint32_t word) { return *reinterpret_cast<__half2 *>(&word); };
    const auto word_of = [](__half2 pair) { return *reinterpret_cast<uint32_t *>(&pair); };
    const __half2 a = half2_of(row[0]), b = half2_of(row[1]), c = half2_of(row[2]);
    row.set(0, word_of(__hfma2(a, b, c)));
    row.set(1, word_of(__hadd2(a, __hneg2(b))));
    row.set(2, word_of(__hmul2(a, c)));
    row.set(3, __half2float(__low2half(a)) + __half2float(__high2half(b)));
    row.set(4, word_of(__floats2half2_rn(row.real(0), row.real(1))));
    row.set(5, uint32_t(__hgt(__low2half(a), __low2half(b)) + 2 * __hle(__high2half(b), __high2half(c))));
    row.set(6, word_of(__hadd2(a, __float2half2_rn(0.5f))));
    row.set(7, word_of(__halves2half2(__high2half(a), __low2half(c))));
    for (int i = 8; i < 16; i++) { row.set(i, 0u); }
}

extern "C" __global__ void lanes(const uint32_t *in, uint32_t *out) {
    Row row{in, out};
    __shared__ uint32_t shared[2 * kThreads];
    const uint32_t a = row[0], b = row[1], all = 0xffffffffu;
    const int t = threadIdx.x;
    row.set(0, __shfl_sync(all, a, b));
    row.set(1, __shfl_up_sync(all, a, 3) + __shfl_down_sync(all, a, 5, 16));
    row.set(2, __shfl_xor_sync(all, a, 9) + __shfl_sync(all, b, 7, 8));
    row.set(3, __ballot_sync(all, a & 1) + __any_sync(all, (a & 63) == 0) + 2 * __all_sync(all, a | 1));
    row.set(4, __match_any_sync(all, b & 3));
    shared[t] = a;
    shared[kThreads + t] = 0;
    __syncthreads();
    row.set(5, shared[kThreads - 1 - t] + __syncthreads_count(b & 1));
    row.set(6, uint32_t(__syncthreads_or(a == 12345) + 2 * __syncthreads_and(a | 1)));
    atomicAdd(&shared[kThreads + (b & 7)], 1u);
    atomicMax(&shared[kThreads + 8], a);
    __syncthreads();
    row.set(7, shared[kThreads + (t & 15)]);
    uint32_t sum = 0;  // diverges: another count in each thread
    for (uint32_t i = 0; i < (a & 15); i++) {
        sum += (i & 1) ? b >> i : a << i;
        if (sum % 11 == 3) { break; }
    }
    __syncwarp();
    row.set(8, sum + __shfl_xor_sync(all, sum, 1));
    switch (b & 7) {
        case 0: sum = a * 3; break;
        case 1: sum = a + 7; break;
        case 2: sum = __popc(a); break;
        case 3: sum = a ^ b; break;
        case 4: sum = __brev(a); break;
        case 5: sum = a >> 3; break;
        case 6: sum = ~a; break;
        default: sum = __clz(a);
    }
    row.set(9, sum);
    uint32_t local[8];  // indexed by a value: in local memory
    for (int i = 0; i < 8; i++) { local[(i + a) & 7] = i * b; }
    row.set(10, local[b & 7] + local[(a >> 3) & 7]);
    row.set(11, uint32_t(__activemask()));
    for (int i = 12; i < 16; i++) { row.set(i, 0u); }
}
