# SPDX-License-Identifier: Apache-2.0
"""What torch makes of a schema is what our parser makes of its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchctl.formats.findings import Severity
from patchctl.formats.schemas import compare_schema, read_schemas
from patchctl.formats.schematext import Schema, parse_schema
from patchctl.probes.schemas import argument
from patchctl.stages.libraryprobe import argument_of

ROOT = Path(__file__).parents[2]
PAIRS = (ROOT / "tests" / "data" / "cases" / "38" / "pairs.tsv").read_text().splitlines()[1:]
LOCKED = read_schemas((ROOT / "build" / "sm70.schemas.toml").read_bytes(), where="x")


def through_torch(text: str) -> Schema:
    """The schema that a library registers with this text, read as `verify` reads it."""
    import torch

    schema = torch._C.parse_schema(text)
    known: dict[str, str] = {}
    arguments = [argument_of(argument(a), known) for a in schema.arguments]
    returns = [argument_of(argument(r), known) for r in schema.returns]
    name = schema.name.rpartition("::")[2]
    return Schema(name, schema.overload_name, tuple(arguments), tuple(returns))


@pytest.mark.parametrize(
    "text",
    [
        *(line.split("\t")[0] for line in PAIRS),
        *(o.schema for o in LOCKED.operators),
        "f(SymInt n, SymInt[] m, SymInt? o, Scalar g, Generator? gen, int[2] p, int[2]? r) -> ()",
        "f(Dict(str, Tensor) d, (int, Tensor) t, Tensor?[] l, bool[3] b, Device e) -> Tensor?",
        "f(Tensor(a!) x, Tensor(b) y) -> (Tensor(a!), Tensor(b))",
        "f(Tensor x, *, ScalarType? d=None, int[] z=[1, 2], float f=-1, bool b=True) -> int",
        "f.out(Tensor x, str s='a\"b', float[]? ff=None, int[2] p=3) -> (Tensor one, int two)",
        "f(Tensor(a -> *) x, Tensor(a|b) y, MemoryFormat? m=contiguous_format) -> ()",
    ],
)
def test_torch_and_our_parser_read_the_same(text: str) -> None:
    assert compare_schema(parse_schema(text), through_torch(text)) == []


# torch cannot read `Tensor($0! -> )`, which it prints itself
@pytest.mark.parametrize("line", [line for line in PAIRS if "$" not in line])
def test_case_38_has_the_same_verdicts_through_torch(line: str) -> None:
    declared, printed, verdict = line.split("\t")
    worst = {f.severity for f in compare_schema(parse_schema(declared), through_torch(printed))}
    if verdict == "same":
        assert worst == set()
    elif verdict == "different":
        assert worst == {Severity.ERROR}
    else:
        assert worst == {Severity.WARNING}
