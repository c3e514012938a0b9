# SPDX-License-Identifier: Apache-2.0
"""Which kernel serves a call: a table, and a pure function of what the call looks like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

PTX_VARIABLE = "VLLM_FA2_SM70_ALLOW_PTX"
ENVIRONMENT = (PTX_VARIABLE,)
"""The variables that routes look at."""

REFUSED = "refused"
"""The name under which calls without a route are counted."""

NATIVE = (7, 0)
NO_WINDOW = (-1, -1)
HEAD_DIM = 256
ALIGNED = 8  # elements: the kernels load 16 bytes at a time
DENSE_OPTIONS = {"varlen_fwd": frozenset[str](), "fwd_kvcache": frozenset({"cache_seqlens"})}
"""The optional tensors that the dense kernel takes, for each operator."""


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
    are the caches. `options` names the other optional tensors that were given (``block_table``,
    ``alibi_slopes``). `capability` is None when q is not on a CUDA device. `environment` holds
    those of `ENVIRONMENT` that are set. `unusable` says why the library's operators cannot be
    called at all (empty: they can).
    """

    operator: str
    q: TensorInfo
    k: TensorInfo
    v: TensorInfo
    softmax_scale: float
    capability: tuple[int, int] | None
    out: TensorInfo | None = None
    causal: bool = False
    window: tuple[int, int] = NO_WINDOW
    softcap: float = 0.0
    dropout: float = 0.0
    num_splits: int = 0
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    options: frozenset[str] = frozenset()
    needs_gradient: bool = False
    capturing: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    unusable: str = ""

    def allows_ptx(self) -> bool:
        """Whether GPUs after sm_70 may run the embedded PTX."""
        return (PTX_VARIABLE, "1") in self.environment


@dataclass(frozen=True)
class Route:
    """A way to serve a call: `refusals` gives every reason why it cannot, none if it can.

    `operators` says what is called for each operator that a caller's function stands for.
    """

    name: str
    operators: Mapping[str, str]
    refusals: Callable[[Call], list[str]]


@dataclass(frozen=True)
class Choice:
    """The route that serves a call (None: no route does), and what the others said."""

    route: Route | None
    refusals: dict[str, list[str]] = field(default_factory=dict)


class NoRoute(NotImplementedError):
    """No kernel here serves the call; the message gives every reason of every route."""


def capability_reason(capability: tuple[int, int] | None, *, allow_ptx: bool) -> str:
    """Why a GPU cannot run these kernels; empty if it can."""
    if capability is None:
        return "q is not on a CUDA device"
    major, minor = capability
    if capability == NATIVE or (allow_ptx and capability > NATIVE):
        return ""
    reason = f"the device has compute capability {major}.{minor}, not 7.0"
    if capability > NATIVE:
        reason += f" ({PTX_VARIABLE}=1 runs the embedded PTX there, for tests)"
    return reason


def common_refusals(call: Call) -> list[str]:
    """What stands against every route."""
    reasons = [call.unusable] if call.unusable else []
    unfit = capability_reason(call.capability, allow_ptx=call.allows_ptx())
    reasons += [unfit] if unfit else []
    for name, tensor in _tensors(call).items():
        if tensor.device != call.q.device:
            reasons.append(f"{name} is on {tensor.device}, q on {call.q.device}")
    if call.needs_gradient:
        reasons.append("an input needs a gradient, and there is no backward pass")
    return reasons


def dense_refusals(call: Call) -> list[str]:
    """The exact fused kernel: fp16, head dimension 256, K and V in one piece, no extras."""
    reasons = common_refusals(call)
    served = DENSE_OPTIONS.get(call.operator)
    if served is None:
        reasons.append(f"it does not serve `{call.operator}`")
    for name, tensor in _tensors(call).items():
        reasons += _layout(name, tensor, dimensions=4 if call.operator == "fwd_kvcache" else 3)
    reasons += _shapes(call)
    if call.dropout:
        reasons.append(f"dropout_p is {call.dropout:g}, not 0")
    left, right = call.window
    if 0 <= left < call.max_seqlen_k or (not call.causal and 0 < right < call.max_seqlen_k):
        reasons.append(f"window_size is {call.window}: it has no sliding window")
    if call.softcap:
        reasons.append(f"softcap is {call.softcap:g}, not 0")
    if not 0.0 < call.softmax_scale < float("inf"):
        reasons.append(f"softmax_scale is {call.softmax_scale:g}, not a positive number")
    if call.num_splits not in (0, 1):
        reasons.append(f"num_splits is {call.num_splits}, not 0 or 1")
    reasons += [f"{name} is given" for name in sorted(call.options - (served or frozenset()))]
    return reasons


def _tensors(call: Call) -> dict[str, TensorInfo]:
    found = {"q": call.q, "k": call.k, "v": call.v}
    return found if call.out is None else {**found, "out": call.out}


def _layout(name: str, tensor: TensorInfo, *, dimensions: int) -> list[str]:
    reasons = []
    if tensor.dtype != "float16":
        reasons.append(f"{name} is {tensor.dtype}, not float16")
    if len(tensor.shape) != dimensions:
        reasons.append(f"{name} has {len(tensor.shape)} dimensions, not {dimensions}")
    if tensor.shape[-1:] != (HEAD_DIM,):
        reasons.append(f"{name} has shape {list(tensor.shape)}, its last dimension not {HEAD_DIM}")
    if 0 in tensor.shape:
        return reasons
    if tensor.strides[-1:] != (1,):
        reasons.append(f"{name} has strides {list(tensor.strides)}, the last one not 1")
    rows = [s for size, s in zip(tensor.shape, tensor.strides[:-1], strict=False) if size > 1]
    if any(stride % ALIGNED for stride in rows):
        reasons.append(f"{name} has strides {list(tensor.strides)}, not multiples of {ALIGNED}")
    if tensor.offset % ALIGNED:
        reasons.append(
            f"{name} begins {tensor.offset} elements into its storage, which is no "
            f"multiple of {ALIGNED}"
        )
    return reasons


def _shapes(call: Call) -> list[str]:
    q, k, v = call.q.shape, call.k.shape, call.v.shape
    reasons = []
    if k != v:
        reasons.append(f"k has shape {list(k)}, v {list(v)}")
    if call.out is not None and call.out.shape != q:
        reasons.append(f"out has shape {list(call.out.shape)}, q {list(q)}")
    if not len(q) == len(k) >= 3:
        return reasons
    if k[-2] == 0 or q[-2] % k[-2]:
        reasons.append(f"{q[-2]} query heads are no multiple of {k[-2]} KV heads")
    if q[:-3] != k[:-3]:
        reasons.append(f"q has batch size {q[0]}, the cache {k[0]}")
    return reasons


_SAME = {name: name for name in DENSE_OPTIONS}
ROUTES = (Route("dense", _SAME, dense_refusals),)
"""In order of preference; the last one is the exact fallback of all."""


def choose(call: Call) -> Choice:
    """The first route without a refusal, and the refusals of those before it."""
    refusals: dict[str, list[str]] = {}
    for route in ROUTES:
        reasons = route.refusals(call)
        if not reasons:
            return Choice(route, refusals)
        refusals[route.name] = reasons
    return Choice(None, refusals)


def explain(call: Call) -> str:
    """Which route a call takes and why not the others, one line a reason."""
    choice = choose(call)
    lines = [f"{name}: {reason}" for name, why in choice.refusals.items() for reason in why]
    taken = f"{choice.route.name}: taken" if choice.route else "no route serves the call"
    return "\n".join([*lines, taken])


_counts: Counter[str] = Counter()


def take(call: Call) -> Route:
    """The route for a call that is about to run; it is counted.

    Raises:
        NoRoute: no route serves the call.
    """
    choice = choose(call)
    _counts[choice.route.name if choice.route else REFUSED] += 1
    if choice.route is None:
        raise NoRoute(f"`{call.operator}` of vllm_fa2_sm70 refuses this call\n{explain(call)}")
    return choice.route


def route_counts() -> dict[str, int]:
    """How many calls took each route, and how many were refused."""
    return {name: _counts[name] for name in (*(r.name for r in ROUTES), REFUSED)}


def reset_route_counts() -> None:
    """Start counting from zero."""
    _counts.clear()
