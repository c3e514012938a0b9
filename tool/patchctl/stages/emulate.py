# SPDX-License-Identifier: Apache-2.0
"""Executes the kernels of a library on a CPU: as PTX and as machine code."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.errors import UsageError
from patchctl.formats.cuobjdump import parse_resource_usage
from patchctl.formats.demangle import keys, short
from patchctl.formats.emulation import Launchable, LaunchRules, read_rules, rule_for
from patchctl.formats.findings import Finding
from patchctl.formats.resources import Budget, read_resources
from patchctl.formats.sasscode import parse_functions
from patchctl.formats.target import Target
from patchctl.formats.wording import counted, did_you_mean
from patchctl.stages.devicecode import demangle
from patchctl.stages.toolchain import Toolchain
from patchctl.system.process import run
from patchctl.system.project import Project
from patchctl.system.report import Reporter
from patchctl.system.workers import spread

if TYPE_CHECKING:
    from patchctl.emulator.examine import Code, Examination, Form, Trace
    from patchctl.emulator.suite import Trial

GATE = "emulator"


@dataclass
class Emulation:
    """What came out. `unruled`: kernels that no rule says how to launch. `opcodes`: instructions
    of each machine opcode in the kernels that ran. `skipped`: the same files passed before."""

    library: Path
    examinations: list[Examination] = field(default_factory=list)
    unruled: list[str] = field(default_factory=list)
    opcodes: Counter[str] = field(default_factory=Counter)
    skipped: bool = False

    @property
    def failed(self) -> bool:
        return bool(self.unruled) or not all(e.good for e in self.examinations)

    def executed(self) -> dict[str, int]:
        """Per machine opcode: in how many launches it was executed."""
        counts = Counter(
            opcode
            for e in self.examinations
            for t in e.traces
            if t.form == "sass"
            for opcode in t.executed
        )
        return {opcode: counts[opcode] for opcode in sorted(self.opcodes)}

    def as_json(self) -> dict[str, object]:
        """Everything, for ``--json``."""
        return {
            "library": str(self.library),
            "skipped": self.skipped,
            "opcodes": {
                opcode: {"instructions": self.opcodes[opcode], "launches": launches}
                for opcode, launches in self.executed().items()
            },
            "findings": [f.as_json() for f in self.findings()],
            "launches": [
                {
                    "kernel": e.kernel,
                    "problem": e.trial,
                    "equal": None if len(e.traces) < 2 else not e.difference,
                    "forms": {
                        t.form.value: {
                            "max_error": t.accuracy.largest,
                            "rms_relative_error": t.accuracy.relative,
                            "max_lse_error": t.accuracy.largest_lse,
                            "faults": len(t.findings),
                            "bank_conflicts": t.conflicts,
                            "steps": t.steps,
                            "seconds": round(t.seconds, 2),
                        }
                        for t in e.traces
                    },
                }
                for e in self.examinations
            ],
        }

    def findings(self) -> list[Finding]:
        """Everything that is wrong, as a gate says it."""
        found = [
            Finding(GATE, short(name), "no rule says how it is launched", hint=_RULE_HINT)
            for name in self.unruled
        ]
        for e in self.examinations:
            subject = f"{short(e.kernel)}, {e.trial}"
            if e.error:
                found.append(Finding(GATE, subject, e.error))
            if e.difference:
                text = f"PTX and machine code disagree: {e.difference}"
                found.append(Finding(GATE, subject, text))
            for trace in e.traces:
                if not trace.accuracy.good:
                    found.append(Finding(GATE, subject, f"{trace.form}: {trace.accuracy}"))
                found += [Finding(GATE, subject, text) for text in _faults(trace)]
        return found


def _faults(trace: Trace) -> list[str]:
    """The first places of each kind and tensor; unrolled code shows a fault at hundreds."""
    texts = []
    for what in dict.fromkeys((f.kind, f.tensor) for f in trace.findings):
        places = [f for f in trace.findings if (f.kind, f.tensor) == what]
        texts += [f"{trace.form}: {f}" for f in places[:_SHOWN]]
        if len(places) > _SHOWN:
            more = counted(len(places) - _SHOWN, "more place")
            texts.append(f"{trace.form}: {' '.join(filter(None, what))} at {more}")
    return texts


_SHOWN = 3
_RULE_HINT = "add it to build/<target>.emulator.toml"


def read_code(
    library: Path,
    rules: LaunchRules,
    budgets: Sequence[Budget],
    toolchain: Toolchain,
    pattern: str | None = None,
) -> tuple[list[Code], list[str]]:
    """The kernels of a library or object file that a rule knows, and the names of the others.

    `pattern`: part of a demangled name, a regular expression for it, or a route.

    Raises:
        UsageError: no kernel is meant, or one lacks a form.
    """
    from patchctl.emulator.examine import Code
    from patchctl.emulator.ptx.parse import parse_modules

    def ask(option: str) -> str:
        return run([toolchain.cuobjdump, option, library]).out

    usage = {f.name: f for f in parse_resource_usage(ask("--dump-resource-usage"))}
    kernels = [name for name, f in usage.items() if f.is_kernel]
    demangled, _ = demangle(kernels, toolchain)
    names = keys(demangled)
    wanted = _selector(pattern)
    ruled = {m: rule_for(name, rules) for m, name in names.items()}
    chosen = {m: kernel for m, kernel in ruled.items() if wanted(names[m], kernel)}
    if not chosen:
        shown = sorted({short(name) for name in names.values()})
        hint = did_you_mean(pattern or "", shown)
        what = f"has no kernel `{pattern}`" if pattern else "has no kernel"
        raise UsageError(f"`{library.name}` {what}", details=tuple(shown), hint=hint)
    entries = {
        entry.name: (module, entry)
        for module in parse_modules(ask("-ptx"))
        for entry in module.entries.values()
    }
    functions = {f.name: f for f in parse_functions(ask("-sass"), chosen.__contains__)}
    cubins = _cubins(library, toolchain)
    budget_of = {b.name: b for b in budgets}
    codes, unruled = [], []
    for mangled, kernel in chosen.items():
        if kernel is None:
            unruled.append(names[mangled])
            continue
        if mangled not in entries or mangled not in functions:
            raise UsageError(
                f"`{library.name}` has no PTX or no machine code of `{kernel.name}`",
                hint="patchctl build",
            )
        module, entry = entries[mangled]
        budget = budget_of.get(names[mangled])
        codes.append(
            Code(
                kernel,
                module,
                entry,
                functions[mangled],
                threads=entry.max_threads or (budget.threads if budget else 0),
                shared_bytes=usage[mangled].static_shared
                + (budget.dynamic_shared if budget else kernel.rule.shared),
                local_bytes=usage[mangled].stack or 0,
                banks=_banks(cubins, mangled),
            )
        )
    return sorted(codes, key=lambda code: code.kernel.name), unruled


def _cubins(library: Path, toolchain: Toolchain) -> list[bytes]:
    """The embedded images of machine code."""
    with tempfile.TemporaryDirectory(prefix="patchctl-cubins-") as folder:
        run([toolchain.cuobjdump, "-xelf", "all", library.absolute()], cwd=Path(folder))
        return [path.read_bytes() for path in sorted(Path(folder).glob("*.cubin"))]


def _banks(cubins: Sequence[bytes], mangled: str) -> dict[int, bytes]:
    """The constant banks of a kernel, besides its parameters."""
    from patchctl.emulator.sass.cubin import constant_banks

    section = f".text.{mangled}\0".encode()
    return next((constant_banks(c, mangled) for c in cubins if section in c), {})


def project_code(
    project: Project,
    target: Target,
    toolchain: Toolchain,
    library: Path,
    pattern: str | None = None,
) -> tuple[list[Code], list[str]]:
    """`read_code` with the project's rules and budgets."""
    if not library.is_file():
        raise UsageError(f"there is no library `{library}`", hint="patchctl build")
    rules_file = project.emulator_file(target.name)
    if not rules_file.is_file():
        raise UsageError(f"there is no `{project.relative(rules_file)}`, which says how to launch")
    rules = read_rules(rules_file.read_bytes(), where=project.relative(rules_file))
    resources_file = project.resources_file(target.name)
    budgets: Sequence[Budget] = ()
    if resources_file.is_file():
        where = project.relative(resources_file)
        budgets = read_resources(resources_file.read_bytes(), where=where).kernels
    return read_code(library, rules, budgets, toolchain, pattern)


def emulate(
    library: Path,
    codes: Sequence[Code],
    trials: Callable[[Launchable], list[Trial]],
    report: Reporter,
    *,
    forms: Sequence[Form] | None = None,
    jobs: int | None = None,
) -> Emulation:
    """Run every kernel on its trials, spread over the cores."""
    from patchctl.emulator.examine import Form, examine

    chosen = tuple(forms or Form)
    calls = [(code, trial, chosen) for code in codes for trial in trials(code.kernel)]
    done: list[Examination | None] = [None] * len(calls)
    with report.task(f"emulating {library.name}", len(calls), unit="launch") as task:
        for number, examination in spread(examine, calls, jobs=jobs):
            done[number] = examination
            task.advance()
    opcodes = Counter(
        ".".join(inst.opcode) for code in codes for inst in code.function.instructions
    )
    return Emulation(library, [e for e in done if e is not None], opcodes=opcodes)


def _selector(pattern: str | None) -> Callable[[str, Launchable | None], bool]:
    if pattern is None:
        return lambda name, kernel: True
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"`{pattern}` is no pattern: {error}") from error

    def wanted(name: str, kernel: Launchable | None) -> bool:
        routes = kernel.rule.routes if kernel is not None else ()
        return pattern in name or pattern in routes or bool(expression.search(name))

    return wanted
