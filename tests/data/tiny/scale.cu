// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp16.h>

#include "scale.h"

namespace sm70 {
namespace {
// in an anonymous namespace: its symbol carries a hash of the unit's path
__global__ void scale_kernel(float* x, int n, float by) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= by;
}
}  // namespace

void scale(float* x, int n, float by) { scale_kernel<<<(n + 127) / 128, 128>>>(x, n, by); }
}  // namespace sm70
