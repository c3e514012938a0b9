# SPDX-License-Identifier: Apache-2.0
"""The files of an overlay: what is put, what is kept, and how a killed run is undone.

The state is beside the package: ``.patchctl-overlay-PACKAGE/manifest.json`` and ``original/``.
What is replaced is linked there before anything changes, so that it comes back as the very same
file: content, mode, owner and time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from patchctl import __version__
from patchctl.errors import LocalChanges, UsageError
from patchctl.formats.manifest import (
    VERSION,
    FileState,
    Manifest,
    State,
    manifest_bytes,
    read_manifest,
)
from patchctl.system.files import AtomicFile, sha256_of, sweep, sync_folder, write_file
from patchctl.system.report import Reporter

STATE_PREFIX = ".patchctl-overlay-"
DEFAULT_MODE = 0o644


class OverlayFolder:
    """One overlay's files: the package's folder, and the state beside the package."""

    def __init__(self, package: str, folder: Path, beside: Path, library: str) -> None:
        self.package = package
        self.folder = folder
        self.pattern = f"{library}*.so"
        self.state = beside / f"{STATE_PREFIX}{package}"
        self.manifest_path = self.state / "manifest.json"
        self.originals = self.state / "original"
        self.previous = self.state / "previous"
        self.kept = self.state.with_name(f"{self.state.name}.kept")

    def load(self) -> Manifest | None:
        """The manifest, or None where there is no overlay."""
        try:
            data = self.manifest_path.read_bytes()
        except FileNotFoundError:
            return None
        return read_manifest(data, where=str(self.manifest_path))

    def repair(self, report: Reporter) -> None:
        """Finish or undo what a killed run left half done."""
        sweep(self.folder, older_than=0)
        manifest = self.load()
        if manifest is None:
            # killed before the manifest was there: nothing had changed yet
            shutil.rmtree(self.state, ignore_errors=True)
        elif manifest.state is State.INSTALLING:
            report.warn(f"an overlay in `{self.folder}` was not finished; it is undone")
            self.roll_back()
        elif manifest.state is State.REMOVING:
            report.warn(f"removing the overlay in `{self.folder}` was not finished; it is now")
            self._restore(manifest)

    def begin(self, name: str, sha256: str, *, force: bool) -> tuple[Path, ...]:
        """Keep what will be replaced, and write down what is going to happen.

        Returns the copies that were kept of an earlier overlay's originals, if it was given up.

        Raises:
            LocalChanges: our library was replaced by another file, and `force` is false.
        """
        earlier = self.load()
        present = self.present()
        kept: tuple[Path, ...] = ()
        if earlier is not None and not self._is_ours(earlier):
            if not force:
                raise self._not_ours(earlier)
            kept = self._keep(self._originals_of(earlier))
            shutil.rmtree(self.state)
            earlier = None
        if earlier is None:
            original = tuple(_state_of(path) for path in present)
            for path in present:
                _link(path, self.originals / path.name)
        else:
            original = earlier.original
            _link(self.folder / earlier.library.name, self.previous / earlier.library.name)
        like = next((s for s in original if s.name == name), original[0] if original else None)
        library = FileState(
            name=name,
            sha256=sha256,
            mode=like.mode if like else DEFAULT_MODE,
            uid=like.uid if like else os.geteuid(),
            gid=like.gid if like else os.getegid(),
            mtime_ns=0,
        )
        self._save(
            Manifest(
                version=VERSION,
                tool=__version__,
                state=State.INSTALLING,
                package=self.package,
                folder=str(self.folder),
                library=library,
                original=original,
                previous=earlier.library if earlier else None,
            )
        )
        return kept

    def put(self, data: bytes) -> None:
        """Rename the library into place and take the other names away."""
        wanted = self._loaded().library
        new = AtomicFile(self.folder / wanted.name, mode=wanted.mode)
        with new.open() as handle:
            handle.write(data)
            if (wanted.uid, wanted.gid) != (os.geteuid(), os.getegid()):
                os.fchown(handle.fileno(), wanted.uid, wanted.gid)
        for path in self.present():
            if path.name != wanted.name:
                path.unlink()
        sync_folder(self.folder)

    def commit(self) -> Manifest:
        """Say that the overlay is complete."""
        manifest = self._loaded()
        library = _state_of(self.folder / manifest.library.name)
        done = msgspec.structs.replace(
            manifest, state=State.INSTALLED, library=library, previous=None
        )
        self._save(done)
        shutil.rmtree(self.previous, ignore_errors=True)
        return done

    def roll_back(self) -> None:
        """Bring back the earlier overlay if there was one, else the package's own files."""
        manifest = self.load()
        if manifest is None or manifest.state is not State.INSTALLING:
            return
        if manifest.previous is None:
            self._restore(manifest)
            return
        held = self.previous / manifest.previous.name
        if held.exists():
            held.rename(self.folder / held.name)
        self._save(
            msgspec.structs.replace(
                manifest, state=State.INSTALLED, library=manifest.previous, previous=None
            )
        )
        shutil.rmtree(self.previous, ignore_errors=True)

    def remove(self, manifest: Manifest, *, force: bool) -> tuple[Path, ...]:
        """Restore the originals; returns the copies of foreign files that were kept.

        Raises:
            LocalChanges: the file in place is not ours, or an original was changed.
        """
        kept: tuple[Path, ...] = ()
        for state in manifest.original:
            held = self.originals / state.name
            if not held.is_file() or sha256_of(held) != state.sha256:
                raise LocalChanges(
                    f"`{held}` is not what the overlay replaced: expected sha256 {state.sha256}",
                    hint=f"install {self.package} again with pip, then remove `{self.state}`",
                )
        if not self._is_ours(manifest):
            if not force:
                raise self._not_ours(manifest)
            kept = self._keep(self.present())
        self._save(msgspec.structs.replace(manifest, state=State.REMOVING))
        self._restore(manifest)
        return kept

    def _restore(self, manifest: Manifest) -> None:
        """Every step can be repeated: this may be the second try."""
        names = {state.name for state in manifest.original}
        for name in names:
            held = self.originals / name
            if not os.path.lexists(held):
                continue
            target = self.folder / name
            # two links to one file cannot be renamed onto each other
            if os.path.lexists(target) and os.path.samestat(held.lstat(), target.lstat()):
                continue
            held.rename(target)
        for path in self.present():
            if path.name not in names:
                path.unlink()
        sync_folder(self.folder)
        self.manifest_path.unlink(missing_ok=True)
        shutil.rmtree(self.state, ignore_errors=True)

    def _is_ours(self, manifest: Manifest) -> bool:
        """Whether our library, and nothing else of its name, is in place."""
        present = self.present()
        expected = self.folder / manifest.library.name
        return present == [expected] and sha256_of(expected) == manifest.library.sha256

    def _not_ours(self, manifest: Manifest) -> LocalChanges:
        found = [f"{path.name}: sha256 {sha256_of(path)}" for path in self.present()]
        return LocalChanges(
            f"`{self.folder / manifest.library.name}` is no longer the library that patchctl put "
            "there: pip or somebody else replaced it",
            details=(
                f"expected {manifest.library.name}: sha256 {manifest.library.sha256}",
                *(f"found {line}" for line in found or ["nothing"]),
            ),
            hint=f"if that is a new version of {self.package}, `patchctl install --overlay "
            f"{self.package} --force` takes it for the original; `patchctl uninstall --overlay "
            f"{self.package} --force` puts the old file back and keeps a copy",
            data={"manifest": str(self.manifest_path)},
        )

    def present(self) -> list[Path]:
        """The files there that Python could take for the library."""
        return sorted(self.folder.glob(self.pattern))

    def _originals_of(self, manifest: Manifest) -> list[Path]:
        held = [self.originals / state.name for state in manifest.original]
        return [path for path in held if path.is_file()]

    def _keep(self, files: Sequence[Path]) -> tuple[Path, ...]:
        """Keep copies under the digest of their content, so that none replaces another."""
        copies = []
        for path in files:
            copy = self.kept / f"{sha256_of(path)[:12]}-{path.name}"
            if not copy.exists():
                _link(path, copy)
            copies.append(copy)
        return tuple(copies)

    def _loaded(self) -> Manifest:
        manifest = self.load()
        if manifest is None:
            raise UsageError(f"`{self.manifest_path}` has gone while the overlay was made")
        return manifest

    def _save(self, manifest: Manifest) -> None:
        write_file(self.manifest_path, manifest_bytes(manifest))


def _state_of(path: Path) -> FileState:
    found = path.lstat()
    return FileState(
        name=path.name,
        sha256=sha256_of(path),
        mode=found.st_mode & 0o7777,
        uid=found.st_uid,
        gid=found.st_gid,
        mtime_ns=found.st_mtime_ns,
        link=str(path.readlink()) if path.is_symlink() else "",
    )


def _link(path: Path, copy: Path) -> None:
    """Hold a file under a second name: the file itself, or its copy on another file system."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, copy, follow_symlinks=False)
    except OSError:
        found = path.lstat()
        shutil.copy2(path, copy, follow_symlinks=False)
        os.chown(copy, found.st_uid, found.st_gid, follow_symlinks=False)
