// SPDX-License-Identifier: Apache-2.0
// Attention as slowly as possible: a thread a row. For tests of `patchctl emulate`; WRONG says
// what is wrong with it.
#include <cuda_fp16.h>
#include <stdint.h>

// Flash_fwd_params: only where its members are (tool/patchctl/emulator/params.py).
struct __align__(8) Params {
    char bytes[440];
    template <typename T>
    __device__ T at(int offset) const {
        return *reinterpret_cast<const T *>(bytes + offset);
    }
};

// What a compiler puts into a constant bank of the module.
__constant__ float kWeights[4] = {1.f, 1.f, 1.f, 1.f};

template <int kHeadDim>
__global__ void __launch_bounds__(32) naive_fwd_kernel(const Params p) {
    const int ratio = p.at<int>(104);
    const int *cu_q = p.at<const int *>(224), *cu_k = p.at<const int *>(232);
    const int first_q = cu_q[blockIdx.z], rows = (cu_q[blockIdx.z + 1] - first_q) * ratio;
    const int first_k = cu_k[blockIdx.z], keys = cu_k[blockIdx.z + 1] - first_k;
    const int row = blockIdx.x * 32 + threadIdx.x;
#if WRONG == 1
    if (row > rows) { return; }  // one row too many
#else
    if (row >= rows) { return; }
#endif
    const int position = row / ratio, head = blockIdx.y * ratio + row % ratio;
    const int64_t q_row = p.at<int64_t>(48), k_row = p.at<int64_t>(56), v_row = p.at<int64_t>(64);
    const __half *q = p.at<const __half *>(0) + (first_q + position) * q_row + head * kHeadDim;
    const __half *k = p.at<const __half *>(8) + first_k * k_row + blockIdx.y * kHeadDim;
    const __half *v = p.at<const __half *>(16) + first_k * v_row + blockIdx.y * kHeadDim;
    float out[kHeadDim] = {}, max = -1e30f, sum = 0.f;
    const int end = min(keys, position + keys - (rows / ratio) + p.at<int>(392) + 1);
    for (int key = 0; key < end; ++key) {
        float score = 0.f;
        for (int d = 0; d < kHeadDim; ++d) {
            score += __half2float(q[d]) * __half2float(k[key * k_row + d]);
        }
        score *= p.at<float>(216) * kWeights[key & 3];
        const float new_max = fmaxf(max, score), scale = __expf(max - new_max);
        const float weight = __expf(score - new_max);
        sum = sum * scale + weight;
#pragma unroll
        for (int d = 0; d < kHeadDim; ++d) {
            out[d] = out[d] * scale + weight * __half2float(v[key * v_row + d]);
        }
        max = new_max;
    }
    __half *o = p.at<__half *>(112) + (first_q + position) * p.at<int64_t>(136) + head * kHeadDim;
#pragma unroll
    for (int d = 0; d < kHeadDim; ++d) { o[d] = __float2half(sum > 0 ? out[d] / sum : 0.f); }
#if WRONG == 2
    sum *= 1.01f;
#endif
    p.at<float *>(160)[head * p.at<int>(212) + first_q + position] =
        sum > 0 ? max + __logf(sum) : -__int_as_float(0x7f800000);
}

template __global__ void naive_fwd_kernel<16>(const Params);
