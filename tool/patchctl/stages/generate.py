# SPDX-License-Identifier: Apache-2.0
"""Writing the translation units that the tree's tables ask for into the build folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from patchctl.formats.instances import (
    GENERATED_FOLDER,
    TEMPLATE_SUFFIX,
    Instance,
    render_instances,
    require_distinct,
)
from patchctl.formats.target import Target
from patchctl.system.files import write_if_changed


@dataclass(frozen=True)
class GeneratedUnit:
    """A translation unit in the build folder, and the table (in the tree) that asked for it."""

    table: str
    instance: Instance

    @property
    def folder(self) -> str:
        """The folder of the tree that its template is in."""
        return str(PurePosixPath(self.table).parent)

    @property
    def origin(self) -> str:
        """What it was made from, in words."""
        return f"{self.instance.origin} by `{self.table}`"


def generate(source: Path, target: Target, build_folder: Path) -> Mapping[str, GeneratedUnit]:
    """Bring ``generated/`` to what the tables in the tree `source` ask for.

    A file whose text is the same is not touched, one that no table asks for is removed. Nothing
    is written when a table or a template is wrong.

    Returns:
        The units by their paths in the build folder.

    Raises:
        BuildFailed: a table or a template is wrong; names it, and the key or the line.
    """
    units = [
        GeneratedUnit(table, instance)
        for table in target.generate.tables
        if (source / table).is_file()
        for instance in _render(source, table)
    ]
    require_distinct([(unit.table, unit.instance) for unit in units])
    folder = build_folder / GENERATED_FOLDER
    for unit in units:
        write_if_changed(folder / unit.instance.name, unit.instance.text)
    names = {unit.instance.name for unit in units}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return {f"{GENERATED_FOLDER}/{unit.instance.name}": unit for unit in units}


def _render(source: Path, table: str) -> tuple[Instance, ...]:
    path = source / table
    beside = sorted(path.parent.glob(f"*{TEMPLATE_SUFFIX}"))
    templates = {file.name: file.read_bytes() for file in beside if file.is_file()}
    return render_instances(path.read_bytes(), templates, where=table)
