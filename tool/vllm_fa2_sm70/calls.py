# SPDX-License-Identifier: Apache-2.0
"""A call without its data: what decides which kernel can serve it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PTX_VARIABLE = "VLLM_FA2_SM70_ALLOW_PTX"
GQA_VARIABLE = "VLLM_FA2_SM70_GQA_PREFILL"
GQA_ROLLBACK_VARIABLE = "VLLM_FLASH_V100_PREFILL_D256_GQA_ARCH_128K_EXPERIMENTAL"
ENVIRONMENT = (PTX_VARIABLE, GQA_VARIABLE, GQA_ROLLBACK_VARIABLE)
"""The variables that routes look at."""

NO_WINDOW = (-1, -1)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor without its data; `strides` and `offset` (into its storage) are in elements,
    `dtype` is ``float16``."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str
    offset: int = 0


@dataclass(frozen=True)
class Call:
    """Everything that decides about a call.

    `operator` is the one that the caller's function stands for; with ``fwd_kvcache``, `k` and `v`
    are the caches. `options` holds the other optional tensors that were given (``block_table``,
    ``alibi_slopes``; ``k`` and ``v`` are those that are appended). `capability` is None when q is
    not on a CUDA device. `environment` holds those of `ENVIRONMENT` that are set. `unusable` says
    why the library's operators cannot be called at all (empty: they can); `library_operators` names
    those of its optional ones that can. `sequences` is how many are packed into q. `out_is_shared`:
    it is in the storage of q, k or v. `traced`: the tensors have no data, as torch.compile's have
    none.
    """

    operator: str
    q: TensorInfo
    k: TensorInfo
    v: TensorInfo
    softmax_scale: float
    capability: tuple[int, int] | None
    out: TensorInfo | None = None
    out_is_shared: bool = False
    causal: bool = False
    window: tuple[int, int] = NO_WINDOW
    softcap: float = 0.0
    dropout: float = 0.0
    num_splits: int = 0
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    options: Mapping[str, TensorInfo] = field(default_factory=dict)
    needs_gradient: bool = False
    capturing: bool = False
    traced: bool = False
    sequences: int = 1
    environment: tuple[tuple[str, str], ...] = ()
    unusable: str = ""
    library_operators: frozenset[str] = frozenset()

    def variable(self, name: str) -> str:
        """An environment variable's value; empty if it is not set."""
        return dict(self.environment).get(name, "")

    def allows_ptx(self) -> bool:
        """Whether GPUs after sm_70 may run the embedded PTX."""
        return (PTX_VARIABLE, "1") in self.environment
