# SPDX-License-Identifier: Apache-2.0
"""The bare repository of a project. The only module that imports GitPython.

Git runs hermetically: no inherited ``GIT_*``, no system or user configuration, no hooks, no
signing, ``LC_ALL=C``. Objects are content-addressed and written first; a ref moves last, so a
killed run leaves the last good state.
"""

from __future__ import annotations

import configparser
import io
import os
import re
import shutil
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.errors import ToolMissing, Unavailable, UsageError
from patchctl.formats.edittree import tree_objects
from patchctl.formats.gitobjects import (
    SUBMODULE_MODE,
    Entry,
    Identity,
    Mode,
    Tree,
    commit_object,
    display,
    object_id,
    pack,
)
from patchctl.system.files import temp_beside
from patchctl.system.gitrun import HERMETIC, GitRepo
from patchctl.system.process import ProcessFailed

if TYPE_CHECKING:
    from git import Git, Repo

# How to reach a remote is the user's business, everything else would change results.
_TRANSPORT = re.compile(r"GIT_(SSL_.*|SSH|SSH_.*|PROXY_.*|ASKPASS|ALLOW_PROTOCOL)$")
_PACK_FROM = 64
"""Fewer objects than this are written and read one by one: starting git takes as long."""


def _open(path: Path, *, create: bool) -> tuple[Repo, dict[str, str]]:
    inherited = {k: v for k, v in os.environ.items() if k.startswith("GIT_")}
    transport = {k: v for k, v in inherited.items() if _TRANSPORT.match(k)}
    for name in inherited:
        del os.environ[name]
    os.environ["GIT_PYTHON_REFRESH"] = "raise"
    try:
        import git
    except ImportError as error:
        raise ToolMissing(
            f"git is not usable: {str(error).splitlines()[0]}", hint="apt install git"
        ) from error
    del os.environ["GIT_PYTHON_REFRESH"]
    os.environ.update(HERMETIC)

    class Program(git.Git):
        """Takes a folder as it is: given text, GitPython puts variables in for each ``$``."""

        def __init__(self, folder: str | os.PathLike[str]) -> None:
            super().__init__(Path(folder))

    class Repository(git.Repo):
        GitCommandWrapperType: type[git.Git] = Program

    try:
        if create and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _create(Program(path.parent), path)
        return Repository(path, expand_vars=False), transport
    except (git.InvalidGitRepositoryError, UnicodeError, configparser.Error) as error:
        raise _damaged(path, str(error)) from error
    except (OSError, git.GitCommandError) as error:
        raise _unwritable(path, error) from error


def _damaged(path: Path, said: str) -> Unavailable:
    """The store cannot be read: a disk fault, a power cut, or somebody's hand."""
    return Unavailable(
        f"`{path}` is not a whole git repository",
        details=tuple(said.strip().splitlines()[-3:]),
        hint="remove it and run the command again: everything in it is made anew",
    )


def _unwritable(path: Path, error: Exception) -> Unavailable:
    """The system or git could not write; what each said is in another place."""
    said = getattr(error, "stderr", None) or getattr(error, "strerror", None) or error
    return Unavailable(
        f"cannot write in `{path}`: {str(said).strip()}",
        hint="check the disk space and who owns the folder, and run the command again",
    )


def _create(program: Git, path: Path) -> None:
    """A bare repository that is there as a whole or not at all."""
    temp = temp_beside(path)
    try:
        program.init("--quiet", "--bare", str(temp))
        temp.rename(path)
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise


class Store:
    """Blobs, trees, commits and refs of one bare repository."""

    def __init__(self, path: Path) -> None:
        """Open the repository at `path`, creating it if it is not there.

        Raises:
            ToolMissing: no git program.
            Unavailable: the folder cannot be written, or is no repository.
        """
        self.path = path
        self._repo, self._transport = _open(path, create=True)
        from gitdb import LooseObjectDB

        # GitPython's own database starts a process for each object that it writes
        self._loose_objects = LooseObjectDB(str(path / "objects"))
        self._known: set[str] = set()
        self._read_ahead: dict[str, bytes] = {}

    def close(self) -> None:
        """End the helper processes."""
        self._repo.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def has(self, hex_id: str) -> bool:
        """Whether the object is here."""
        return self.kind(hex_id) is not None

    def kind(self, hex_id: str) -> str | None:
        """``commit``, ``tree`` or ``blob``; None if the object is not here, loose or packed."""
        try:
            header = self._repo.odb.info(bytes.fromhex(hex_id))
        except ValueError:
            return None
        kind: bytes = header.type
        return kind.decode()

    def _write(self, kind: str, data: bytes, hex_id: str = "") -> str:
        from gitdb import IStream

        hex_id = hex_id or object_id(kind, data)
        if not self._is_known(hex_id):
            stream = IStream(kind.encode(), len(data), io.BytesIO(data))
            try:
                self._loose_objects.store(stream)
            except OSError as error:
                raise _unwritable(self.path, error) from error
        self._known.add(hex_id)
        return hex_id

    def _loose(self, hex_id: str) -> Path:
        return self.path / "objects" / hex_id[:2] / hex_id[2:]

    def write_blob(self, data: bytes) -> str:
        """Store a file's content; returns its id."""
        return self._write("blob", data)

    def read_blob(self, hex_id: str) -> bytes:
        """A file's content.

        Raises:
            Unavailable: the store is damaged.
        """
        if hex_id in self._read_ahead:
            return self._read_ahead.pop(hex_id)
        with self._reading():
            content: bytes = self._repo.odb.stream(bytes.fromhex(hex_id)).read()
        # git itself does not compare when it reads
        if object_id("blob", content) != hex_id:
            raise _damaged(self.path, f"object {hex_id} has other content than its name says")
        return content

    def read_ahead(self, hex_ids: Collection[str]) -> None:
        """Read many blobs in one go, for `read_blob` to hand out: asking for each takes longer.

        What cannot be read, or has other content than its name says, is left to `read_blob`.
        """
        if len(hex_ids) < _PACK_FROM:
            return
        wanted = "".join(f"{hex_id}\n" for hex_id in hex_ids).encode()
        batch = GitRepo(self.path).git("cat-file", "--batch", "--buffer", input=wanted, check=False)
        at, out = 0, batch.stdout
        while (end := out.find(b"\n", at)) >= 0:
            fields = out[at:end].split()
            at = end + 1
            if len(fields) != 3:
                continue  # missing
            content = out[at : at + int(fields[2])]
            at += len(content) + 1
            if object_id("blob", content) == fields[0].decode():
                self._read_ahead[fields[0].decode()] = content

    @contextmanager
    def _reading(self) -> Iterator[None]:
        from gitdb.exc import ODBError

        from git import GitCommandError

        try:
            yield
        except GitCommandError as error:
            raise _damaged(self.path, str(error.stderr)) from error
        except (ODBError, ValueError, zlib.error) as error:
            raise _damaged(self.path, str(error)) from error

    def write_object(self, kind: str, data: bytes) -> str:
        """Store a blob, tree or commit in git's own form; returns its id."""
        return self._write(kind, data)

    def write_objects(self, objects: Iterable[tuple[str, bytes]]) -> None:
        """Store many objects, each given as kind and content: as one pack, which is faster."""
        new = {object_id(kind, data): (kind, data) for kind, data in objects}
        missing = [item for hex_id, item in new.items() if hex_id not in self._known]
        if len(missing) < _PACK_FROM:
            for kind, data in missing:
                self._write(kind, data)
            return
        # an object that is there as a file too does no harm, and looking for each takes longer
        repo = GitRepo(self.path)
        try:
            repo.git("index-pack", "--stdin", input=pack(missing))
        except ProcessFailed as error:
            raise _unwritable(self.path, error) from error
        self._known |= new.keys()

    def _is_known(self, hex_id: str) -> bool:
        return hex_id in self._known or self._loose(hex_id).exists()

    def write_tree(self, tree: Tree) -> str:
        """Store a whole tree; returns its id."""
        root = ""
        for root, data in tree_objects(tree):
            self._write("tree", data, root)
        return root

    def _list_tree(self, treeish: str) -> Iterator[tuple[str, str, bytes]]:
        """Mode, object id and path of everything in a commit or tree, flat."""
        options = ["-r", "-z", "--full-tree", treeish]
        with self._reading():
            listing = self._repo.git.ls_tree(*options, stdout_as_string=False)
        for line in listing.split(b"\0"):
            if line:
                meta, path = line.split(b"\t", 1)
                mode, _, hex_id = meta.decode().split()
                yield mode, hex_id, path

    def submodules(self, treeish: str) -> dict[bytes, str]:
        """The submodules of a commit or tree: path to commit id."""
        return {p: i for mode, i, p in self._list_tree(treeish) if mode == SUBMODULE_MODE}

    def submodule_urls(self, commit: str) -> dict[bytes, str]:
        """Where `.gitmodules` of a commit says that its submodules are: path to URL."""
        from git import GitCommandError

        try:
            listing = self._repo.git.config(
                f"--blob={commit}:.gitmodules",
                "-z",
                "--get-regexp",
                r"^submodule\..*\.(path|url)$",
                stdout_as_string=False,
            )
        except GitCommandError:
            return {}
        values: dict[bytes, dict[bytes, bytes]] = {}
        for item in listing.split(b"\0"):
            key, _, value = item.partition(b"\n")
            name, _, field = key.rpartition(b".")
            values.setdefault(name, {})[field.lower()] = value
        return {
            module[b"path"].rstrip(b"/"): module[b"url"].decode("utf-8", "surrogateescape")
            for module in values.values()
            if {b"path", b"url"} <= module.keys()
        }

    def read_tree(self, treeish: str, *, skip_submodules: bool = False) -> dict[bytes, Entry]:
        """The whole tree of a commit or tree id, flat.

        Raises:
            UsageError: the tree holds a submodule, and they are not skipped.
        """
        tree: dict[bytes, Entry] = {}
        for mode, hex_id, path in self._list_tree(treeish):
            if mode != SUBMODULE_MODE:
                tree[path] = Entry(Mode(mode), hex_id)
            elif not skip_submodules:
                raise UsageError(f"`{display(path)}` is a submodule (commit {hex_id})")
        return tree

    def write_commit(
        self,
        tree: str,
        parents: Iterable[str],
        author: Identity,
        committer: Identity,
        message: bytes,
    ) -> str:
        """Store a commit; returns its id."""
        data = commit_object(tree, tuple(parents), author, committer, message)
        return self._write("commit", data)

    def tree_of(self, commit: str) -> str:
        """The id of a commit's tree."""
        return str(self._repo.git.rev_parse("--verify", f"{commit}^{{tree}}"))

    def set_ref(self, name: str, commit: str) -> None:
        """Point a ref at a commit, atomically.

        Raises:
            Unavailable: the store cannot be written.
        """
        from git import GitCommandError

        try:
            self._repo.git.update_ref(name, commit)
        except GitCommandError as error:
            raise _unwritable(self.path, error) from error

    def fetch_commit(self, source: str | Path, commit: str) -> None:
        """Bring one commit (a full id) and its tree from a URL or a local repository (a path).

        Raises:
            Unavailable: the source cannot be reached or does not have the commit.
            UsageError: the id is that of something else.
        """
        if not self.has(commit):
            self._fetch(source, commit)
        kind = self.kind(commit)
        if kind != "commit":
            raise UsageError(f"{commit} in `{source}` is a {kind}, expected a commit")

    def _fetch(self, source: str | Path, commit: str) -> None:
        from git import GitCommandError

        options = ["--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"]
        if isinstance(source, Path):
            # it may belong to another user; git does not pass our setting on to the other side
            options.append("--upload-pack=git -c 'safe.directory=*' upload-pack")
        failures = []
        # By id first; servers that refuse that are asked for everything.
        by_id = ["--depth=1", "--", str(source), commit]
        mine = f"refs/patchctl/remote/{object_id('blob', str(source).encode())[:12]}"
        everything = ["--", str(source), f"+refs/*:{mine}/*"]
        for wanted in (by_id, everything):
            try:
                self._repo.git.fetch(*options, *wanted, env=self._transport)
            except GitCommandError as error:
                failures.append(str(error.stderr).strip())
                continue
            if self.has(commit):
                return
            failures.append(f"`{source}` has no commit {commit}")
        raise Unavailable(
            f"cannot get commit {commit} from `{source}`",
            details=tuple(failures),
            hint="check the URL and the network, or set `url` to a local clone",
        )
