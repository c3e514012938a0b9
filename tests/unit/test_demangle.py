# SPDX-License-Identifier: Apache-2.0
"""Names of kernels that do not depend on the build folder or the demangler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patchctl.formats.demangle import demanglable, keys, normalise, short, unit_of

CASE = Path(__file__).parents[1] / "data" / "cases" / "35"
HASHES = ("b0d63752", "ee47b7c7")


def test_keys_are_the_same_for_two_build_folders() -> None:
    demangled = json.loads((CASE / "expected.json").read_text())["demangled (c++filt)"]
    one = {m: d for m, d in demangled.items() if HASHES[1] not in m}
    other = {m: d for m, d in demangled.items() if HASHES[0] not in m}
    assert set(keys(one).values()) == set(keys(other).values())
    assert "(anonymous namespace)::hidden_kernel(float*)" in keys(one).values()
    assert len(set(keys(one).values())) == len(one)


def test_without_a_demangler_the_path_hash_still_does_not_count() -> None:
    names = [m for m in json.loads((CASE / "expected.json").read_text())["demangled (c++filt)"]]
    for name in names:
        if HASHES[0] in name:
            assert normalise(name) == normalise(name.replace(*HASHES))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "void ap<go(float*, float)::{lambda(int)#2}>(int, float*)",
            "void ap<go(float *, float)::[lambda(int) (instance 2)]>(int, float *)",
        ),
        ("void k<T<(int)128, (bool)1> >(float *)", "k<T<128, true>>(float*)"),
        ("<unnamed>::k(float *)", "(anonymous namespace)::k(float*)"),
        ("_INTERNAL_9511c5c5_8_names_cu__Z2goPff::helper(float, int)", "helper(float, int)"),
    ],
)
def test_two_demanglers_give_one_key(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("mangled", "base", "clone"),
    [
        ("plain_entry", "plain_entry", ""),
        ("__nv_static_29__9511c5c5_8_names_cu__Z2goPff__Z2stPf", "_Z2stPf", ""),
        ("_Z3fooi$1", "_Z3fooi", " [clone 1]"),
        ("_Z3fooi.constprop.0", "_Z3fooi", " [clone constprop.0]"),
    ],
)
def test_linker_names_are_taken_apart(mangled: str, base: str, clone: str) -> None:
    assert demanglable(mangled) == (base, clone)


def test_internal_kernels_of_two_files_get_their_files_name() -> None:
    names = {
        f"_ZN9_GLOBAL__N__{h}_{len(f)}_{f}_1kEv": "(anonymous namespace)::k()"
        for h, f in (("00000001", "a_cu"), ("00000002", "b_cu"))
    }
    assert sorted(keys(names).values()) == [
        "(anonymous namespace)::k() [a_cu]",
        "(anonymous namespace)::k() [b_cu]",
    ]


def test_clones_do_not_collide_with_their_origin() -> None:
    found = keys({"_Z3fooi": "foo(int)", "_Z3fooi$1": "foo(int)"})
    assert sorted(found.values()) == ["foo(int)", "foo(int) [clone 1]"]


def test_short_drops_the_parameter_list_only() -> None:
    assert short("a::k<(anonymous namespace)::T<1>>(void (*)(int), int)") == (
        "a::k<(anonymous namespace)::T<1>>"
    )
    assert short("plain_entry") == "plain_entry"
    assert short("(anonymous namespace)::k(float*)") == "(anonymous namespace)::k"


def test_unit_of_names_the_source_file() -> None:
    assert unit_of("_ZN41_GLOBAL__N__b0d63752_9_lambda_cu_387ca36a1kEv") == "lambda_cu"
    assert unit_of("_Z1kv") == ""
