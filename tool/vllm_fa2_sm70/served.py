# SPDX-License-Identifier: Apache-2.0
"""How a route serves a call: the contract, and the plain way to do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from vllm_fa2_sm70.calls import Call
from vllm_fa2_sm70.operators import NAMESPACE
from vllm_fa2_sm70.reasons import Reason

if TYPE_CHECKING:
    from torch import Tensor

Arguments = tuple[Any, ...]
"""Those of the operator that the caller's function stands for, in its schema's order."""


@dataclass(frozen=True)
class Declined:
    """The route cannot serve the call after all; nothing was launched and nothing was written."""

    reason: Reason


Outcome = Union["Sequence[Tensor]", Declined]
"""Output and LSE."""

Serve = Callable[[Call, Arguments], Outcome]


def library_operator(name: str) -> Any:
    """An operator of the library."""
    import torch

    return getattr(getattr(torch.ops, NAMESPACE), name)


def call_library(call: Call, arguments: Arguments) -> Sequence[Tensor]:
    """Call the operator that the caller's function stands for."""
    result: Sequence[Tensor] = library_operator(call.operator)(*arguments)
    return result
