// SPDX-License-Identifier: Apache-2.0
// Two kernels with launch bounds; with -DSPILL one more that cannot keep its values in registers.
namespace demo {
template <bool Reverse>
__global__ void __launch_bounds__(256) copy_kernel(const float *in, float *out) {
    __shared__ float tile[256];
    tile[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[Reverse ? 255 - threadIdx.x : threadIdx.x];
}
template __global__ void copy_kernel<false>(const float *, float *);
template __global__ void copy_kernel<true>(const float *, float *);
}  // namespace demo
namespace {
__global__ void __launch_bounds__(32) hidden_kernel(float *out) { out[threadIdx.x] = 1.f; }
}  // namespace
void launch_hidden(float *out) { hidden_kernel<<<1, 32>>>(out); }
#ifdef SPILL
__global__ void __launch_bounds__(1024) spill_kernel(const float *in, float *out) {
    float v[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) v[i] = in[threadIdx.x + i * 37];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int i = 0; i < 96; ++i) v[i] = fmaf(v[i], v[(i * 7 + r) % 96], v[(i + 11) % 96]);
        __syncthreads();
    }
    float s = 0.f;
#pragma unroll
    for (int i = 0; i < 96; ++i) s += v[i] * (i + 1);
    out[threadIdx.x] = s;
}
#endif
