# SPDX-License-Identifier: Apache-2.0
"""Run as ``PYTHON -c SOURCE`` with a request on stdin: what one library registers.

The request is ``{"library", "module", "namespace", "expected": {name: schema text}}``. Prints one
JSON object a line: ``{"step": ...}`` before each step, because a wrong library kills the process,
and at the end ``{"torch", "operators"}``.
"""

import json
import sys
from typing import Any

KEYS = ("CPU", "CUDA", "Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd")


def say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def type_text(kind: Any) -> str:
    """A type as schemas spell it; str() hides SymInt."""
    name = kind.kind()
    if name == "OptionalType":
        return type_text(kind.getElementType()) + "?"
    if name == "ListType":
        return type_text(kind.getElementType()) + "[]"
    if name == "TupleType":
        return "(" + ", ".join(type_text(k) for k in kind.elements()) + ")"
    if name == "DictType":
        return "Dict(" + type_text(kind.getKeyType()) + ", " + type_text(kind.getValueType()) + ")"
    special = {"SymIntType": "SymInt", "NumberType": "Scalar"}
    return special.get(name, str(kind))


def argument(value: Any) -> dict[str, Any]:
    alias = value.alias_info
    default = value.default_value if value.has_default_value() else None
    if not isinstance(default, (bool, int, float, str, list, type(None))):
        default = str(default)
    return {
        "name": value.name,
        "type": type_text(value.real_type),
        "length": value.N,
        "before": sorted(alias.before_set) if alias else [],
        "after": sorted(alias.after_set) if alias else [],
        "mutable": bool(alias and alias.is_write),
        "has_default": value.has_default_value(),
        "default": default,
        "kwarg_only": value.kwarg_only,
    }


def main() -> None:
    request = json.load(sys.stdin)
    say({"step": "import torch"})
    import torch

    core: Any = torch._C
    # first torch: the library needs libtorch in the process
    say({"step": "load the library"})
    torch.ops.load_library(request["library"])
    say({"step": "import the module"})
    import importlib.machinery
    import importlib.util

    loader = importlib.machinery.ExtensionFileLoader(request["module"], request["library"])
    spec = importlib.machinery.ModuleSpec(request["module"], loader, origin=loader.path)
    importlib.util.module_from_spec(spec)
    say({"step": "read the schemas"})
    prefix = request["namespace"] + "::"
    operators = {}
    for full in core._dispatch_get_all_op_names():
        if not full.startswith(prefix):
            continue
        name, _, overload = full.partition(".")
        schema = core._get_schema(name, overload)
        short = full[len(prefix) :]
        expected = request["expected"].get(short)
        compatible, refused = None, ""
        if expected is not None:
            try:
                old = core.parse_schema(prefix + expected)
                compatible = bool(schema.is_backward_compatible_with(old))
            except RuntimeError as error:
                # in front of some reasons torch asks for a bug report
                refused = str(error).splitlines()[0].rpartition("report a bug to PyTorch. ")[2]
        has = core._dispatch_has_kernel_for_dispatch_key
        operators[short] = {
            "arguments": [argument(a) for a in schema.arguments],
            "returns": [argument(a) for a in schema.returns],
            "dispatch": [key for key in KEYS if has(full, key)],
            "compatible": compatible,
            "refused": refused,
        }
    say({"torch": str(torch.__version__), "operators": operators})


if __name__ == "__main__":
    main()
