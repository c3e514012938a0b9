# SPDX-License-Identifier: Apache-2.0
"""What is read out of ninja's output."""

from __future__ import annotations

import pytest

from patchctl.formats.ninjalog import (
    SHOWN_LINES,
    Status,
    count_warnings,
    first_failure,
    read_status,
)

FAILED = """\
[1/4] c++ csrc/h.cpp
FAILED: [code=2] obj/k/a.cu.o obj/k/a.cu.o.ptxas.log
if nvcc -c a.cu -o obj/k/a.cu.o; then mv x y; fi
a.cu(3): warning #177-D: variable "x" was declared but never referenced
a.cu(7): error: identifier "undeclared" is undefined

1 error detected in the compilation of "a.cu".
[2/4] c++ csrc/i.cpp
FAILED: obj/k/b.cu.o
nvcc -c b.cu
b.cu(1): error: a consequence
ninja: build stopped: subcommand failed.
""".splitlines()


def block(code: str, *text: str) -> list[str]:
    return [f"FAILED: {code}obj/k/a.cu.o", "nvcc -c a.cu", *text, "ninja: build stopped."]


def test_status_lines_and_nothing_else_are_progress() -> None:
    assert read_status("[12/340] nvcc csrc/a.cu") == Status(12, 340, "nvcc csrc/a.cu")
    assert read_status("a.cu(7): error: [1/2] is no status") is None


def test_the_first_failed_block_is_taken_without_its_neighbours() -> None:
    failure = first_failure(FAILED)
    assert failure is not None
    assert (failure.output, failure.code) == ("obj/k/a.cu.o", 2)
    assert failure.command.startswith("if nvcc")
    assert failure.text[-1] == '1 error detected in the compilation of "a.cu".'
    assert 'error: identifier "undeclared"' in "\n".join(failure.shown())
    assert "consequence" not in "\n".join(failure.shown())
    assert not failure.out_of_memory


def test_the_first_error_is_shown_even_when_a_flood_follows() -> None:
    notes = [f"note {i}" for i in range(200)]
    failure = first_failure(block("", *notes, "x.h:1:2: error: the cause", *notes))
    assert failure is not None
    assert "x.h:1:2: error: the cause" in failure.shown()
    assert len(failure.shown()) == SHOWN_LINES


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("[code=137] ", ""),
        ("", "g++: fatal error: Killed signal terminated program cc1plus"),
        ("", "nvcc error   : 'cicc' died due to signal 9 (Kill signal)"),
        ("", "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes"),
        ("", "Killed"),
    ],
)
def test_a_killed_compiler_is_out_of_memory(code: str, line: str) -> None:
    failure = first_failure(block(code, line))
    assert failure is not None
    assert failure.out_of_memory


@pytest.mark.parametrize(
    "line",
    [
        'a.cu(7): error: name followed by "SkilledWorker" is ambiguous',
        "ptxas fatal   : Unresolved extern function",
        "nvcc error   : 'ptxas' died due to signal 11 (Invalid memory reference)",
    ],
)
def test_other_failures_are_not_called_out_of_memory(line: str) -> None:
    failure = first_failure(block("[code=255] ", line))
    assert failure is not None
    assert not failure.out_of_memory


def test_a_full_disk_is_told_apart() -> None:
    failure = first_failure(block("", "/tmp/x.o: final close failed: No space left on device"))
    assert failure is not None
    assert failure.disk_full


def test_a_log_without_failure_has_none() -> None:
    assert first_failure(["ninja: error: 'x.cu', needed by 'x.o', missing"]) is None


def test_warnings_of_all_three_compilers_are_counted_and_nothing_else() -> None:
    lines = [
        'x.h:7: warning: "A" redefined',
        'a.cu(3): warning #177-D: variable "x" was declared but never referenced',
        "ptxas warning : Registers are spilled to local memory in function 'f'",
        "[1/2] c++ warning.cpp",
        "x.h:8: note: a warning: no",
        "    7 | // warning: text",
    ]
    assert count_warnings(lines) == 3
