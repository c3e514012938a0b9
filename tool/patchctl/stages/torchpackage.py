# SPDX-License-Identifier: Apache-2.0
"""The torch of our own environment, read from its files: importing it takes seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_ASSIGNMENT = re.compile(r"^(__version__|cuda)\b[^=]*= *(?:'([^']*)'|None)", re.MULTILINE)


@dataclass(frozen=True)
class TorchPackage:
    """An installed torch: `version` as it says it, `cuda` is "" for a CPU build."""

    folder: Path
    version: str
    cuda: str

    @property
    def include(self) -> Path:
        """Its C++ headers."""
        return self.folder / "include"

    @property
    def lib(self) -> Path:
        """Its libraries."""
        return self.folder / "lib"


def find_torch_package() -> TorchPackage | None:
    """The torch that ``import torch`` would bring, or None."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    said = dict(_ASSIGNMENT.findall((folder / "version.py").read_text()))
    return TorchPackage(folder, said.get("__version__", ""), said.get("cuda", ""))
