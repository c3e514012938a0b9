# SPDX-License-Identifier: Apache-2.0
"""Bringing the operators ``torch.ops._vllm_fa2_C`` into the process, once."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vllm_fa2_sm70 import elf

NAMESPACE = "_vllm_fa2_C"
LIBRARY_VARIABLE = "VLLM_FA2_SM70_LIBRARY"
OLDEST_TORCH = "2.10"
CUDA_MAJOR = 12

SCHEMAS = {
    "varlen_fwd": (
        "(Tensor! q, Tensor k, Tensor v, Tensor!? out, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
        "Tensor? seqused_k, Tensor? leftpad_k, Tensor? block_table, Tensor? alibi_slopes, "
        "int max_seqlen_q, int max_seqlen_k, float p_dropout, float softmax_scale, "
        "bool zero_tensors, bool is_causal, int window_size_left, int window_size_right, "
        "float softcap, bool return_softmax, int num_splits, Tensor? gen) -> Tensor[]"
    ),
    "fwd_kvcache": (
        "(Tensor! q, Tensor kcache, Tensor vcache, Tensor? k, Tensor? v, Tensor? seqlens_k, "
        "Tensor? rotary_cos, Tensor? rotary_sin, Tensor? cache_batch_idx, Tensor? leftpad_k, "
        "Tensor? block_table, Tensor? alibi_slopes, Tensor!? out, float softmax_scale, "
        "bool is_causal, int window_size_left, int window_size_right, float softcap, "
        "bool is_rotary_interleaved, int num_splits) -> Tensor[]"
    ),
}
"""What the interface calls; every argument is passed by position."""

OPTIONAL = {
    "sm70_gqa_prefill_fused": (
        "(Tensor q, Tensor k, Tensor v, Tensor! out, Tensor! lse, Tensor! partials, "
        "Tensor cu_seqlens_q, Tensor cu_seqlens_k, float softmax_scale) -> ()"
    ),
    "sm70_gqa_prefill_workspace": (
        "(Tensor q, Tensor k, Tensor v, Tensor! out, Tensor! lse, Tensor! workspace, "
        "Tensor! state, Tensor cu_seqlens_q, Tensor cu_seqlens_k, float softmax_scale, "
        "int key_block) -> ()"
    ),
}
"""What routes call if the library has it; a library without them serves all calls, too."""


@dataclass(frozen=True)
class Library:
    """The library in use.

    `path` is its file (None if there is none, or if it cannot be told). `reason` says why its
    operators cannot be called and is empty if they can. `adopted` is true if somebody else had
    loaded it before. `optional` are those of `OPTIONAL` that it has.
    """

    path: Path | None
    reason: str = ""
    adopted: bool = False
    optional: frozenset[str] = frozenset()


_loaded: Library | None = None


def load() -> Library:
    """Load the library if no library of its name is loaded; the same answer ever after."""
    global _loaded
    if _loaded is None:
        _loaded = _load()
        if not _loaded.reason:
            from vllm_fa2_sm70 import qsa, tracing

            fitting = frozenset(n for n, text in OPTIONAL.items() if not _unlike(n, text))
            _loaded = replace(_loaded, optional=fitting)
            tracing.register(fitting)
            qsa.register()
    return _loaded


def own_path() -> Path:
    """The file that would be loaded."""
    override = os.environ.get(LIBRARY_VARIABLE)
    return Path(override or Path(__file__).with_name(f"{NAMESPACE}.abi3.so")).absolute()


def _load() -> Library:
    path = own_path()
    try:
        # before our library: it needs libtorch, and finds it only in the loaded process
        import torch
    except Exception as error:
        return Library(path if path.is_file() else None, f"torch cannot be imported: {error}")
    if _registered():
        mapped = _mapped_library()
        where = f"the loaded `{mapped or NAMESPACE}`"
        return Library(mapped, _misfit(where), adopted=True)
    if not path.is_file():
        return Library(None, f"there is no library `{path}`")
    if torch.torch_version.TorchVersion(torch.__version__) < OLDEST_TORCH:
        return Library(path, f"torch {torch.__version__} is older than {OLDEST_TORCH}")
    try:
        broken = elf.damage(path)
        if broken:
            return Library(path, f"`{path}` is damaged: {broken}")
        _load_cuda_runtime()
        torch.ops.load_library(path)
    except Exception as error:
        # torch says that it could not; the loader says why
        return Library(path, f"`{path}` does not load: {error.__cause__ or error}")
    return Library(path, _misfit(f"`{path}`"))


def _load_cuda_runtime() -> None:
    """Bring the CUDA runtime that the library needs, where torch has not: a CPU build, or CUDA 13
    with the package nvidia-cuda-runtime-cu12 beside it."""
    import torch

    if (torch.version.cuda or "").startswith(f"{CUDA_MAJOR}."):
        return
    for folder in sys.path:
        runtime = Path(folder, "nvidia", "cuda_runtime", "lib", f"libcudart.so.{CUDA_MAJOR}")
        if runtime.is_file():
            ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
            return


def _registered() -> bool:
    """Whether the namespace is taken: a second library would abort the process."""
    import torch

    prefix = f"{NAMESPACE}::"
    return any(name.startswith(prefix) for name in torch._C._dispatch_get_all_op_names())


def _misfit(where: str) -> str:
    """Which operator or argument is not what the interface calls; empty if all fit."""
    found = (_unlike(name, text) for name, text in SCHEMAS.items())
    return next((f"{where} has {what}" for what in found if what), "")


def _unlike(name: str, text: str) -> str:
    """What is there instead of an operator with that schema; empty if it is there."""
    import torch

    found = torch._C._jit_get_schemas_for_operator(f"{NAMESPACE}::{name}")
    if not found:
        return f"no operator `{name}`"
    wanted = torch._C.parse_schema(f"{NAMESPACE}::{name}{text}")
    difference = _difference(found[0].arguments, wanted.arguments)
    return f"another `{name}`: {difference}" if difference else ""


def _difference(found: list[Any], wanted: list[Any]) -> str:
    for place, (got, want) in enumerate(zip(found, wanted, strict=False)):
        if (got.name, str(got.type)) != (want.name, str(want.type)):
            return f"argument {place + 1} is `{got.type} {got.name}`, not `{want.type} {want.name}`"
    if len(found) != len(wanted):
        return f"{len(found)} arguments, not {len(wanted)}"
    return ""


def _mapped_library() -> Path | None:
    """The file behind operators that somebody else loaded."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    found = re.search(rf"(/\S.*/{NAMESPACE}[^/\n]*\.so)$", maps, re.MULTILINE)
    return Path(found[1]) if found else None
