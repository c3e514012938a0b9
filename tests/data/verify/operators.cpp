// SPDX-License-Identifier: Apache-2.0
// A stable-ABI operator and a module. ABORT ends the process that loads it, ABORT_AT_EXIT when it
// ends, SPLITS adds an argument, CPP_API leaves a symbol of torch's C++ interface undefined,
// NO_MODULE has no module entry.
#include <Python.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <vector>

using torch::stable::Tensor;

#ifdef SPLITS
#define EXTRA ", int num_splits"
static std::vector<Tensor> fwd(Tensor q, std::optional<Tensor>, double, int64_t) { return {q}; }
#else
#define EXTRA ""
static std::vector<Tensor> fwd(Tensor q, std::optional<Tensor>, double) { return {q}; }
#endif

STABLE_TORCH_LIBRARY(_vllm_fa2_C, m) {
    m.def("varlen_fwd(Tensor! q, Tensor!? out, float softmax_scale" EXTRA ") -> Tensor[]");
}
STABLE_TORCH_LIBRARY_IMPL(_vllm_fa2_C, CUDA, m) { m.impl("varlen_fwd", TORCH_BOX(&fwd)); }

#ifdef ABORT
// what torch's C++ registration does when a namespace is registered twice
static const int registered = [] {
    throw std::runtime_error("namespace _vllm_fa2_C already registered by other.so");
    return 1;
}();
#endif

#ifdef ABORT_AT_EXIT
static const struct Last { ~Last() { std::abort(); } } last;
#endif

#ifdef CPP_API
namespace at { void set_num_threads_of_nobody(int); }
void use_cpp_api() { at::set_num_threads_of_nobody(1); }
#endif

#ifndef NO_MODULE
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_vllm_fa2_C", nullptr, 0, nullptr};
PyMODINIT_FUNC PyInit__vllm_fa2_C(void) { return PyModule_Create(&definition); }
#endif
