# SPDX-License-Identifier: Apache-2.0
"""Run as ``PYTHON -c SOURCE``: which torch an interpreter imports, as one line of JSON."""

import json

import torch

print(json.dumps({"version": str(torch.__version__), "cuda": torch.version.cuda or ""}))
