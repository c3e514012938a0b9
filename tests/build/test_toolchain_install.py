# SPDX-License-Identifier: Apache-2.0
"""Making the private toolchain from packages that stand in for the locked ones; no network.

``apt-get`` and ``dpkg-deb`` are small scripts: the first "downloads" a file, the second lays out
the programs of the toolkit that the other tests use, as Debian's package would.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli_w

from patchctl.errors import LockMismatch, PatchctlError, ToolMissing, Unavailable
from patchctl.stages import toolchain as search
from patchctl.stages import toolchain_install as stage
from patchctl.stages.nvcc import programs
from patchctl.stages.toolchain import Origin, Toolchain, find_toolchain
from patchctl.stages.toolchain_install import install_toolchain
from patchctl.system import debian
from patchctl.system.files import sha256_bytes, sha256_of
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter

pytestmark = pytest.mark.nvcc

DEB = b"stands in for a package"


@dataclass
class Machine:
    """A machine with stand-ins on PATH, and a project whose lock names their packages."""

    project: Project
    tools: Path
    cache: Path
    links: Path

    @property
    def home(self) -> Path:
        return self.cache / "toolchains" / "cuda-12.0.1"

    def script(self, name: str, text: str) -> None:
        path = self.tools / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def install(self, *, offline: bool = False, verify: bool = False) -> Toolchain:
        return install_toolchain(self.project, QuietReporter(), offline=offline, verify=verify)

    def leftovers(self) -> list[str]:
        folder = self.cache / "toolchains"
        return [p.name for p in folder.iterdir() if p.name not in ("lock", "cuda-12.0.1")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, cuda: Toolchain) -> Path:
    """A wheel with the toolkit's headers and libcudart."""
    path = tmp_path_factory.mktemp("wheel") / "headers-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(cuda.include.rglob("*")):
            if file.is_file() and "thrust" not in file.parts and "cub" not in file.parts:
                archive.write(file, f"nvidia/part/include/{file.relative_to(cuda.include)}")
        archive.write(cuda.lib64 / "libcudart.so", "nvidia/part/lib/libcudart.so.12")
        archive.writestr("nvidia/part/lib/__init__.py", "")
        archive.writestr("headers-1.0.dist-info/METADATA", "Name: headers\nVersion: 1.0\n")
    return path


@pytest.fixture
def machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: Toolchain, wheel: Path
) -> Iterator[Machine]:
    root = tmp_path / "project"
    for folder in ("patches", "vendor", "build"):
        (root / folder).mkdir(parents=True)
    tools, links, apt = tmp_path / "tools", tmp_path / "links", tmp_path / "apt"
    for folder in (tools, links, apt):
        folder.mkdir()
    shutil.copy(wheel, links)
    (apt / "sources.list").write_text("deb http://mirror.example/debian bookworm main\n")
    debian_part = {
        "suite": "trixie",
        "component": "non-free",
        "name": "toolkit",
        "version": "12.0.1-1",
        "architecture": "amd64",
        "size": len(DEB),
        "sha256": sha256_bytes(DEB),
    }
    wheel_part = {
        "name": "headers",
        "version": "1.0",
        "size": wheel.stat().st_size,
        "sha256": sha256_of(wheel),
    }
    lock = {"version": "12.0.1", "machine": "x86_64", "debian": debian_part, "wheels": [wheel_part]}
    (root / "vendor" / "cuda.lock.toml").write_text(tomli_w.dumps(lock))

    made = Machine(Project(root, root / "build" / "out"), tools, tmp_path / "my cache", links)
    parts = {**programs(cuda.home), "libdevice.10.bc": libdevice(cuda)}
    parts |= {name: cuda.home / "bin" / name for name in ("cuobjdump", "nvdisasm", "cu++filt")}
    copies = [
        f'mkdir -p "$3/$(dirname "{source}")"; cp "{parts[Path(source).name]}" "$3/{source}"'
        for source in stage._PROGRAMS
        if Path(source).name in parts
    ]
    notice = "usr/share/doc/nvidia-cuda-toolkit/copyright"
    copies.append(f'mkdir -p "$3/$(dirname "{notice}")"; echo text >"$3/{notice}"')
    made.script("dpkg-deb", "\n".join(("set -e", *copies)))
    made.script(
        "apt-get",
        f'echo "$*" >>"{tmp_path}/apt.log"\n'
        'case " $* " in *" download "*) '
        "echo dlstatus:1:50.0000:Retrieving; "
        f"printf '%s' '{DEB.decode()}' >toolkit_12.0.1-1_amd64.deb;; esac",
    )
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("PATCHCTL_CACHE_DIR", str(made.cache))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(search, "SYSTEM_FOLDER", tmp_path / "usr-local")
    monkeypatch.setattr(debian, "APT_FOLDER", apt)
    yield made


def libdevice(cuda: Toolchain) -> Path:
    return next(cuda.home.rglob("libdevice.10.bc"))


def test_install_makes_a_toolchain_that_is_then_found_and_kept(
    machine: Machine, tmp_path: Path
) -> None:
    done = machine.install()
    assert (done.home, done.origin, done.lacks) == (machine.home, Origin.PROVISIONED, ())
    assert find_toolchain("sm_70", QuietReporter()).home == machine.home
    assert machine.leftovers() == []
    asked = (tmp_path / "apt.log").read_text()
    assert "download toolkit:amd64=12.0.1-1" in asked
    inode = (machine.home / "bin" / "nvcc").stat().st_ino
    machine.script("apt-get", "exit 9")
    assert machine.install(offline=True, verify=True).home == machine.home
    assert (machine.home / "bin" / "nvcc").stat().st_ino == inode


def test_a_damaged_toolchain_is_made_again_from_the_cached_packages(machine: Machine) -> None:
    machine.install()
    header = machine.home / "include" / "cuda_runtime.h"
    content = header.read_bytes()
    header.unlink()
    machine.install(offline=True)
    assert header.read_bytes() == content
    (machine.home / "lib64" / "libcudart.so").unlink()
    assert machine.install(offline=True).lacks == ()
    header.write_bytes(content[:-1] + b" ")
    machine.install(offline=True)  # same size: seen only by content
    assert header.read_bytes() != content
    machine.install(offline=True, verify=True)
    assert header.read_bytes() == content
    assert machine.leftovers() == []


def test_a_changed_lock_makes_it_again(machine: Machine) -> None:
    machine.install()
    path = machine.project.toolchain_lock
    path.write_text(path.read_text().replace(sha256_bytes(DEB), "0" * 64))
    with pytest.raises(Unavailable, match="--offline"):
        machine.install(offline=True)
    assert machine.home.is_dir()  # the last good one stays


def refused(machine: Machine, error: type[PatchctlError], **how: bool) -> PatchctlError:
    """The error of an install that must leave nothing that counts."""
    with pytest.raises(error) as caught:
        machine.install(**how)
    assert not machine.home.exists()
    assert machine.leftovers() == []
    return caught.value


def test_offline_with_nothing_says_what_is_missing(machine: Machine) -> None:
    error = refused(machine, Unavailable, offline=True)
    assert error.message.startswith("`toolkit_12.0.1-1_amd64.deb` is not in")


def test_a_package_with_another_digest_is_refused_and_not_kept(machine: Machine) -> None:
    machine.script(
        "apt-get", 'case " $* " in *" download "*) echo x >toolkit_12.0.1-1_amd64.deb;; esac'
    )
    error = refused(machine, LockMismatch)
    assert error.exit_code == 3
    assert f"expected {sha256_bytes(DEB)}" in error.message
    assert not list(machine.cache.rglob("*.deb"))


def test_no_network_is_unavailable_with_apts_own_words(machine: Machine) -> None:
    machine.script(
        "apt-get",
        'echo "E: Failed to fetch http://mirror.example  Could not resolve" >&2; exit 100',
    )
    error = refused(machine, Unavailable)
    assert error.exit_code == 8
    assert "http://mirror.example/debian" in error.message
    assert any("Could not resolve" in line for line in error.details)


def test_a_keyring_without_the_suites_keys_is_named(machine: Machine) -> None:
    machine.script(
        "apt-get",
        "echo 'W: GPG error: trixie InRelease: NO_PUBKEY 6ED0E7B82643E131' >&2; exit 100",
    )
    error = refused(machine, ToolMissing)
    assert "apt has no keys for Debian trixie" in error.message
    assert "debian-archive-keyring" in error.hint


def test_a_failed_update_does_not_matter_when_the_download_works(machine: Machine) -> None:
    path = machine.tools / "apt-get"
    path.write_text(path.read_text() + '\ncase " $* " in *" update "*) exit 100;; esac\n')
    assert machine.install().home == machine.home


def test_a_download_that_broke_off_is_not_taken(machine: Machine) -> None:
    path = machine.tools / "apt-get"
    path.write_text(path.read_text() + "\nexit 100\n")
    refused(machine, Unavailable)
    assert not list(machine.cache.rglob("*.deb"))


def test_a_machine_without_apt_is_told_what_to_do(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.tools / "apt-get").unlink()
    monkeypatch.setenv("PATH", str(machine.tools))
    error = refused(machine, ToolMissing)
    assert error.message.startswith("no `apt-get`")
    assert "--cuda-home or CUDA_HOME" in error.hint


def test_another_machine_is_told_what_to_do(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian.platform, "machine", lambda: "aarch64")
    assert "this is aarch64" in refused(machine, ToolMissing).message


def test_no_debian_among_the_sources_is_told(machine: Machine) -> None:
    (debian.APT_FOLDER / "sources.list").write_text("deb http://u.example/ubuntu noble main\n")
    assert "no Debian archive" in refused(machine, ToolMissing).message


def test_no_space_is_said_before_the_download(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage("/")._replace(free=1_000_000)
    monkeypatch.setattr(stage.shutil, "disk_usage", lambda path: full)
    error = refused(machine, Unavailable)
    assert "1 MB are free" in error.message
    assert not list(machine.cache.rglob("*.deb"))


def test_no_space_while_unpacking_leaves_nothing(machine: Machine) -> None:
    machine.script("dpkg-deb", 'mkdir -p "$3/usr"; echo "No space left on device" >&2; exit 2')
    error = refused(machine, Unavailable)
    assert "No space left on device" in error.details


def test_a_toolchain_that_cannot_compile_is_not_installed(machine: Machine) -> None:
    path = machine.tools / "dpkg-deb"
    path.write_text(path.read_text() + '\nprintf "#!/bin/sh\\nexit 1\\n" >"$3/usr/bin/ptxas"\n')
    error = refused(machine, ToolMissing)
    assert error.message.startswith("the new toolchain does not work")


def test_an_interrupted_install_leaves_nothing_that_counts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(home: Path, compiler: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage, "_self_test", interrupt)
        with pytest.raises(KeyboardInterrupt):
            machine.install()
    assert not machine.home.exists()
    assert machine.leftovers() == []


def test_what_a_killed_install_left_is_swept(machine: Machine) -> None:
    left = machine.cache / "toolchains" / ".patchctl-tmp-cuda-12.0.1.dead"
    (left / "bin").mkdir(parents=True)
    (left / "bin" / "nvcc").touch()
    with pytest.raises(ToolMissing):
        find_toolchain("sm_70", QuietReporter())
    machine.install()
    assert machine.leftovers() == []
