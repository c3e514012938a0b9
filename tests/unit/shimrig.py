# SPDX-License-Identifier: Apache-2.0
"""The shim in a fresh process, with operators that need no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]

# the operators, registered with kernels that anyone can check: the result is 2 q; k and v are
# appended to the caches
OPERATORS = """
import torch
from vllm_fa2_sm70 import operators

registry = torch.library.Library("_vllm_fa2_C", "DEF")
for name, schema in operators.SCHEMAS.items():
    registry.define(name + schema)

def varlen_fwd(q, k, v, out, *rest):
    seen.append(rest)
    out = torch.empty_like(q) if out is None else out
    return [out.copy_(2 * q), q.new_zeros((q.shape[1], q.shape[0]), dtype=torch.float32)]

def fwd_kvcache(q, kcache, vcache, *rest):
    seen.append(rest)
    k, v, lengths = rest[:3]
    for i in range(0 if k is None else len(k)):
        kcache[i, lengths[i] : lengths[i] + k.shape[1]] = k[i]
        vcache[i, lengths[i] : lengths[i] + k.shape[1]] = v[i]
    out = torch.empty_like(q) if rest[9] is None else rest[9]
    batch, tokens, heads, _ = q.shape
    return [out.copy_(2 * q), q.new_zeros((batch, heads, tokens), dtype=torch.float32)]

seen = []
registry.impl("varlen_fwd", varlen_fwd, "CPU")
registry.impl("fwd_kvcache", fwd_kvcache, "CPU")
operators._loaded = None
found = operators.load()
assert (found.path, found.reason, found.adopted) == (None, "", True), found

# a CPU stands for the GPU here
from vllm_fa2_sm70 import describe
describe.capability_of = lambda device: (7, 0)
from vllm_fa2_sm70 import *

q = torch.randn(5, 4, 256, dtype=torch.float16)
k = torch.randn(7, 2, 256, dtype=torch.float16)
at_q, at_k = torch.tensor([0, 5], dtype=torch.int32), torch.tensor([0, 7], dtype=torch.int32)
"""


# the GQA operators too: the result is 3 q. Memory is the host's, until `fake` says that it ends
GQA = (
    """
import torch
from vllm_fa2_sm70 import operators
library = torch.library.Library("_vllm_fa2_C", "DEF")
for name, schema in operators.OPTIONAL.items():
    library.define(name + schema)

def prefill(name):
    def operator(q, k, v, out, lse, *rest):
        called.append(name)
        fake.launch()
        out.copy_(3 * q)
        lse.fill_(1)
    return operator

called = []
for name in operators.OPTIONAL:
    library.impl(name, prefill(name), "CPU")
"""
    + OPERATORS.replace('torch.library.Library("_vllm_fa2_C", "DEF")', "library")
    + """
from tests.unit.fakecuda import FakeCuda, Stream
from vllm_fa2_sm70 import buffers, gqa_serve
from vllm_fa2_sm70.preflight import HEADROOM, MIB

class Cuda(FakeCuda):
    def allocate(self, size):
        _, stream = super().allocate(size)
        return torch.empty(size, dtype=torch.uint8), stream

fake = Cuda()
buffers.TorchCuda = lambda device: fake
gqa_serve.multiprocessors = lambda device: 80
q = torch.randn(8000, 6, 256).half()
k = torch.zeros(40_000, 1, 256).half()
at_q, at_k = torch.tensor([0, 8000]).int(), torch.tensor([0, 40_000]).int()

def attend(q, k, at_q, at_k, out=None, **other):
    return flash_attn_varlen_func(
        q, k, k, q.shape[0], at_q, k.shape[0], at_k, causal=True, out=out,
        return_softmax_lse=True, **other)
"""
)


def python(code: str, **environment: str) -> str:
    """What a fresh process prints; its end must be a good one."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_F")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=env | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
