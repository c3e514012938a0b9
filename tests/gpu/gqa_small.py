# SPDX-License-Identifier: Apache-2.0
"""The operators of long prefills on short ones, for sanitizers: small waves, panels, blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from attention import Scoring, int32, reference
from errors import complaints, errors
from torch import Tensor

HEAD_DIM, ROW_TILE, KEY_BLOCK = 256, 128, 256


@dataclass(frozen=True)
class Small:
    """`panels`: into how many the rows are cut (workspace). `spare`: rows that are not of the
    sequence, before and behind it. `special`: NaN and infinity in V, which take the repair."""

    queries: int
    keys: int
    heads: int = 6
    panels: int = 1
    spare: int = 0
    special: bool = False

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in vars(self).items())


CASES = [
    Small(50, 300),
    Small(100, 650, panels=3, spare=5),
    Small(40, 20),
    Small(60, 200, special=True),
]


def buffers(mode: str, case: Small) -> list[Tensor]:
    """Of the least size, full of NaN."""
    rows = (case.queries + 2 * case.spare) * case.heads
    tiles = -(-rows // ROW_TILE)
    if mode == "fused":
        multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
        tail = tiles % multiprocessors
        parts = multiprocessors + tail - 1 if tail else 0
        sizes = [(parts * ROW_TILE * (HEAD_DIM + 1) + tiles) * 4]
    else:
        panel = -(-tiles // case.panels)
        row = HEAD_DIM + 2 + KEY_BLOCK // 64 + 8 * -(-KEY_BLOCK // 2048)
        sizes = [panel * ROW_TILE * KEY_BLOCK * 2, (panel * ROW_TILE * row + tiles) * 4]
    made = [torch.full((size,), 255, dtype=torch.uint8, device="cuda") for size in sizes]
    return [*made[:-1], made[-1].view(torch.float32)]


def run(mode: str, case: Small) -> list[str]:
    """What is wrong with the result of an operator."""
    generator = torch.Generator().manual_seed(case.keys)

    def randn(rows: int, heads: int) -> Tensor:
        return torch.randn(rows + 2 * case.spare, heads, HEAD_DIM, generator=generator).half()

    inside = slice(case.spare, case.spare + case.queries)
    keys = slice(case.spare, case.spare + case.keys)
    q, k, v = randn(case.queries, case.heads), randn(case.keys, 1), randn(case.keys, 1)
    if case.special:
        v[case.keys // 3, 0, 4], v[case.keys - 10, 0, 5] = float("inf"), float("nan")
    out = torch.full(q.shape, 7.0, dtype=torch.float16, device="cuda")
    lse = torch.full((case.heads, q.shape[0]), 7.0, device="cuda")
    starts = [int32([case.spare, case.spare + n], "cuda") for n in (case.queries, case.keys)]
    operator = getattr(torch.ops._vllm_fa2_C, f"sm70_gqa_prefill_{mode}")
    block = () if mode == "fused" else (KEY_BLOCK,)
    moved = [tensor.cuda() for tensor in (q, k, v)]
    operator(*moved, out, lse, *buffers(mode, case), *starts, HEAD_DIM**-0.5, *block)
    expected, expected_lse = reference(q[None, inside], k[None, keys], v[None, keys], Scoring(True))
    got, wanted = out.cpu()[inside], expected[0]
    said = []
    if not torch.equal(got.isfinite(), wanted.isfinite()):
        said.append("NaN or infinity elsewhere than in float64")
    found = errors(got.nan_to_num(0, 0, 0), wanted.where(got.isfinite(), 0).nan_to_num(0, 0, 0))
    said += complaints(found, None, HEAD_DIM)
    if not torch.allclose(lse.cpu()[:, inside].double(), expected_lse[0], 2e-5, 2e-5):
        said.append("LSE differs")
    rest = torch.cat([out[: inside.start], out[inside.stop :]]).cpu()
    return said + ([] if bool((rest == 7).all()) else ["rows outside of the sequence are written"])
