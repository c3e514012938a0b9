# SPDX-License-Identifier: Apache-2.0
"""The shim in a fresh process, with operators that need no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

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
assert operators.load() == operators.Library(None, "", adopted=True), operators.load()

# a CPU stands for the GPU here
from vllm_fa2_sm70 import describe
describe.capability_of = lambda device: (7, 0)
from vllm_fa2_sm70 import *

q = torch.randn(5, 4, 256, dtype=torch.float16)
k = torch.randn(7, 2, 256, dtype=torch.float16)
at_q, at_k = torch.tensor([0, 5], dtype=torch.int32), torch.tensor([0, 7], dtype=torch.int32)
"""


def python(code: str, **environment: str) -> str:
    """What a fresh process prints; its end must be a good one."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_FA2_SM70")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=env | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
