# SPDX-License-Identifier: Apache-2.0
"""Only the stable ABI may be left undefined."""

from __future__ import annotations

from pathlib import Path

from patchctl.formats.documents import read_toml
from patchctl.formats.elf import Dynamic, Symbol
from patchctl.formats.symbols import AbiRules, check_exports, check_symbols, parse_shims

ABI_FILE = Path(__file__).parents[2] / "build" / "sm70.abi.toml"
RULES = read_toml(ABI_FILE.read_bytes(), AbiRules, where="abi")

HEADER = """\
#ifndef SHIM
#if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_10_0
// torch_in_a_comment( is no declaration
AOTI_TORCH_EXPORT AOTITorchError torch_list_size(
    StableListHandle handle);
AOTI_TORCH_EXPORT AOTITorchError
torch_call(int a);
#ifdef USE_CUDA
AOTI_TORCH_EXPORT int torch_cuda_thing(int a);
#endif // USE_CUDA
#endif
#if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_13_0
AOTI_TORCH_EXPORT int torch_new(int a);
#endif
AOTI_TORCH_EXPORT int aoti_torch_old(int a);
#endif
"""
SHIMS = parse_shims(HEADER)


def dynamic(*undefined: Symbol, needed: tuple[str, ...] = (), runpath: str = "") -> Dynamic:
    """A library that leaves `undefined` to others."""
    return Dynamic(needed, (runpath,) if runpath else (), undefined, frozenset({"PyInit_m"}))


def messages(library: Dynamic, demangled: dict[str, str] | None = None) -> list[str]:
    """The findings about `library`, as text."""
    findings = check_symbols(library, RULES, SHIMS, "2.10", demangled or {})
    return [f"{f.subject}: {f.message}" for f in findings]


def test_shim_headers_give_the_version_of_each_function() -> None:
    assert SHIMS == {
        "torch_list_size": (2, 10),
        "torch_call": (2, 10),
        "torch_cuda_thing": (2, 10),
        "torch_new": (2, 13),
        "aoti_torch_old": (0, 0),
    }


def test_stable_shims_runtime_and_python_are_allowed() -> None:
    library = dynamic(
        Symbol("torch_list_size"),
        Symbol("aoti_torch_old"),
        Symbol("PyModule_Create2"),
        Symbol("memcpy", "GLIBC_2.14"),
        Symbol("_ZNSt6localeC1Ev", "GLIBCXX_3.4"),
        Symbol("cudaLaunchKernel", "libcudart.so.12"),
        Symbol("__gmon_start__"),
        needed=("libtorch_cpu.so", "libcudart.so.12", "libc.so.6"),
        runpath="$ORIGIN/../torch/lib",
    )
    assert messages(library) == []


def test_torchs_cpp_interface_is_refused_by_its_demangled_name() -> None:
    name = "_ZN2at4_ops5empty4callEv"
    (text,) = messages(dynamic(Symbol(name)), {name: "at::_ops::empty::call()"})
    assert text.startswith("at::_ops::empty::call(): ")
    assert "C++ interface" in text


def test_a_shim_newer_than_the_target_is_refused() -> None:
    (text,) = messages(dynamic(Symbol("torch_new")))
    assert "2.13 and later" in text
    assert "must serve 2.10" in text


def test_a_shim_that_no_stable_header_declares_is_refused() -> None:
    (text,) = messages(dynamic(Symbol("aoti_torch_cpu_abs")))
    assert "not in torch's stable headers" in text


def test_unknown_names_and_versions_are_refused() -> None:
    texts = messages(dynamic(Symbol("PyDict_New"), Symbol("x", "LIBFOO_1")))
    assert [t.split(":")[0] for t in texts] == ["PyDict_New", "x"]


def test_private_torch_libraries_and_absolute_paths_are_refused() -> None:
    texts = messages(dynamic(needed=("libc10.so", "libtorch_cuda.so"), runpath="/home/me/torch"))
    assert [t.split(":")[0] for t in texts] == ["libc10.so", "libtorch_cuda.so", "/home/me/torch"]


def test_a_missing_module_entry_is_named() -> None:
    assert check_exports(dynamic(), "m") == []
    (finding,) = check_exports(dynamic(), "other")
    assert finding.subject == "PyInit_other"
    assert "PyInit_m" in finding.message
