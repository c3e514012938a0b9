# SPDX-License-Identifier: Apache-2.0
"""The gate of `check`: every kernel of a library executed on the short list, as PTX and as SASS.

A success is bound to the library's digest, and to what it was judged with.
"""

from __future__ import annotations

from pathlib import Path

from patchctl.emulator import __file__ as emulator_file
from patchctl.errors import GateFailed
from patchctl.formats.findings import Severity
from patchctl.formats.target import Target
from patchctl.formats.wording import counted
from patchctl.stages.build import built_library
from patchctl.stages.emulate import Emulation, emulate, project_code
from patchctl.stages.toolchain import Toolchain
from patchctl.system.files import sha256_bytes, sha256_of
from patchctl.system.project import Project
from patchctl.system.records import Record, drop_record, load_record, save_record
from patchctl.system.report import Reporter


def record_name(target: Target) -> str:
    """The name of a target's record."""
    return f"emulate-{target.name}"


def emulate_inputs(project: Project, target: Target) -> dict[str, str]:
    """What the verdict depends on: the library, how it is launched, and the emulator itself."""
    files = {
        "library": built_library(project, target),
        "rules": project.emulator_file(target.name),
        "resources": project.resources_file(target.name),
    }
    inputs = {name: sha256_of(path) for name, path in files.items() if path.is_file()}
    sources = sorted(Path(emulator_file).parent.rglob("*.py"))
    inputs["emulator"] = sha256_bytes(b"".join(path.read_bytes() for path in sources))
    return inputs


def has_rules(project: Project, target: Target) -> bool:
    """Whether the project says how its kernels are launched."""
    return project.emulator_file(target.name).is_file()


def gate(
    project: Project,
    target: Target,
    toolchain: Toolchain,
    report: Reporter,
    *,
    jobs: int | None = None,
    again: bool = False,
) -> Emulation:
    """Run the short list of every kernel; nothing is run when the same files passed before.

    Args:
        again: run it all the same.

    Raises:
        UsageError: no library, no rules, or a kernel without one of its forms.
    """
    from patchctl.emulator.suite import short_list

    library = built_library(project, target)
    inputs = emulate_inputs(project, target)
    record = load_record(project, record_name(target))
    if record is not None and not again and not record.stale_because(inputs):
        return Emulation(library, skipped=True)
    drop_record(project, record_name(target))
    codes, unruled = project_code(project, target, toolchain, library)
    done = emulate(library, codes, short_list, report, jobs=jobs)
    done.unruled = unruled
    if not done.failed:
        outputs = {"launches": str(len(done.examinations)), "library": inputs["library"]}
        save_record(project, Record(stage=record_name(target), inputs=inputs, outputs=outputs))
    return done


def gate_error(done: Emulation) -> GateFailed:
    """The error for a library that does not pass; its data holds everything that was found."""
    errors = sum(f.severity is Severity.ERROR for f in done.findings())
    return GateFailed(
        f"`{done.library.name}` does not pass the emulator: {counted(errors, 'error')}",
        hint="patchctl emulate KERNEL --shape WORDS runs one kernel on one problem",
        data=done.as_json(),
    )
