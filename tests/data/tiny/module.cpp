// SPDX-License-Identifier: Apache-2.0
#include <Python.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include "scale.h"

using torch::stable::Tensor;

namespace {
Tensor scale_(Tensor x, double by) {
  STD_TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
  sm70::scale(static_cast<float*>(x.data_ptr()), static_cast<int>(x.numel()),
              static_cast<float>(by));
  return x;
}
}  // namespace

STABLE_TORCH_LIBRARY(_vllm_fa2_C, m) { m.def("scale_(Tensor(a!) x, float by) -> Tensor(a!)"); }
STABLE_TORCH_LIBRARY_IMPL(_vllm_fa2_C, CUDA, m) { m.impl("scale_", TORCH_BOX(&scale_)); }

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_vllm_fa2_C"};
PyMODINIT_FUNC PyInit__vllm_fa2_C(void) { return PyModule_Create(&module); }
