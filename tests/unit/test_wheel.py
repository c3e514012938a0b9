# SPDX-License-Identifier: Apache-2.0
"""Wheels: bytes that repeat, and that installers accept."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from installer.sources import WheelFile
from packaging.metadata import parse_email
from packaging.utils import parse_wheel_filename

from patchctl.formats.wheel import Metadata, WheelName, platform_tag, wheel_bytes

NAME = WheelName("vllm_fa2_sm70", "0.1.0", "cp310", "abi3", "manylinux_2_34_x86_64")
METADATA = Metadata(
    name="vllm-fa2-sm70",
    version="0.1.0",
    summary="FlashAttention-2",
    license="Apache-2.0",
    requires_python=">=3.10",
    requires=("torch>=2.10",),
    description="one line",
)
FILES = {"vllm_fa2_sm70/b.py": b"b = 1\n", "vllm_fa2_sm70/a,b.py": b"", "top.py": b"\0\xff"}


def test_same_files_give_same_bytes_in_any_order() -> None:
    backwards = dict(reversed(FILES.items()))
    assert wheel_bytes(NAME, METADATA, FILES) == wheel_bytes(NAME, METADATA, backwards)


def test_members_have_no_time_and_no_odd_mode() -> None:
    archive = zipfile.ZipFile(io.BytesIO(wheel_bytes(NAME, METADATA, FILES)))
    assert {m.date_time for m in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert {m.external_attr >> 16 for m in archive.infolist()} == {0o100644}
    assert [m for m in archive.namelist() if "dist-info" not in m] == sorted(FILES)


def test_installer_accepts_record_and_content(tmp_path: Path) -> None:
    path = tmp_path / NAME.filename
    path.write_bytes(wheel_bytes(NAME, METADATA, FILES))
    with WheelFile.open(path) as wheel:
        wheel.validate_record(validate_contents=True)
        found = {row[0][0]: stream.read() for row in wheel.get_contents() for stream in [row[1]]}
    assert {name: found[name] for name in FILES} == FILES


def test_file_name_and_metadata_read_back() -> None:
    name, version, _, tags = parse_wheel_filename(NAME.filename)
    assert (name, str(version)) == ("vllm-fa2-sm70", "0.1.0")
    assert {str(tag) for tag in tags} == {NAME.tag}
    raw, unread = parse_email(METADATA.text())
    assert unread == {}
    assert raw["requires_dist"] == ["torch>=2.10"]
    assert raw["description"] == "one line\n"


@pytest.mark.parametrize(
    ("versions", "tag"),
    [
        (["GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.4", "GLIBCXX_3.4.30"], "manylinux_2_34_x86_64"),
        (["GLIBC_2.9", "GLIBC_2.17"], "manylinux_2_17_x86_64"),
        (["GLIBC_2.2.5", ""], "manylinux_2_5_x86_64"),
        (["CXXABI_1.3", "GLIBC_PRIVATE"], "linux_x86_64"),
        ([], "linux_x86_64"),
    ],
)
def test_platform_tag_is_the_highest_glibc_needed(versions: list[str], tag: str) -> None:
    assert platform_tag(versions, "x86_64") == tag
