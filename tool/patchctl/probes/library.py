# SPDX-License-Identifier: Apache-2.0
"""Run as ``PYTHON -c SOURCE LIBRARY``: load one operator library and list its operators."""

import json
import sys

import torch

torch.ops.load_library(sys.argv[1])
names = torch._C._dispatch_get_all_op_names()
print(json.dumps({"operators": sorted(n for n in names if n.startswith("_vllm_fa2_C::"))}))
