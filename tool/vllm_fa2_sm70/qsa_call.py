# SPDX-License-Identifier: Apache-2.0
"""A QSA call without its data, the routes that may serve it, and why each may not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from vllm_fa2_sm70.calls import PTX_VARIABLE, Call, TensorInfo
from vllm_fa2_sm70.dense import capability_reason, dense_refusals
from vllm_fa2_sm70.routes import NoRoute

PAGE4_VARIABLE = "VLLM_SM70_QSA_XQA_PAGE4"
QSA_ENVIRONMENT = (PAGE4_VARIABLE, PTX_VARIABLE)
REFUSED = "refused"
"""The name under which calls without a route are counted."""

HEADS, KV_HEADS, HEAD_DIM = 6, 1, 256
MIN_ROWS = 4096
PAGE_TOKENS = 4
MAX_PAGE_TOKENS = PAGE_TOKENS << 16
MAX_SELECTED = 2048
MAX_REQUESTS = 65535
MAX_CACHE_BYTES = 64 << 30
GATHERED_PAGE_ROWS = 16
"""The fallback gathers what a row selected into pages of this size."""


@dataclass(frozen=True)
class QsaCall:
    """Everything that decides about a call; `qsa_prefill` says what each tensor is.

    `capability` is None when q is not on a CUDA device. `environment` holds those of
    `QSA_ENVIRONMENT` that are set. `unusable` says why the library's operators cannot be called
    (empty: they can), `no_page4` why its QSA operator cannot, and `no_triton` why Triton cannot.
    """

    q: TensorInfo
    k_cache: TensorInfo
    v_cache: TensorInfo
    out: TensorInfo
    block_table: TensorInfo
    row_to_request: TensorInfo
    seq_lens: TensorInfo
    positions: TensorInfo
    indices: TensorInfo
    softmax_scale: float
    capability: tuple[int, int] | None
    needs_gradient: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    unusable: str = ""
    no_page4: str = ""
    no_triton: str = ""

    def variable(self, name: str) -> str | None:
        return dict(self.environment).get(name)

    def tensors(self) -> dict[str, TensorInfo]:
        return {
            "q": self.q, "k_cache": self.k_cache, "v_cache": self.v_cache, "out": self.out,
            **self.numbers(),
        }  # fmt: skip

    def numbers(self) -> dict[str, TensorInfo]:
        """The tensors of integers."""
        return {
            "block_table": self.block_table, "row_to_request": self.row_to_request,
            "seq_lens": self.seq_lens, "positions": self.positions, "indices": self.indices,
        }  # fmt: skip


def torch_refusals(call: QsaCall) -> list[str]:
    """The exact form in torch's own operations: what no route can do is refused here, too."""
    reasons = [
        f"{name} is on {tensor.device}, q on {call.q.device}"
        for name, tensor in call.tensors().items()
        if tensor.device != call.q.device
    ]
    if call.needs_gradient:
        reasons.append("an input needs a gradient, and there is no backward pass")
    dimensions = {"q": 3, "k_cache": 4, "v_cache": 4, "out": 3, "block_table": 2, "indices": 2}
    for name, tensor in call.tensors().items():
        wanted = dimensions.get(name, 1)
        if len(tensor.shape) != wanted:
            reasons.append(f"{name} has {len(tensor.shape)} dimensions, not {wanted}")
    for name, tensor in call.numbers().items():
        if tensor.dtype not in ("int32", "int64"):
            reasons.append(f"{name} is {tensor.dtype}, not int32")
    if not 0.0 < call.softmax_scale < float("inf"):
        reasons.append(f"softmax_scale is {call.softmax_scale:g}, not a positive number")
    return reasons or _shapes(call)


def _shapes(call: QsaCall) -> list[str]:
    rows, heads, head_dim = call.q.shape
    pages, page_tokens, kv_heads, _ = call.k_cache.shape
    requests = call.block_table.shape[0]
    wanted = {
        "out": (rows, heads, head_dim),
        "k_cache": (pages, page_tokens, kv_heads, head_dim),
        "v_cache": call.k_cache.shape,
        "row_to_request": (rows,),
        "positions": (rows,),
        "seq_lens": (requests,),
        "indices": (rows, *call.indices.shape[1:]),
    }
    tensors = call.tensors()
    reasons = [
        f"{name} has shape {list(tensors[name].shape)}, not {list(shape)}"
        for name, shape in wanted.items()
        if tensors[name].shape != shape
    ]
    if not kv_heads or heads % kv_heads:
        reasons.append(f"{heads} query heads are no multiple of {kv_heads} KV heads")
    if not page_tokens:
        reasons.append("pages have no tokens")
    for name in ("k_cache", "v_cache", "out"):
        if tensors[name].dtype != call.q.dtype:
            reasons.append(f"{name} is {tensors[name].dtype}, q {call.q.dtype}")
    return reasons


def page4_refusals(call: QsaCall) -> list[str]:
    """The QSA kernels: their one shape, and enough rows to pay for the table."""
    reasons = _device(call, call.no_page4)
    variable = call.variable(PAGE4_VARIABLE)
    if variable not in (None, "", "1"):
        reasons.append(f"{PAGE4_VARIABLE}={variable} turns it off")
    wrong = torch_refusals(call)
    if wrong:
        return reasons + wrong
    rows, heads, head_dim = call.q.shape
    pages, page_tokens, kv_heads, _ = call.k_cache.shape
    selected, requests = call.indices.shape[1], call.block_table.shape[0]
    for number, wanted, what in (
        (heads, HEADS, "query heads"),
        (kv_heads, KV_HEADS, "KV heads"),
        (head_dim, HEAD_DIM, "columns a head"),
    ):
        if number != wanted:
            reasons.append(f"{number} {what}, not {wanted}")
    if rows < MIN_ROWS:
        reasons.append(f"{rows} rows, fewer than {MIN_ROWS}")
    if selected > MAX_SELECTED:
        reasons.append(f"{selected} selected tokens a row, more than {MAX_SELECTED}")
    if page_tokens % PAGE_TOKENS or page_tokens > MAX_PAGE_TOKENS:
        reasons.append(
            f"pages have {page_tokens} tokens, not a multiple of {PAGE_TOKENS} "
            f"up to {MAX_PAGE_TOKENS}"
        )
    if requests > MAX_REQUESTS:
        reasons.append(f"{requests} requests, more than {MAX_REQUESTS}")
    for name in ("q", "k_cache", "v_cache", "out"):
        reasons += _halves(name, call.tensors()[name])
    for name in ("k_cache", "v_cache"):
        cache = call.tensors()[name]
        size = 2 * (max(pages - 1, 0) * cache.strides[0] + page_tokens * cache.strides[1])
        if size >= MAX_CACHE_BYTES:
            reasons.append(f"{name} spans {size} bytes, not less than {MAX_CACHE_BYTES}")
    for name, tensor in call.numbers().items():
        if tensor.dtype != "int32":
            reasons.append(f"{name} is {tensor.dtype}, not int32")
        if tensor.shape[-1] > 1 and tensor.strides[-1] != 1:
            reasons.append(f"{name} has strides {list(tensor.strides)}, the last one not 1")
    return reasons


def paged_refusals(call: QsaCall) -> list[str]:
    """The series' paged forward over gathered tokens, a sequence a row."""
    reasons = torch_refusals(call)
    if reasons:
        return reasons
    rows, heads, head_dim = call.q.shape
    kv_heads, selected = call.k_cache.shape[2], call.indices.shape[1]
    pages = -(-selected // GATHERED_PAGE_ROWS)
    gathered = _contiguous(call.q, rows * pages, GATHERED_PAGE_ROWS, kv_heads, head_dim)
    integers = TensorInfo((rows,), (1,), "int32", call.q.device)
    if not selected:
        reasons.append("no token is selected")
    return reasons + dense_refusals(
        Call(
            operator="fwd_kvcache",
            q=_contiguous(call.q, rows, 1, heads, head_dim),
            k=gathered,
            v=gathered,
            softmax_scale=call.softmax_scale,
            capability=call.capability,
            max_seqlen_q=1,
            max_seqlen_k=pages * GATHERED_PAGE_ROWS,
            options={
                "cache_seqlens": integers,
                "block_table": TensorInfo((rows, pages), (pages, 1), "int32", call.q.device),
            },
            environment=call.environment,
            unusable=call.unusable,
        )
    )


def triton_refusals(call: QsaCall) -> list[str]:
    """One Triton program a row and KV head."""
    reasons = [call.no_triton] if call.no_triton else []
    if call.capability is None:
        reasons.append("q is not on a CUDA device")
    wrong = torch_refusals(call)
    if wrong:
        return reasons + wrong
    head_dim = call.q.shape[-1]
    if head_dim & (head_dim - 1) or not 16 <= head_dim <= 256:
        reasons.append(f"head size {head_dim}, not a power of 2 from 16 to 256")
    if call.q.dtype not in ("float16", "bfloat16"):
        reasons.append(f"q is {call.q.dtype}, not float16 or bfloat16")
    if call.q.shape[1] // call.k_cache.shape[2] > 16:
        reasons.append("more than 16 query heads a KV head")
    return reasons


def _device(call: QsaCall, missing: str) -> list[str]:
    reasons = [missing] if missing else []
    allows_ptx = call.variable(PTX_VARIABLE) == "1"
    unfit = capability_reason(call.capability, allow_ptx=allows_ptx)
    return [*reasons, unfit] if unfit else reasons


def _halves(name: str, tensor: TensorInfo) -> list[str]:
    reasons = []
    if tensor.dtype != "float16":
        reasons.append(f"{name} is {tensor.dtype}, not float16")
    rows = [s for size, s in zip(tensor.shape, tensor.strides[:-1], strict=False) if size > 1]
    if tensor.strides[-1] != 1 or any(stride % 8 for stride in rows) or tensor.offset % 8:
        reasons.append(
            f"{name} has strides {list(tensor.strides)} and begins {tensor.offset} elements into "
            "its storage: the last stride is to be 1, the others multiples of 8"
        )
    return reasons


def _contiguous(like: TensorInfo, *shape: int) -> TensorInfo:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorInfo(shape, tuple(strides), like.dtype, like.device)


@dataclass(frozen=True)
class QsaRoute:
    """A way to serve a call: `refusals` gives every reason why it cannot, none if it can."""

    name: str
    refusals: Callable[[QsaCall], list[str]]


QSA_ROUTES = (
    QsaRoute("page4", page4_refusals),
    QsaRoute("paged", paged_refusals),
    QsaRoute("triton", triton_refusals),
    QsaRoute("torch", torch_refusals),
)
"""In order of preference; all give the same attention."""


@dataclass(frozen=True)
class QsaChoice:
    """The route that serves a call (None: no route does), and what those before it said."""

    route: QsaRoute | None
    refusals: dict[str, list[str]] = field(default_factory=dict)


def choose_qsa(call: QsaCall) -> QsaChoice:
    """The first route without a refusal."""
    refusals: dict[str, list[str]] = {}
    for route in QSA_ROUTES:
        reasons = route.refusals(call)
        if not reasons:
            return QsaChoice(route, refusals)
        refusals[route.name] = reasons
    return QsaChoice(None, refusals)


def explain_qsa(call: QsaCall) -> str:
    """Which route a call takes and why not those before it, one line a reason."""
    choice = choose_qsa(call)
    lines = [f"{name}: {reason}" for name, why in choice.refusals.items() for reason in why]
    taken = f"{choice.route.name}: taken" if choice.route else "no route serves the call"
    return "\n".join([*lines, taken])


_counts: Counter[str] = Counter()


def take_qsa(call: QsaCall) -> QsaRoute:
    """The route for a call that is about to run; it is counted.

    Raises:
        NoRoute: no route serves the call.
    """
    choice = choose_qsa(call)
    _counts[choice.route.name if choice.route else REFUSED] += 1
    if choice.route is None:
        raise NoRoute(f"`qsa_prefill` of vllm_fa2_sm70 refuses this call\n{explain_qsa(call)}")
    return choice.route


def qsa_route_counts() -> dict[str, int]:
    """How many QSA calls took each route, and how many were refused."""
    return {name: _counts[name] for name in (*(r.name for r in QSA_ROUTES), REFUSED)}


def reset_qsa_route_counts() -> None:
    """Start counting from zero."""
    _counts.clear()
