# SPDX-License-Identifier: Apache-2.0
"""The installed shim's files, replaced as one: a failure or a kill brings the old ones back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from patchctl.errors import LocalChanges
from patchctl.system.files import sweep, write_file
from patchctl.system.report import Reporter

PACKAGE = "vllm_fa2_sm70"
JOURNAL_FOLDER = f".patchctl-install-{PACKAGE}"
_WRITTEN_BY_INSTALLERS = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json"}


class Journal(msgspec.Struct, frozen=True):
    """What stood in site-packages before: names of folders. Its end is the commit."""

    before: tuple[str, ...]


@contextmanager
def replacing(packages: Path, report: Reporter, *, force: bool) -> Iterator[str]:
    """Set the installed shim aside while the block puts another; yields the old version or "".

    The old files are moved, so that they come back as they were: at once when the block fails,
    and by the next run when this one is killed. When the block ends well they are removed.

    Raises:
        LocalChanges: the installed files are not what was installed, and `force` is false.
    """
    recover(packages, report)
    present = _present(packages)
    version = installed_version(packages)
    if not force:
        _refuse_edited(packages, present)
    folder = packages / JOURNAL_FOLDER
    write_file(folder / "journal.json", msgspec.json.encode(Journal(tuple(present))))
    try:
        for name in present:
            (packages / name).rename(folder / name)
        yield version
    except BaseException:
        recover(packages, report)
        raise
    _finish(folder)


def recover(packages: Path, report: Reporter) -> None:
    """Undo what a killed or failed run left half done."""
    sweep(packages)
    folder = packages / JOURNAL_FOLDER
    journal = folder / "journal.json"
    if journal.is_file():
        before = msgspec.json.decode(journal.read_bytes(), type=Journal).before
        for name in {*_present(packages), *before}:
            if name in before and not (folder / name).exists():
                continue  # it was not moved yet
            shutil.rmtree(packages / name, ignore_errors=True)
            if name in before:
                (folder / name).rename(packages / name)
        what = installed_version(packages) or "nothing"
        report.warn(f"an installation was not finished; `{packages}` has what it had: {what}")
    _finish(folder)


def installed_version(packages: Path) -> str:
    """The version of the installed shim, or ""."""
    found = [name for name in _present(packages) if name.endswith(".dist-info")]
    return found[0].removesuffix(".dist-info").rpartition("-")[2] if found else ""


def _finish(folder: Path) -> None:
    # from here on what was set aside is rubbish, even if the removal is cut short
    (folder / "journal.json").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _present(packages: Path) -> list[str]:
    found = [packages / PACKAGE, *sorted(packages.glob(f"{PACKAGE}-*.dist-info"))]
    return [path.name for path in found if path.exists()]


def _refuse_edited(packages: Path, present: list[str]) -> None:
    from installer.records import parse_record_file

    recorded: dict[str, str] = {}
    for name in present:
        record = packages / name / "RECORD"
        if record.is_file():
            rows = parse_record_file(record.read_text().splitlines())
            recorded |= {path: digest for path, digest, _ in rows}
    edited = []
    for name in present:
        for path in sorted((packages / name).rglob("*")):
            relative = path.relative_to(packages).as_posix()
            if path.is_dir() or "__pycache__" in path.parts:
                continue
            if relative not in recorded and path.name not in _WRITTEN_BY_INSTALLERS:
                edited.append(f"{relative}: not ours")
            elif (digest := recorded.get(relative)) and not _has_digest(path, digest):
                edited.append(f"{relative}: edited")
    if edited:
        raise LocalChanges(
            f"the {PACKAGE} in `{packages}` is not as it was installed",
            details=tuple(edited),
            hint="keep what you need of these files, then run again with --force",
        )


def _has_digest(path: Path, digest: str) -> bool:
    from installer.records import Hash

    return Hash.parse(digest).validate(path.read_bytes())
