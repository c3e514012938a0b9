# SPDX-License-Identifier: Apache-2.0
"""QSA prefill: block-sparse attention in which every query row has its own selected keys."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

from vllm_fa2_sm70 import operators
from vllm_fa2_sm70.qsa_call import GATHERED_PAGE_ROWS, QSA_ENVIRONMENT, QsaCall, take_qsa

if TYPE_CHECKING:
    from torch import Tensor

OPERATOR = "sm70_qsa_page4_prefill"
SCHEMA = (
    "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor row_to_request, "
    "Tensor seq_lens, Tensor positions, Tensor indices, Tensor! out, float softmax_scale) -> ()"
)


def sm70_qsa_page4_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    row_to_request: Tensor,
    seq_lens: Tensor,
    positions: Tensor,
    indices: Tensor,
    softmax_scale: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The operator itself: attention of query rows over the tokens that each of them selected.

    Everything is counted in tokens, except for `block_table`, which counts physical pages. Nothing
    waits for the device, and a CUDA graph can hold the call.

    Args:
        q: float16 (rows, 6, 256), a row is one token; any row and head strides that are multiples
            of 8 elements.
        k_cache, v_cache: float16 (pages, page size, 1, 256), two tensors or the views ``kv[:, 0]``
            and ``kv[:, 1]`` of an interleaved (pages, 2, page size, 1, 256); page and token strides
            as they come (multiples of 8 elements). The page size is any multiple of 4 tokens up to
            262,144. Each spans less than 64 GiB.
        block_table: int32 (requests, pages of a request): numbers of physical pages, in the
            request's logical order. Entries past a request's live length may be anything and are
            not read. Tokens in pages outside of the cache are dropped.
        row_to_request: int32 (rows): the request of each row. One outside of [0, requests) belongs
            to no request, and its row gives zeros.
        seq_lens: int32 (requests): live tokens of each request, cut to what its row of the table
            covers.
        positions: int32 (rows): logical position of each row in its request. A row never attends
            past it (causal), nor past the live length.
        indices: int32 (rows, K), K <= 2048: logical positions that a row selected, as a rule whole
            blocks of four consecutive tokens, expanded; -1 is padding. Any order; duplicates count
            once; stale positions (past the live length or the row's own position) are dropped. Of
            a partial block exactly the tokens that are in `indices` count.
        softmax_scale: factor of the scores, default 1/16.
        out: like q, written; made if it is not given.

    Returns:
        out. A row that sees no token is zeros. A NaN or infinity in V reaches exactly the rows that
        selected its token.

    Raises:
        RuntimeError: an argument is not as above, or not on one CUDA device; the message names it,
            what it is and what it takes.
        NoRoute: the loaded library has no such operator.

    Memory: 8 bytes for each entry of `indices` (of at most 64 MiB at a time: more rows are served
    by several launches), and 8 bytes for each entry of `block_table`.
    """
    import torch

    from vllm_fa2_sm70.routes import NoRoute

    reason = unusable_reason()
    if reason:
        raise NoRoute(f"{OPERATOR}: {reason}")
    scale = 0.0625 if softmax_scale is None else float(softmax_scale)
    result = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    _operator()(
        q,
        k_cache,
        v_cache,
        block_table,
        row_to_request,
        seq_lens,
        positions,
        indices,
        result,
        scale,
    )
    return result


def qsa_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    indices: Tensor,
    softmax_scale: float | None = None,
    *,
    row_to_request: Tensor | None = None,
    positions: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """QSA prefill by the best route: `sm70_qsa_page4_prefill` where it serves the call, else exact
    fallbacks with the same result (docs/qsa.md): the paged forward over gathered tokens, Triton,
    plain torch.

    Args:
        q, k_cache, v_cache, block_table, seq_lens, indices, out: as `sm70_qsa_page4_prefill` has
            them; the fallbacks take any number of heads, head size, floating-point type and page
            size, and int64, too.
        query_start_loc: int32 (requests + 1): where each request's rows start in q, and the end of
            the last. Its last row stands at the request's last token.
        softmax_scale: default: 1 / sqrt(head dimension).
        row_to_request, positions: metadata that the caller has already. Without them they are made
            of `query_start_loc` and `seq_lens`, with the same result.

    Raises:
        NoRoute: no route serves the call; says every reason.
    """
    import torch

    from vllm_fa2_sm70 import qsa_exact

    if row_to_request is None or positions is None:
        derived = qsa_exact.derive_rows(query_start_loc, seq_lens, q.shape[0])
        row_to_request = derived[0] if row_to_request is None else row_to_request
        positions = derived[1] if positions is None else positions
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    result = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    numbers = (block_table, row_to_request, seq_lens, positions, indices)
    route = take_qsa(describe_qsa(q, k_cache, v_cache, result, numbers, scale))
    if q.numel() == 0:
        return result
    if route.name == "page4":
        _operator()(q, k_cache, v_cache, *numbers, result, scale)
        return result
    pages, page_tokens = k_cache.shape[:2]
    selection = qsa_exact.select(
        indices, row_to_request, positions, seq_lens, block_table, pages, page_tokens
    )
    if pages == 0 or indices.shape[1] == 0:
        return result.zero_()
    tensors = (q, k_cache, v_cache, selection, scale, result)
    if route.name == "paged":
        qsa_exact.attend_paged(*tensors, GATHERED_PAGE_ROWS)
    elif route.name == "triton":
        from vllm_fa2_sm70.qsa_triton import attend_triton

        attend_triton(*tensors)
    else:
        qsa_exact.attend_torch(*tensors)
    return result


def describe_qsa(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    numbers: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    softmax_scale: float,
) -> QsaCall:
    """Everything that decides about a call; `numbers`: block_table, row_to_request, seq_lens,
    positions, indices."""
    import torch

    from vllm_fa2_sm70 import describe

    on_cuda = q.device.type == "cuda"
    block_table, row_to_request, seq_lens, positions, indices = map(describe._info, numbers)
    return QsaCall(
        q=describe._info(q),
        k_cache=describe._info(k_cache),
        v_cache=describe._info(v_cache),
        out=describe._info(out),
        block_table=block_table,
        row_to_request=row_to_request,
        seq_lens=seq_lens,
        positions=positions,
        indices=indices,
        softmax_scale=softmax_scale,
        capability=torch.cuda.get_device_capability(q.device) if on_cuda else None,
        needs_gradient=torch.is_grad_enabled()
        and any(tensor.requires_grad for tensor in (q, k_cache, v_cache, out)),
        environment=tuple((n, os.environ[n]) for n in QSA_ENVIRONMENT if n in os.environ),
        unusable=operators.load().reason,
        no_page4=unusable_reason(),
        no_triton=qsa_triton_reason(),
    )


def unusable_reason() -> str:
    """Why the library's QSA operator cannot be called; empty if it can. A library without it, such
    as one that is built of a part of the series, serves everything else."""
    return operators.load().reason or _misfit


def qsa_triton_reason() -> str:
    """Why the Triton kernel cannot be called; empty if it can."""
    return _NO_TRITON


_NO_TRITON = "" if importlib.util.find_spec("triton") else "there is no Triton"
_misfit = ""  # of the operator; `register` says it


def register() -> None:
    """Look at the loaded library's operator, and describe it to torch: it writes `out`, as its
    schema says, and returns nothing."""
    import torch

    global _misfit
    qualified = f"{operators.NAMESPACE}::{OPERATOR}"
    _misfit = _compare(torch._C._jit_get_schemas_for_operator(qualified))
    if _misfit:
        return
    has_meta = torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "Meta")
    known = torch._library.simple_registry.singleton.find(qualified).fake_impl
    if not has_meta and known.kernel is None:
        torch.library.register_fake(qualified, _fake)


def _compare(found: list[Any]) -> str:
    import torch

    if not found:
        return f"the library has no operator `{OPERATOR}`"
    wanted = torch._C.parse_schema(f"{operators.NAMESPACE}::{OPERATOR}{SCHEMA}")
    difference = operators._difference(found[0].arguments, wanted.arguments)
    return f"the library has another `{OPERATOR}`: {difference}" if difference else ""


def _fake(*arguments: Any) -> None:
    pass


def _operator() -> Any:
    import torch

    return getattr(getattr(torch.ops, operators.NAMESPACE), OPERATOR)
