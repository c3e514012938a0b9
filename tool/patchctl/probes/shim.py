# SPDX-License-Identifier: Apache-2.0
"""Run as ``PYTHON -c SOURCE``: what importing the shim gives, as one line of JSON."""

import hashlib
import json

import vllm_fa2_sm70

library = vllm_fa2_sm70.library
digest = ""
if library.path is not None:
    digest = hashlib.sha256(library.path.read_bytes()).hexdigest()
print(
    json.dumps(
        {
            "package": vllm_fa2_sm70.__file__,
            "path": str(library.path or ""),
            "sha256": digest,
            "load_error": library.reason,
            "unusable": vllm_fa2_sm70.fa_version_unsupported_reason(2) or "",
        }
    )
)
