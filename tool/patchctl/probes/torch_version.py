# SPDX-License-Identifier: Apache-2.0
"""Run as ``PYTHON -c SOURCE``: which torch an interpreter imports, as one line of JSON."""

import json
import sys

if sys.path[:1] == [""]:
    del sys.path[0]

import torch

print(json.dumps({"version": str(torch.__version__), "cuda": torch.version.cuda or ""}))
