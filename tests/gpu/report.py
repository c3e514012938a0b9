# SPDX-License-Identifier: Apache-2.0
"""Measures the accuracy table of a built library and writes it as Markdown:

VLLM_FA2_SM70_LIBRARY=.../_vllm_fa2_C.abi3.so python3 tests/gpu/report.py [OUTPUT]

OUTPUT is tests/gpu/RESULTS.md when it is not given. Exits with 1 when a row is out of its bounds.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import subprocess
import sys
from pathlib import Path

import attention
import torch
from attention import (
    HEAD_DIM,
    RELATIVE_L2_BOUND,
    WORST_BOUND,
    cumulative,
    errors,
    kvcache,
    randn,
    reference,
    torch_attention,
    varlen,
)

LENGTHS = [(1, 1), (113, 113), (239, 239), (799, 799), (4096, 4096), (4096, 8192)]
HEADS = [(6, 1), (8, 8), (8, 2)]
COLUMNS = [
    "Q", "KV", "Hq/Hkv", "causal", "relative L2", "worst error", "PyTorch fp16: relative L2",
    "worst error", "LSE error", "same bits twice", "graph = eager",
]  # fmt: skip


def driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return answer.split()[0]


def sanitizer_verdict(tool: str) -> tuple[str, bool]:
    """What compute-sanitizer says of sanitize.py, and whether it is not a complaint."""
    if not shutil.which("compute-sanitizer"):
        return "not run, compute-sanitizer is not installed", True
    script = Path(__file__).with_name("sanitize.py")
    done = subprocess.run(
        ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1", sys.executable, str(script)],
        capture_output=True,
        text=True,
    )
    summaries = [line for line in done.stdout.splitlines() if "SUMMARY" in line]
    summary = summaries[-1].lstrip("= ") if summaries else "no summary"
    return f"exit status {done.returncode}, `{summary}`", done.returncode == 0


def graph_equals(call, eager: torch.Tensor) -> bool:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, _ = call()
    captured.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    return torch.equal(captured, eager)


def measure(
    lengths: tuple[int, int], heads: tuple[int, int], causal: bool
) -> tuple[list[str], bool]:
    q = randn(lengths[0], heads[0], HEAD_DIM)
    k, v = (randn(lengths[1], heads[1], HEAD_DIM, seed=seed) for seed in (1, 2))
    cu_q, cu_k = cumulative([lengths[0]]), cumulative([lengths[1]])
    expected, expected_lse = reference(q, k, v, causal=causal)

    def call():
        return varlen(q, k, v, cu_q, cu_k, *lengths, causal=causal)

    out, lse = call()
    ours = errors(out, expected)
    theirs = errors(torch_attention(q, k, v, causal=causal), expected)
    lse_error = (lse.double() - expected_lse).abs().max().item()
    cache_out, _ = kvcache(q[None], k[None], v[None], causal=causal)
    same = torch.equal(call()[0], out) and torch.equal(cache_out[0], out)
    graph = graph_equals(call, out)
    good = (
        bool(torch.isfinite(out).all())
        and ours.relative_l2 <= min(RELATIVE_L2_BOUND, 2 * theirs.relative_l2 + 1e-6)
        and ours.worst <= min(WORST_BOUND, 2 * theirs.worst + 1e-6)
        and same
        and graph
    )
    row = [
        str(lengths[0]), str(lengths[1]), f"{heads[0]}/{heads[1]}", "yes" if causal else "no",
        f"{ours.relative_l2:.2e}", f"{ours.worst:.2e}", f"{theirs.relative_l2:.2e}",
        f"{theirs.worst:.2e}", f"{lse_error:.1e}", "yes" if same else "**no**",
        "yes" if graph else "**no**",
    ]  # fmt: skip
    return row, good


def main() -> int:
    reason = attention.why_not_loadable() or attention.why_no_gpu()
    if reason:
        print(f"cannot measure: {reason}", file=sys.stderr)
        return 1
    attention.load_library()
    library = attention.library_path()
    assert library is not None
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("RESULTS.md")

    measured = [
        measure(lengths, heads, causal)
        for lengths in LENGTHS
        for heads in HEADS
        for causal in (False, True)
    ]
    sanitizers = {tool: sanitizer_verdict(tool) for tool in ("memcheck", "racecheck")}
    good = all(row_good for _, row_good in measured)
    clean = all(tool_good for _, tool_good in sanitizers.values())
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    device = torch.cuda.get_device_name()
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    lines = [
        "# Results on a GPU",
        "",
        "Written by `tests/gpu/report.py`. Unit-normal inputs, head size 256, batch 1, against",
        "float64. *Worst error* is the largest |error| / max(1, |reference|). The GPU ran the",
        "embedded `compute_70` PTX, compiled by its driver: this shows that results are right, and",
        "says nothing about a V100's speed.",
        "",
        f"- GPU: {device}, compute capability {capability}, driver {driver_version()}",
        f"- torch {torch.__version__}",
        f"- library: sha256 `{digest}`",
        f"- bounds: relative L2 <= {RELATIVE_L2_BOUND:.0e}, worst error <= {WORST_BOUND:.0e},",
        "  both at most twice those of PyTorch's fp16 attention with the same inputs, same bits",
        f"  twice, graph = eager: {'all met' if good else '**NOT met**'}",
        *(f"- {tool} of `tests/gpu/sanitize.py`: {text}" for tool, (text, _) in sanitizers.items()),
        "- again: `VLLM_FA2_SM70_LIBRARY=<library> python3 tests/gpu/report.py`",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + " --- |" * len(COLUMNS),
        *("| " + " | ".join(row) + " |" for row, _ in measured),
        "",
    ]
    output.write_text("\n".join(lines))
    print(f"{output}: {len(measured)} rows, {'all within' if good else 'NOT within'} bounds")
    for tool, (text, _) in sanitizers.items():
        print(f"{tool}: {text}")
    return 0 if good and clean else 1


if __name__ == "__main__":
    sys.exit(main())
