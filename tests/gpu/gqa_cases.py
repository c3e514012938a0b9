# SPDX-License-Identifier: Apache-2.0
"""Long prefills: inputs, the routes that can serve them, float64 on sampled rows, and bounds."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from attention import DEVICE, cumulative
from errors import RELATIVE_L2_FLOOR
from torch import Tensor

sys.path.append(str(Path(__file__).parents[2] / "tool"))

import vllm_fa2_sm70 as shim
from vllm_fa2_sm70 import calls, gqa

QUERIES, KEYS = gqa.QUERIES, gqa.KEYS
HEADS, HEAD_DIM = gqa.QUERY_HEADS, gqa.HEAD_DIM
SHORTEST, LONGEST = KEYS[0], KEYS[-1]
MODES = ("fused", "workspace")

RELATIVE_L2_BOUND = 5e-4
LARGEST_BOUND = 1e-3
RATIO_BOUND = 1.5
SAMPLED = 64

Result = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def keys(self) -> int:
        return self.k.shape[0]


@contextmanager
def environment(**changes: str) -> Iterator[None]:
    kept = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def attend(inputs: Inputs, out: Tensor | None = None, starts: object = None) -> Result:
    """What a caller of the package does; the environment chooses the route."""
    starts_q, starts_k = starts or starts_of(inputs.q.shape[0], inputs.keys)  # type: ignore[misc]
    result, lse = shim.flash_attn_varlen_func(
        inputs.q, inputs.k, inputs.v, inputs.q.shape[0], starts_q, inputs.keys, starts_k,
        causal=True, out=out, return_softmax_lse=True,
    )  # fmt: skip
    return result, lse


@cache
def starts_of(queries: int, keys: int) -> tuple[Tensor, Tensor]:
    return cumulative([queries]), cumulative([keys])


def by(mode: str, inputs: Inputs, out: Tensor | None = None, starts: object = None) -> Result:
    """The same through one route: ``fused``, ``workspace`` or ``dense``; it must be that one."""
    value = "off" if mode == "dense" else mode
    with environment(**{calls.GQA_VARIABLE: value, calls.PTX_VARIABLE: "1"}):
        result = attend(inputs, out, starts)
    trace = shim.recent_calls()[-1]
    assert trace.route == ("dense" if mode == "dense" else "gqa_prefill"), str(trace)
    return result


def normal(keys: int, seed: int = 0) -> Inputs:
    generator = torch.Generator(device=DEVICE).manual_seed(seed + keys)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=DEVICE).half()

    rows = (keys, 1, HEAD_DIM)
    return Inputs(randn(QUERIES, HEADS, HEAD_DIM), randn(*rows), randn(*rows))


def _student(inputs: Inputs) -> None:
    torch.manual_seed(1)
    for tensor in (inputs.q, inputs.k, inputs.v):
        chi = sum(torch.randn(tensor.shape, device=DEVICE) ** 2 for _ in range(3))
        tensor.copy_(tensor / (chi / 3).sqrt())  # type: ignore[operator]


def _sink(nats: float, *, silent: bool = False) -> Callable[[Inputs], None]:
    def change(inputs: Inputs) -> None:
        inputs.q[..., 0] = 8
        inputs.k[..., 0] = 0
        inputs.k[0, 0, 0] = nats * 2  # 8 * 2 / 16 is 1
        if silent:
            inputs.v[0] *= 1e-3

    return change


def _outliers(inputs: Inputs) -> None:
    inputs.k[..., 17::128] *= 50


def _uniform(inputs: Inputs) -> None:
    inputs.q.mul_(0.01)


def _offset(inputs: Inputs) -> None:
    inputs.q[..., 0] = 32
    inputs.k[..., 0] = 64  # 128 nats


def _duplicated(inputs: Inputs) -> None:
    inputs.k.copy_(inputs.k[::16].repeat_interleave(16, dim=0)[: inputs.keys])


def _large_row(inputs: Inputs) -> None:
    inputs.v[inputs.keys // 3] *= 1000


def _special(name: str, value: float) -> Callable[[Inputs], None]:
    def change(inputs: Inputs) -> None:
        if name == "q":
            inputs.q[QUERIES // 2, 3, 5] = value
        else:  # a key that the later half of the rows sees
            inputs.k[inputs.keys - QUERIES // 2, 0, 5] = value

    return change


HOSTILE: dict[str, Callable[[Inputs], None]] = {
    "Student t, 3 degrees": _student,
    "sink +11": _sink(11),
    "sink +60": _sink(60),
    "sink +14, V near 0": _sink(14, silent=True),
    "outlier channels x50": _outliers,
    "near-uniform": _uniform,
    "common offset of 128": _offset,
    "each key 16 times": _duplicated,
    "one V row x1000": _large_row,
    "NaN in Q": _special("q", math.nan),
    "infinity in Q": _special("q", math.inf),
    "NaN in K": _special("k", math.nan),
    "infinity in K": _special("k", math.inf),
}


def hostile(name: str, keys: int) -> Inputs:
    inputs = normal(keys, seed=7)
    HOSTILE[name](inputs)
    return inputs


def sampled_rows() -> Tensor:
    """Positions: the ends, those around the special ones, and others."""
    half = QUERIES // 2
    fixed = [0, 1, half - 1, half, half + 1, QUERIES - 2, QUERIES - 1]
    others = torch.randperm(QUERIES, generator=torch.Generator().manual_seed(3))
    rows = sorted({*fixed, *others[: min(SAMPLED, QUERIES) - len(fixed)].tolist()})
    return torch.tensor(rows, device=DEVICE)


def reference(inputs: Inputs, rows: Tensor) -> Result:
    """float64: out (rows, heads, D) and LSE (heads, rows)."""
    q, k, v = inputs.q[rows].double(), inputs.k[:, 0].double(), inputs.v[:, 0].double()
    last = rows + inputs.keys - inputs.q.shape[0]
    unseen = torch.arange(inputs.keys, device=DEVICE)[None] > last[:, None]
    out, lse = torch.empty_like(q), torch.empty(q.shape[1::-1], dtype=q.dtype, device=DEVICE)
    for head in range(q.shape[1]):
        scores = (q[:, head] @ k.T * gqa.SCALE).masked_fill(unseen, -math.inf)
        out[:, head] = scores.softmax(dim=-1) @ v
        lse[head] = scores.logsumexp(dim=-1)
    return out, lse


@dataclass(frozen=True)
class Error:
    """Over finite elements; `pattern`: the others are those of the reference."""

    relative_l2: float
    largest: float
    finite: bool
    pattern: bool


def error(out: Tensor, expected: Tensor) -> Error:
    both = out.isfinite() & expected.isfinite()
    out, wanted = out.double(), expected.double()
    difference = torch.where(both, out - wanted, 0)
    size = torch.where(both, wanted, 0).norm()
    pattern = out.isfinite() == wanted.isfinite()
    values = torch.stack([difference.norm() / size.clamp(min=1e-30), difference.abs().max()])
    return Error(*values.tolist(), bool(out.isfinite().all()), bool(pattern.all()))


def complaints(found: Error, what: str) -> list[str]:
    """Which bounds for unit-normal inputs are broken."""
    said = [] if found.finite else [f"{what}: not finite"]
    if not found.relative_l2 <= RELATIVE_L2_BOUND:
        said.append(f"{what}: relative L2 {found.relative_l2:.2e} > {RELATIVE_L2_BOUND:.0e}")
    if not found.largest <= LARGEST_BOUND:
        said.append(f"{what}: largest error {found.largest:.2e} > {LARGEST_BOUND:.0e}")
    return said


def pair_complaints(ours: Error, dense: Error) -> list[str]:
    """Which bounds of the paired gate are broken."""
    said = [] if ours.pattern else ["NaN or infinity elsewhere than in float64"]
    if not dense.pattern:
        said.append("dense: NaN or infinity elsewhere than in float64")
    if not ours.relative_l2 <= RATIO_BOUND * dense.relative_l2 + RELATIVE_L2_FLOOR:
        said.append(f"relative L2 {ours.relative_l2:.2e}, dense {dense.relative_l2:.2e}")
    return said


@dataclass(frozen=True)
class Accuracy:
    """Of one route: against float64 on sampled rows, against dense on all."""

    sampled: Error
    against_dense: Error
    lse: float
    same_bits: bool

    def complaints(self) -> list[str]:
        said = complaints(self.sampled, "float64") + complaints(self.against_dense, "dense")
        said += [] if self.lse <= 2e-5 else [f"LSE error {self.lse:.1e}"]
        return said + ([] if self.same_bits else ["other bits the second time"])


def accuracy(keys: int) -> dict[str, Accuracy]:
    """Of both operators, on unit-normal inputs."""
    inputs, rows = normal(keys), sampled_rows()
    expected, expected_lse = reference(inputs, rows)
    dense, dense_lse = by("dense", inputs)
    found = {}
    for mode in MODES:
        out, lse = by(mode, inputs)
        again = torch.equal(by(mode, inputs)[0], out) if keys == SHORTEST else True
        worst = (lse[:, rows].double() - expected_lse).abs() / expected_lse.abs().clamp(min=1)
        everywhere = (lse - dense_lse).abs() / dense_lse.abs().clamp(min=1)
        found[mode] = Accuracy(
            error(out[rows], expected), error(out, dense),
            max(worst.max().item(), everywhere.max().item()), again,
        )  # fmt: skip
    return found


def paired(name: str, keys: int) -> tuple[Error, dict[str, tuple[Error, list[str]]]]:
    """The error of dense on hostile inputs, and of both operators with what is wrong."""
    inputs, rows = hostile(name, keys), sampled_rows()
    expected, _ = reference(inputs, rows)
    everywhere, _ = by("dense", inputs)
    dense = error(everywhere[rows], expected)
    found = {}
    for mode in MODES:
        out, _ = by(mode, inputs)
        ours = error(out[rows], expected)
        said = pair_complaints(ours, dense)
        if not torch.equal(out.isfinite(), everywhere.isfinite()):
            said.append("NaN or infinity elsewhere than dense")
        found[mode] = (ours, said)
    return dense, found
