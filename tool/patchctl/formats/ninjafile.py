# SPDX-License-Identifier: Apache-2.0
"""The text of ``build.ninja``: one object a translation unit, one shared object.

Ninja runs in the build folder and reaches the source through a relative path, so that neither
folder's name gets into a command that ends up in an object.
"""

from __future__ import annotations

import hashlib
import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ninja.ninja_syntax import Writer

from patchctl.formats.target import Target

LINK_FOLDER = "link"
OBJECT_FOLDER = "obj"

NAMED_UNIT_FILE = "named_unit.h"
NAMED_UNIT = """\
// Written by patchctl: an external name for each unit of kernels. nvcc makes the names of its
// internal symbols from one; where there is none, from the time and the process.
extern const char PATCHCTL_UNIT __attribute__((visibility("hidden"))) = 0;
"""
"""What the file of that name in the build folder must hold: kernels include it first."""


@dataclass(frozen=True)
class Tools:
    """What the commands name: programs, include and library folders.

    `source` is the replayed tree, relative to the build folder. `kernel_key` and `host_key`
    stand for the content of compilers and headers: when one changes, so does the command, and
    ninja compiles again whatever the time stamps say.
    """

    source: str
    nvcc: str
    cxx: str
    cuda_include: str
    cuda_lib: str
    torch_include: str
    torch_lib: str
    python_include: str
    kernel_key: str
    host_key: str


@dataclass(frozen=True)
class Sources:
    """The translation units, as paths in the replayed tree; generated ones in the build folder.

    `generated` gives for each of those the folder of the tree that its template is in.
    """

    kernels: tuple[str, ...]
    hosts: tuple[str, ...]
    generated: Mapping[str, str] = field(default_factory=dict)

    @property
    def objects(self) -> list[str]:
        """What is linked."""
        return [object_of(unit) for unit in (*self.kernels, *self.hosts)]

    @property
    def logs(self) -> list[str]:
        """What ptxas says of the kernels."""
        return [ptxas_log_of(unit) for unit in self.kernels]


def object_of(unit: str) -> str:
    """The object of a translation unit, in the build folder."""
    return f"{OBJECT_FOLDER}/{unit}.o"


def ptxas_log_of(unit: str) -> str:
    """What ptxas said when that object was compiled."""
    return f"{object_of(unit)}.ptxas.log"


def linked_file(target: Target) -> str:
    """Where the linker writes; what is checked and then published."""
    return f"{LINK_FOLDER}/{target.filename}"


def ninja_text(target: Target, sources: Sources, tools: Tools) -> str:
    """The build file of `target`."""
    text = io.StringIO()
    ninja = Writer(text)  # type: ignore[arg-type]  # it only calls write
    ninja.comment(f"Written by patchctl from build/{target.name}.toml; changes are lost.")
    ninja.variable("ninja_required_version", "1.8")
    ninja.newline()
    ninja.rule(
        "kernel",
        _kernel_command(target, tools),
        description="nvcc $unit",
        depfile="$out.d",
        deps="gcc",
    )
    ninja.rule(
        "host",
        _host_command(target, tools),
        description="c++ $unit",
        depfile="$out.d",
        deps="gcc",
    )
    ninja.rule("link", _link_command(target, tools), description="link $out")
    ninja.newline()
    for rule, units in (("kernel", sources.kernels), ("host", sources.hosts)):
        for unit in units:
            ninja.build(
                [object_of(unit)],
                rule,
                [unit if unit in sources.generated else f"{tools.source}/{unit}"],
                implicit_outputs=[ptxas_log_of(unit)] if rule == "kernel" else None,
                variables=dict(_variables(rule, unit, sources, tools)),
            )
    ninja.build([linked_file(target)], "link", sources.objects)
    ninja.default(linked_file(target))
    return text.getvalue()


def _variables(rule: str, unit: str, sources: Sources, tools: Tools) -> Iterator[tuple[str, str]]:
    yield "unit", _literal(unit)
    if rule == "kernel":
        yield "name", f"unit_{hashlib.sha256(unit.encode()).hexdigest()[:16]}"
    folder = sources.generated.get(unit)
    if folder is not None:
        # it includes what is beside its template, before headers of that name in other folders
        flag = f"-iquote{tools.source}/{folder}"
        yield "beside", _words([f"-Xcompiler={flag}" if rule == "kernel" else flag])


def _kernel_command(target: Target, tools: Tools) -> str:
    number = target.ptx
    nvcc = [
        tools.nvcc,
        "-ccbin",
        tools.cxx,
        *target.kernels.flags,
        "-gencode",
        f"arch={number},code=[{target.arch},{number}]",
        "-Xptxas",
        "-v",
        "--objdir-as-tempdir",
        "-Xcompiler",
        "-fPIC",
        *(f"-I{tools.source}/{folder}" for folder in target.kernels.include),
    ]
    # The names of internal symbols carry a hash of the unit's absolute path: state a fixed one;
    # and a hash of an external name or, in a unit that has only templates, a process's number.
    path = "--orig_src_path_name=/$unit"
    named = f"-DPATCHCTL_UNIT=$name -include {NAMED_UNIT_FILE}"
    command = (
        f"{_words(nvcc)} $beside {named} -Xcudafe {path} -Xcicc {path} "
        "-MD -MF $out.d -c $in -o $out"
    )
    log = "$out.ptxas.log"
    return (
        f"if {command} >{log}.tmp 2>&1; then mv -f {log}.tmp {log}; grep -i warning {log} || :; "
        f"else code=$$?; cat {log}.tmp; rm -f {log}.tmp; exit $$code; fi "
        f"# {_literal(tools.kernel_key)}"
    )


def _host_command(target: Target, tools: Tools) -> str:
    folders = {
        f"{tools.source}/": "",
        f"{tools.torch_include}/": "torch/",
        f"{tools.cuda_include}/": "cuda/",
        f"{tools.python_include}/": "python/",
    }
    cxx = [
        tools.cxx,
        *target.host.flags,
        "-fPIC",
        f"-DTORCH_TARGET_VERSION={target.abi.torch_macro}",
        f"-DPy_LIMITED_API={target.abi.python_macro}",
        *(f"-I{tools.source}/{folder}" for folder in target.host.include),
        *(
            f"-isystem{folder}"
            for folder in (tools.torch_include, tools.cuda_include, tools.python_include)
        ),
        # __FILE__ in an error message must not depend on where things are installed
        *(f"-ffile-prefix-map={old}={new}" for old, new in folders.items()),
    ]
    return f"{_words(cxx)} $beside -MD -MF $out.d -c $in -o $out # {_literal(tools.host_key)}"


def _link_command(target: Target, tools: Tools) -> str:
    flags = [
        f"-L{tools.cuda_lib}",
        f"-L{tools.torch_lib}",
        *target.link.flags,
        "-Wl,--build-id=none",
        *(f"-l{library}" for library in target.link.libraries),
    ]
    return (
        f"{_words([tools.cxx])} -shared -o $out.tmp $in {_words(flags)} && mv -f $out.tmp $out "
        f"# {_literal(tools.host_key)}"
    )


def _words(words: Sequence[str]) -> str:
    """Words for the shell that ninja starts."""
    return _literal(shlex.join(words))


def _literal(text: str) -> str:
    return text.replace("$", "$$")
