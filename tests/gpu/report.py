# SPDX-License-Identifier: Apache-2.0
"""Runs everything against a built library and writes the results as Markdown:

VLLM_FA2_SM70_LIBRARY=.../_vllm_fa2_C.abi3.so python3 tests/gpu/report.py [OUTPUT] [PART ...]

OUTPUT is tests/gpu/RESULTS.md when it is not given. Parts: tests sweep dense gqa qsa
sanitizers; all of them when none is given. What OUTPUT says of the other parts stays, if it is of
the same library. Exits with 1 when anything is out of its bounds.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attention
import combinations
import dense_table
import gqa_report
import qsa_table
import sweep_table
import torch
from errors import RELATIVE_L2_BOUND, WORST_BOUND
from markdown import table

HERE = Path(__file__).parent
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
SWEEP = "test_sweep.py"

Part = tuple[list[str], bool]
"""Lines of Markdown, and whether all is well."""


def driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return answer.split()[0]


def tests() -> Part:
    """Every test but the sweep, in a process of its own: a crash there must not end this one."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = Path(folder) / "outcome.xml"
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull,
                f"--rootdir={HERE}", f"--junitxml={outcome}", f"--ignore={HERE / SWEEP}", str(HERE),
            ],
            stdout=sys.stderr,
        )  # fmt: skip
        if not outcome.is_file():
            return [f"The tests ended with exit status {done.returncode}."], False
        cases = list(ElementTree.parse(outcome).iter("testcase"))
    counts: dict[str, Counter[str]] = {}
    failed, skipped = [], Counter[str]()
    for case in cases:
        file = case.get("classname", "").split(".")[-1]
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "passed"
        if "skipped" in kinds:
            kind = "skipped"
            skipped[case.find("skipped").get("message", "")] += 1  # type: ignore[union-attr]
        elif kind == "failed":
            failed.append(f"- **failed**: `{file}::{case.get('name')}`")
        counts.setdefault(file, Counter())[kind] += 1
    columns = ("passed", "failed", "skipped")
    rows = [[f"`{file}.py`", *(str(n[c]) for c in columns)] for file, n in counts.items()]
    lines = table(["tests", *columns], rows) + failed[:40]
    lines += [f"- skipped {count} times: {why}" for why, count in skipped.items()]
    return lines, done.returncode == 0


def sanitizers() -> Part:
    """What compute-sanitizer's tools say of sanitize.py; all of them at the same time."""
    if not shutil.which("compute-sanitizer"):
        return ["Not run: compute-sanitizer is not installed."], True
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(sanitizer, SANITIZERS))
    rows = [row for row, _ in answers]
    good = all(clean for _, clean in answers)
    return table(["tool", "calls of `sanitize.py`", "summary", "verdict", "time"], rows), good


def sanitizer(tool: str) -> tuple[list[str], bool]:
    started = time.monotonic()
    done = subprocess.run(
        ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1",
         sys.executable, str(HERE / "sanitize.py")],
        capture_output=True, text=True,
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    summaries = [line.lstrip("= ") for line in lines if "SUMMARY" in line]
    calls = [line for line in lines if line.endswith("of them wrong")]
    clean = done.returncode == 0 and bool(calls)
    if not clean:
        print(*lines[-60:], done.stderr[-3000:], sep="\n", file=sys.stderr)
    row = [
        tool, calls[-1] if calls else "**ended early**", f"`{'; '.join(summaries) or 'none'}`",
        "clean" if clean else "**not clean**", f"{time.monotonic() - started:.0f} s",
    ]  # fmt: skip
    return row, clean


PARTS: dict[str, tuple[str, Callable[[], Part]]] = {
    "tests": ("Tests", tests),
    "sweep": ("Sweep", sweep_table.measure),
    "dense": ("Dense attention over head sizes", dense_table.measure),
    "gqa": ("Long prefills (GQA)", gqa_report.measure),
    "qsa": ("QSA page4", qsa_table.measure),
    "sanitizers": ("compute-sanitizer", sanitizers),
}


def library_digest() -> str:
    library = attention.library_path()
    return hashlib.sha256(library.read_bytes()).hexdigest() if library else "unknown"


def kept(output: Path) -> dict[str, str]:
    """The sections of an earlier report on the same library, by title."""
    text = output.read_text() if output.is_file() else ""
    if library_digest() not in text:
        return {}
    sections = text.split("\n## ")[1:]
    return {section.partition(":")[0]: f"## {section.rstrip()}\n" for section in sections}


def head() -> list[str]:
    gpu = attention.why_no_gpu()
    if gpu is None:
        capability = ".".join(map(str, torch.cuda.get_device_capability()))
        gpu = f"{torch.cuda.get_device_name()}, compute capability {capability}"
    return [
        "# Results on a GPU",
        "",
        "Written by `tests/gpu/report.py`. Against float64, unit-normal inputs where nothing else",
        "is said. *Worst error* is the largest |error| / max(1, |reference|). The GPU ran the",
        "embedded `compute_70` PTX, compiled by its driver: this shows that results are right, and",
        "says nothing about a V100's speed.",
        "",
        f"- GPU: {gpu}, driver {driver_version()}",
        f"- torch {torch.__version__}",
        f"- library: sha256 `{library_digest()}`",
        f"- seed of the sweep: {combinations.SEED}",
        f"- bounds: relative L2 <= {RELATIVE_L2_BOUND:.0e}, worst error <= {WORST_BOUND:.1e},",
        "  both at most twice those of PyTorch's fp16 attention with the same inputs",
        "- again: `VLLM_FA2_SM70_LIBRARY=<library> python3 tests/gpu/report.py`",
    ]


def main() -> int:
    reason = attention.why_not_loadable()
    if attention.DEVICE == "cuda":
        reason = reason or attention.why_no_gpu()
    if reason:
        print(f"cannot measure: {reason}", file=sys.stderr)
        return 1
    attention.load_library()
    arguments = sys.argv[1:]
    output = Path(arguments[0]) if arguments else HERE / "RESULTS.md"
    unknown = sorted(set(arguments[1:]) - set(PARTS))
    if unknown:
        print(f"unknown part {unknown[0]}; parts are: {' '.join(PARTS)}", file=sys.stderr)
        return 2
    sections, all_good = kept(output), True
    for name in arguments[1:] or PARTS:
        title, measure = PARTS[name]
        started = time.monotonic()
        lines, good = measure()
        all_good &= good
        verdict = "good" if good else "**NOT good**"
        print(f"{name}: {verdict}, {time.monotonic() - started:.0f} s", flush=True)
        text = "\n".join([f"## {title}: {verdict}", "", *lines]).rstrip()
        sections[title] = f"{text}\n"
        known = [sections[title] for title, _ in PARTS.values() if title in sections]
        output.write_text("\n".join([*head(), "", *known]))  # what there is, after each
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
