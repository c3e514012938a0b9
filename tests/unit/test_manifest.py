# SPDX-License-Identifier: Apache-2.0
"""The overlay's manifest: read strictly, written readably."""

from __future__ import annotations

import json

import pytest

from patchctl.errors import UsageError
from patchctl.formats.manifest import (
    FileState,
    Manifest,
    State,
    manifest_bytes,
    read_manifest,
)

FILE = FileState(name="a.so", sha256="0" * 64, mode=0o755, uid=1, gid=2, mtime_ns=3, link="x")
MANIFEST = Manifest(
    version=1,
    tool="0.1.0",
    state=State.INSTALLED,
    package="vllm.vllm_flash_attn",
    folder="/env/vllm/vllm_flash_attn",
    library=FILE,
    original=(FILE,),
)


def test_manifest_reads_back() -> None:
    data = manifest_bytes(MANIFEST)
    assert read_manifest(data, where="m") == MANIFEST
    assert data.count(b"\n") > 10


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "done"}, "'done'"),
        ({"extra": 1}, "`extra`"),
        ({"version": 2}, "has version 2; this patchctl reads 1"),
        ({"original": [{}]}, "missing required field"),
    ],
)
def test_wrong_manifest_is_refused_by_name(change: dict[str, object], said: str) -> None:
    data = json.dumps(json.loads(manifest_bytes(MANIFEST)) | change).encode()
    with pytest.raises(UsageError, match=r"^`env/manifest\.json` ") as caught:
        read_manifest(data, where="env/manifest.json")
    assert said in caught.value.message


@pytest.mark.parametrize("data", [b"", b"{", manifest_bytes(MANIFEST)[:100], b"\xff\xfe"])
def test_cut_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match="is damaged"):
        read_manifest(data, where="manifest.json")
