# SPDX-License-Identifier: Apache-2.0
"""What cuobjdump prints."""

from __future__ import annotations

from pathlib import Path

from patchctl.formats.cuobjdump import (
    Embedded,
    parse_embedded,
    parse_resource_usage,
    parse_thread_limits,
)
from patchctl.formats.target import read_target
from patchctl.stages.verify import check_architectures

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"


def test_resource_usage_is_by_function_and_architecture() -> None:
    text = (DATA / "cases" / "34" / "nvcc12.4-two-archs.resource-usage.txt").read_text()
    found = {(f.name, f.arch): f for f in parse_resource_usage(text)}
    assert len(found) == 8
    small = "_ZN4demo10fwd_kernelINS_6TraitsILi64ELb0EEELb0EEEvPKfPfi"
    assert found[small, "sm_70"].registers == 25
    assert found[small, "sm_80"].registers == 21
    assert found[small, "sm_70"].static_shared == 8448
    assert all(f.is_kernel for f in found.values())


def test_unknown_stack_is_none_not_zero() -> None:
    text = (DATA / "cases" / "35" / "callee.resource-usage.txt").read_text()
    stacks = {f.name: f.stack for f in parse_resource_usage(text)}
    assert stacks == {"last_entry": 0, "_Z13calls_helpersPfi": None, "plain_entry": 0}


def test_linked_device_functions_are_no_kernels() -> None:
    text = (DATA / "cuobjdump" / "relocatable.resource-usage.txt").read_text()
    kernels = {f.name: f.is_kernel for f in parse_resource_usage(text)}
    assert kernels["_Z4divsPdi"]
    assert not kernels["__cuda_sm20_div_rn_f64_full"]


def test_embedded_images_are_counted_by_architecture() -> None:
    embedded = parse_embedded((DATA / "cuobjdump" / "two-archs.list.txt").read_text())
    assert embedded.sass == {"sm_70": 1, "sm_80": 1}
    assert embedded.ptx == {"compute_70": 1}


def test_a_file_without_device_code_has_nothing_embedded() -> None:
    embedded = parse_embedded("cuobjdump info    : File 'x.so' does not contain device code\n")
    assert (embedded.sass, embedded.ptx) == ({}, {})


def test_launch_bounds_are_read_and_missing_ones_are_not_invented() -> None:
    limits = parse_thread_limits((DATA / "cuobjdump" / "launch-bounds.elf.txt").read_text())
    assert limits == {
        "_ZN4demo10fwd_kernelILi256ELb1EEEvPKfPfi": 256,
        "_ZN4demo10fwd_kernelILi256ELb0EEEvPKfPfi": 256,
    }


def test_ptx_must_be_beside_every_image_of_sass() -> None:
    target = read_target((ROOT / "build" / "sm70.toml").read_bytes(), name="sm70", where="x")
    assert check_architectures(Embedded({"sm_70": 2}, {"compute_70": 2}), target) == []
    (finding,) = check_architectures(Embedded({"sm_70": 2}, {"compute_70": 1}), target)
    assert "for 2 of SASS: a unit was compiled without the other" in finding.message
