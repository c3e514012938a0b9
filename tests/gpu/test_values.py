# SPDX-License-Identifier: Apache-2.0
"""Hostile values: sinks, large and growing logits, NaN."""

from __future__ import annotations

import math

import pytest
import torch
from attention import (
    HEAD_DIM,
    assert_close,
    assert_lse_close,
    errors,
    kvcache,
    randn,
    reference,
    torch_attention,
)

pytestmark = pytest.mark.gpu


def unit_direction(seed: int = 9) -> torch.Tensor:
    direction = randn(HEAD_DIM, seed=seed).float()
    return direction / direction.norm()


def with_sink(nats: float, seqlen: int = 2048):
    """Key 0 gets about `nats` more than the others from every query, and its V is zero."""
    direction = unit_direction()
    q = (randn(256, 6, HEAD_DIM).float() + 16 * direction).half()
    k, v = (randn(seqlen, 1, HEAD_DIM, seed=seed) for seed in (1, 2))
    k -= ((k.float() @ direction)[..., None] * direction).half()  # others do not see the direction
    k[0] = (nats * direction).half()
    v[0] = 0
    return q, k, v


@pytest.mark.parametrize("nats", [8.0, 11.0, 14.0])
def test_attention_sink_with_zero_value_does_not_underflow_the_rest(nats):
    q, k, v = with_sink(nats)
    out, lse = kvcache(q[None], k[None], v[None])
    expected, expected_lse = reference(q, k, v)
    found = errors(out[0], expected)
    assert found.relative_l2 <= 5e-4, found  # without the scaling of P: 2.8e-3 at 14 nats
    assert found.relative_l2 <= 2 * errors(torch_attention(q, k, v), expected).relative_l2 + 1e-6
    assert_lse_close(lse[0], expected_lse)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("growth", [20.0, 200.0, -200.0])
def test_growing_logits_force_rescales(growth, causal):
    direction = unit_direction()
    q = (randn(200, 6, HEAD_DIM).float() + 6 * direction).half()
    k, v = (randn(1500, 1, HEAD_DIM, seed=seed) for seed in (1, 2))
    ramp = torch.linspace(0, growth, 1500, device="cuda")[:, None, None]
    k = (k.float() + ramp * direction).half()
    out, lse = kvcache(q[None], k[None], v[None], causal=causal)
    expected, expected_lse = reference(q, k, v, causal=causal)
    assert_close(out[0], expected)
    assert_lse_close(lse[0], expected_lse)


def test_large_logits_stay_finite():
    q, k, v = (40 * randn(300, 2, HEAD_DIM, seed=seed) for seed in (0, 1, 2))
    v = v / 40
    out, lse = kvcache(q[None], k[None], v[None], causal=True)
    expected, expected_lse = reference(q, k, v, causal=True)
    assert torch.isfinite(out).all()
    assert errors(out[0], expected).relative_l2 <= 4e-4
    assert_lse_close(lse[0], expected_lse)


def test_values_near_the_limit_of_fp16_stay_finite():
    q, k = (randn(200, 2, HEAD_DIM, seed=seed) for seed in (0, 1))
    v = torch.full_like(k, 65504.0)
    out, _ = kvcache(q[None], k[None], v[None], causal=True)
    assert bool((out >= 65472).all()) and torch.isfinite(out).all()


def test_constant_rows_average_exactly():
    q, k = (torch.ones(128, 1, HEAD_DIM, dtype=torch.float16, device="cuda") for _ in range(2))
    v = randn(128, 1, HEAD_DIM)
    out, lse = kvcache(q[None], k[None], v[None])
    assert_close(out[0], v.double().mean(0, keepdim=True).expand(128, 1, HEAD_DIM))
    assert_lse_close(lse[0], torch.full((1, 128), 16 + math.log(128), device="cuda").double())


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_nan_is_carried_to_every_row_that_attends_to_it(where, causal):
    tensors = {name: randn(300, 2, HEAD_DIM, seed=i) for i, name in enumerate("qkv")}
    position, head, d = 77, 1, 13
    tensors[where][position, head, d] = math.nan
    out, _ = kvcache(*(tensors[name][None] for name in "qkv"), causal=causal)
    nan = torch.isnan(out[0])
    assert not nan[:, 0].any(), "the other head has no NaN"
    attending = torch.arange(300, device="cuda") >= (position if causal else 0)
    if where == "q":
        assert nan[position, head].all()
        assert nan[:, head].sum() == HEAD_DIM
    elif where == "k":
        assert torch.equal(nan[:, head].all(dim=1), attending)
        assert torch.equal(nan[:, head].any(dim=1), attending)
    else:
        assert nan[attending, head, d].all()


def test_nan_key_behind_the_causal_mask_does_not_leak():
    q, k, v = (randn(300, 2, HEAD_DIM, seed=seed) for seed in range(3))
    expected, _ = reference(q, k, v, causal=True)
    k[200:] = math.nan
    out, _ = kvcache(q[None], k[None], v[None], causal=True)
    assert_close(out[0, :200], expected[:200])
