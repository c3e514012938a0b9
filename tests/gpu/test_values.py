# SPDX-License-Identifier: Apache-2.0
"""Hostile values: sinks, large and growing logits, the ends of fp16's range, NaN and infinity."""

from __future__ import annotations

import math

import pytest
import torch
from attention import DEVICE, TILES, Scoring, randn, reference, torch_attention
from errors import assert_close, assert_lse_close, errors
from paths import PATHS, PREFILL, Path, attend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.parametrize("path", PATHS, ids=str),
    pytest.mark.parametrize("head_dim", [*TILES, 40]),
]
FULL, CAUSAL = Scoring(), Scoring(causal=True)
HEADS, HEADS_K = 4, 2


def unit_direction(head_dim: int) -> torch.Tensor:
    direction = randn(head_dim, seed=9).float()
    return direction / direction.norm()


def normal(seqlen_q: int, seqlen_k: int, head_dim: int):
    q = randn(seqlen_q, HEADS, head_dim)
    k, v = (randn(seqlen_k, HEADS_K, head_dim, seed=seed) for seed in (1, 2))
    return q, k, v


def check(path: Path, q, k, v, scoring: Scoring = FULL) -> None:
    q, out, lse = attend(path, q, k, v, scoring)
    expected, expected_lse = reference(q, k[None], v[None], scoring)
    assert_close(out, expected, torch_attention(q, k[None], v[None], scoring))
    assert_lse_close(lse, expected_lse)


@pytest.mark.parametrize("nats", [8.0, 11.0, 14.0])
def test_attention_sink_with_zero_value_does_not_underflow_the_rest(path, head_dim, nats):
    """Key 0 gets about `nats` more than the others from every query, and its V is zero."""
    direction = unit_direction(head_dim)
    q, k, v = normal(128, 1500, head_dim)
    q = (q.float() + math.sqrt(head_dim) * direction).half()
    k -= ((k.float() @ direction)[..., None] * direction).half()  # others do not see the direction
    k[0] = (nats * direction).half()
    v[0] = 0
    q, out, lse = attend(path, q, k, v)
    expected, expected_lse = reference(q, k[None], v[None])
    found = errors(out, expected)
    assert found.relative_l2 <= 5e-4, found  # without the scaling of P: 2.8e-3 at 14 nats
    theirs = errors(torch_attention(q, k[None], v[None]), expected)
    assert found.relative_l2 <= 2 * theirs.relative_l2 + 1e-6
    assert_lse_close(lse, expected_lse)


@pytest.mark.parametrize("growth", [20.0, 200.0, -200.0])
def test_growing_logits_force_rescales(path, head_dim, growth):
    direction = unit_direction(head_dim)
    q, k, v = normal(130, 900, head_dim)
    q = (q.float() + 6 * direction).half()
    ramp = torch.linspace(0, growth, 900, device=DEVICE)[:, None, None]
    k = (k.float() + ramp * direction).half()
    for scoring in (FULL, CAUSAL):
        check(path, q, k, v, scoring)


def test_large_logits_stay_finite(path, head_dim):
    q, k, v = normal(150, 300, head_dim)
    q, out, lse = attend(path, 30 * q, 30 * k, v, CAUSAL)
    expected, expected_lse = reference(q, 30 * k[None], v[None], CAUSAL)
    assert torch.isfinite(out).all()
    assert errors(out, expected).relative_l2 <= 4e-4
    assert_lse_close(lse, expected_lse)


def test_logits_near_the_end_of_float32_pick_one_key(path, head_dim):
    """Scores of 1e9 and more, 1e5 apart: the last visible key has all of the weight."""
    q, k, v = (torch.zeros_like(x) for x in normal(150, 300, head_dim))
    q[:] = 60000
    k[:, :, -1] = torch.arange(300, device=DEVICE)[:, None] * 32
    v = randn(*v.shape, seed=2) * 10000
    q, out, _ = attend(path, q, k, v.clamp(-65504, 65504), CAUSAL)
    last = torch.arange(300 - q.shape[1], 300, device=DEVICE)
    picked = v.clamp(-65504, 65504)[last].repeat_interleave(HEADS // HEADS_K, dim=1)
    assert torch.equal(out[0], picked)


def test_values_near_the_limit_of_fp16_stay_finite(path, head_dim):
    q, k, v = normal(150, 200, head_dim)
    out = attend(path, q, k, torch.full_like(v, 65504.0), CAUSAL)[1]
    assert bool((out >= 65472).all()) and torch.isfinite(out).all()


def test_constant_rows_average_exactly(path, head_dim):
    q, k, v = normal(100, 128, head_dim)
    q, k = torch.ones_like(q), torch.ones_like(k)
    q, out, lse = attend(path, q, k, v)
    average = v.double().mean(0, keepdim=True).repeat_interleave(HEADS // HEADS_K, dim=1)
    assert_close(out[0], average.expand(q.shape[1:]))
    expected = torch.full_like(lse, math.sqrt(head_dim) + math.log(128), dtype=torch.float64)
    assert_lse_close(lse, expected)


def test_denormal_values_are_kept(path, head_dim):
    q, k, v = normal(150, 200, head_dim)
    v = (v.double() * 2.0**-17).half()  # most of them are denormal
    q, out, _ = attend(path, q, k, v, CAUSAL)
    expected, _ = reference(q, k[None], v[None], CAUSAL)
    assert bool(((out.double() - expected).abs() <= 2.0**-24).all()), "more than a spacing"
    assert bool((out != 0).any())


def test_denormal_queries_and_keys_do_not_vanish(path, head_dim):
    q, k, v = normal(150, 200, head_dim)
    q = (q.double() * 2.0**-18).half()  # a scale that is as large makes the scores normal
    k = (k.double() * 2.0**-16).half()
    check(path, q, k, v, Scoring(causal=True, scale=2.0**34 / head_dim**0.5))


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["k", "v", "k and v"])
@pytest.mark.parametrize(
    "scoring", [CAUSAL, Scoring(window=(40, 3)), Scoring(window=(25, 0))], ids=str
)
def test_garbage_reaches_the_rows_that_see_it_and_no_other(path, head_dim, where, scoring, garbage):
    """Keys at the start, at borders of tiles and at the end; the tile's other rows see them."""
    q, k, v = normal(230, 300, head_dim)
    places = (0, 101, 127, 128, 190, 270) if path in PREFILL else (0, 3, 130)
    for place in places:
        if "k" in where:
            k[place, 0, 5] = garbage
        if "v" in where:
            v[place, 0, 7 + place % 16] = garbage
    q, out, _ = attend(path, q, k, v, scoring)
    expected, _ = reference(q, k[None], v[None], scoring)
    hit = expected.isnan()
    assert torch.equal(~out.isfinite(), hit)
    assert not hit[:, :, HEADS // HEADS_K :].any(), "heads of the other KV head see no garbage"
    assert_close(torch.where(hit, 0, out), torch.where(hit, 0, expected))


@pytest.mark.parametrize("position", [0, -1])
def test_nan_in_a_query_stays_in_its_row(path, head_dim, position):
    q, k, v = normal(230, 300, head_dim)
    expected, _ = reference(q[-path.rows :][None], k[None], v[None], CAUSAL)
    rows = q[-path.rows :]
    rows[position, 1, 3] = math.nan
    _, out, lse = attend(path, q, k, v, CAUSAL)
    assert out[0, position, 1].isnan().all() and lse[0, 1, position].isnan()
    hit = torch.zeros_like(out, dtype=torch.bool)
    hit[0, position, 1] = True
    assert_close(torch.where(hit, 0, out), torch.where(hit, 0, expected))
