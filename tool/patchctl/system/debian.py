# SPDX-License-Identifier: Apache-2.0
"""Packages of the Debian archive, through apt with settings of our own: nothing is installed."""

from __future__ import annotations

import platform
import re
import shutil
import tempfile
from pathlib import Path

from patchctl.errors import ToolMissing, Unavailable
from patchctl.formats.aptsources import Archive, debian_archives, sources_text
from patchctl.formats.toolchainlock import DebianPackage
from patchctl.system.files import write_file
from patchctl.system.process import TAIL_LINES, ProcessFailed, run, stream
from patchctl.system.report import Reporter

APT_FOLDER = Path("/etc/apt")
_ELSEWHERE = (
    "install any CUDA 11.x or 12.x toolkit and give its folder with --cuda-home or CUDA_HOME"
)
_STATUS = re.compile(r"^dlstatus:\d+:(?P<percent>[\d.]+):")
_COMPLAINT = re.compile(r"^[EW]: ")


def check_debian(machine: str) -> None:
    """Whether packages for `machine` (as in ``platform.machine()``) can be had and unpacked.

    Raises:
        ToolMissing: another machine, or no apt or dpkg; says what to do instead.
    """
    if platform.machine() != machine:
        raise ToolMissing(
            f"the private toolchain is for {machine}, this is {platform.machine()}",
            hint=_ELSEWHERE,
        )
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise ToolMissing(
                f"no `{program}`: the private toolchain is unpacked from a Debian package",
                hint=_ELSEWHERE,
            )


def find_archive() -> Archive:
    """The Debian mirror that this machine's own apt uses.

    Raises:
        ToolMissing: its sources name none.
    """
    files = sorted(APT_FOLDER.glob("sources.list.d/*.sources"))
    files += [APT_FOLDER / "sources.list", *sorted(APT_FOLDER.glob("sources.list.d/*.list"))]
    for path in files:
        try:
            text = path.read_text(errors="replace")
        except FileNotFoundError:
            continue
        for archive in debian_archives(text, deb822=path.suffix == ".sources"):
            return archive
    raise ToolMissing(f"no Debian archive among the apt sources in `{APT_FOLDER}`", hint=_ELSEWHERE)


def download_package(package: DebianPackage, folder: Path, report: Reporter) -> Path:
    """Download one package into `folder`; its digest is the caller's to check.

    Raises:
        ToolMissing: this machine's apt knows no Debian archive, or not the suite's keys.
        Unavailable: the archive cannot be reached, or no longer has this version.
    """
    archive = find_archive()
    with tempfile.TemporaryDirectory(dir=folder, prefix="apt-") as scratch:
        state = Path(scratch)
        options = _private_settings(state, package, archive)
        # A failed update is judged by what the download then finds: apt's exit code also counts
        # hooks of other packages.
        update = run(["apt-get", *options, "update"], check=False)
        said = [*update.err.splitlines(), *update.out.splitlines()]
        said += _download(package, options, state / "packages", report)
        path = next(iter((state / "packages").glob("*.deb")), None)
        if path is None:
            raise _refusal(package, archive, [line for line in said if _COMPLAINT.match(line)])
        return path.replace(folder / package.filename)


def _private_settings(state: Path, package: DebianPackage, archive: Archive) -> list[str]:
    sources = state / "patchctl.sources"
    write_file(
        sources,
        sources_text(
            archive,
            suite=package.suite,
            component=package.component,
            architecture=package.architecture,
        ),
    )
    write_file(state / "status", "")
    for name in ("lists/partial", "cache/archives/partial", "packages", "no-parts"):
        (state / name).mkdir(parents=True)
    settings = {
        "Dir::Etc::SourceList": str(sources),
        "Dir::Etc::SourceParts": str(state / "no-parts"),
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": str(state / "no-parts"),
        "Dir::State": str(state),
        "Dir::State::Lists": str(state / "lists"),
        "Dir::State::Status": str(state / "status"),
        "Dir::Cache": str(state / "cache"),
        "APT::Architecture": package.architecture,
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        # the folder is ours alone; apt's own user could not write there
        "APT::Sandbox::User": "root",
    }
    return ["-q", *(f"-o{name}={value}" for name, value in settings.items())]


def _download(
    package: DebianPackage, options: list[str], folder: Path, report: Reporter
) -> list[str]:
    """Returns what apt said; a package that it could not download whole is not in `folder`."""
    said: list[str] = []
    wanted = f"{package.name}:{package.architecture}={package.version}"
    with report.task(f"downloading {package.filename}", package.size, unit="B") as task:
        done = 0

        def follow(line: str) -> None:
            nonlocal done
            status = _STATUS.match(line)
            if status is None:
                said.append(line)
                return
            now = int(package.size * min(100.0, float(status["percent"])) / 100)
            task.advance(max(0, now - done))
            done = max(done, now)

        code = stream(
            ["apt-get", *options, "-oAPT::Status-Fd=1", "download", wanted],
            follow,
            cwd=folder,
        )
    if code != 0:
        for partial in folder.iterdir():
            partial.unlink()
    return said


def _refusal(
    package: DebianPackage, archive: Archive, complaints: list[str]
) -> ToolMissing | Unavailable:
    details = tuple(dict.fromkeys(complaints))[:TAIL_LINES]
    if any("NO_PUBKEY" in line or "is not signed" in line for line in complaints):
        return ToolMissing(
            f"apt has no keys for Debian {package.suite} "
            f"({archive.signed_by or 'its common keyring'})",
            details=details,
            hint="apt install debian-archive-keyring (as root), or " + _ELSEWHERE,
        )
    return Unavailable(
        f"cannot get {package.name} {package.version} (Debian {package.suite}) "
        f"from `{archive.uri}`",
        details=details,
        hint="check the network and the mirror in apt's sources, or " + _ELSEWHERE,
    )


def unpack_package(package: Path, folder: Path) -> None:
    """Unpack a package's files into `folder`, which is made.

    Raises:
        Unavailable: it cannot be unpacked (no space, damaged).
    """
    try:
        run(["dpkg-deb", "--extract", package, folder])
    except ProcessFailed as error:
        raise Unavailable(
            f"cannot unpack `{package.name}` into `{folder}`",
            details=error.completed.tail(),
            hint="free some space and run the command again",
        ) from error
