# SPDX-License-Identifier: Apache-2.0
"""The library inside another package, and that package as it was before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import GateFailed, UsageError
from patchctl.formats.target import Target
from patchctl.stages.install import verified_library
from patchctl.stages.interpreter import (
    Torch,
    ask,
    ask_torch,
    inspect,
    last_line,
    require_fit,
    require_torch,
    require_writable,
)
from patchctl.stages.overlayfiles import OverlayFolder
from patchctl.stages.packageplace import find_place
from patchctl.system.process import ProcessFailed
from patchctl.system.project import Project
from patchctl.system.report import Reporter


@dataclass(frozen=True)
class Overlaid:
    """What an overlay did: `replaced` names the package's own files that it stands for."""

    python: Path
    package: str
    library: Path
    sha256: str
    manifest: Path
    replaced: tuple[str, ...]
    checkout: bool
    torch: Torch


@dataclass(frozen=True)
class Restored:
    """What removing an overlay did: `restored` are the package's own files that came back, `kept`
    copies of files that somebody else had put in the place of ours."""

    python: Path
    package: str
    folder: Path
    restored: tuple[str, ...]
    kept: tuple[Path, ...]


def install_overlay(
    project: Project,
    target: Target,
    report: Reporter,
    *,
    python: Path,
    package: str,
    into_checkout: bool = False,
    force: bool = False,
) -> Overlaid:
    """Put the verified library into `package` of `python`'s environment.

    Every file there that Python could take for the library is replaced, whatever its suffix. A
    process that runs keeps what it has loaded. A failure, and a kill, bring back what was there.

    Args:
        package: ``vllm``, or a subpackage by its dotted name.
        into_checkout: also if the package is an editable install.
        force: also if somebody replaced our library; what is there is kept as the original.

    Raises:
        GateFailed: the library is not verified, or does not load there.
        UsageError: the package is not found, or found twice, or the environment does not fit.
        LocalChanges: the file in place is no longer the one that was put there.
        Unavailable: a folder or file cannot be written.
    """
    library = verified_library(project, target)
    interpreter = inspect(python)
    require_fit(interpreter, target, library.glibc)
    place = find_place(interpreter, package, into_checkout=into_checkout)
    overlay = OverlayFolder(place.package, place.folder, place.beside, target.library)
    require_writable(place.folder, overlay.present())
    require_writable(place.beside)
    torch = ask_torch(interpreter)
    if torch.error:
        raise UsageError(f"`{python}` cannot import torch: {torch.error}")
    require_torch(torch, target, python)
    overlay.repair(report)
    if overlay.begin(target.filename, library.sha256, force=force):
        report.warn(f"what the earlier overlay had replaced is kept in `{overlay.kept}`")
    try:
        overlay.put(library.data)
        _prove(python, overlay.folder / target.filename, torch, report)
        manifest = overlay.commit()
    except BaseException:
        overlay.roll_back()
        raise
    return Overlaid(
        python=python,
        package=place.package,
        library=overlay.folder / target.filename,
        sha256=library.sha256,
        manifest=overlay.manifest_path,
        replaced=tuple(state.name for state in manifest.original),
        checkout=place.checkout,
        torch=torch,
    )


def uninstall_overlay(
    project: Project,
    target: Target,
    report: Reporter,
    *,
    python: Path,
    package: str,
    force: bool = False,
) -> Restored:
    """Put back what the overlay in `package` replaced: the same files, as they were.

    Args:
        force: also if somebody replaced our library; a copy of that file is kept.

    Raises:
        UsageError: there is no overlay, or the package is not found.
        LocalChanges: the file in place is no longer ours, or an original was changed.
        Unavailable: a folder or file cannot be written.
    """
    interpreter = inspect(python)
    place = find_place(interpreter, package, into_checkout=True)
    overlay = OverlayFolder(place.package, place.folder, place.beside, target.library)
    require_writable(place.folder, overlay.present())
    require_writable(place.beside)
    overlay.repair(report)
    manifest = overlay.load()
    if manifest is None:
        raise UsageError(
            f"there is no overlay in `{place.folder}`",
            hint=f"patchctl install --overlay {package} puts one there",
        )
    kept = overlay.remove(manifest, force=force)
    names = tuple(state.name for state in manifest.original)
    return Restored(python, place.package, place.folder, names, kept)


def _prove(python: Path, library: Path, torch: Torch, report: Reporter) -> None:
    """Load the library in a child of the interpreter that imports nothing but torch."""
    try:
        answer = ask(python, "library", str(library))
    except ProcessFailed as error:
        if not torch.cuda and error.completed.code > 0:
            report.warn(f"{torch} brings no CUDA, so the library does not load: {last_line(error)}")
            return
        raise GateFailed(
            f"`{python}` cannot load `{library}`: {last_line(error)}",
            details=error.details,
            hint="patchctl verify",
        ) from error
    if not answer["operators"]:
        raise GateFailed(f"`{library}` loads in `{python}` but registers no operator")
