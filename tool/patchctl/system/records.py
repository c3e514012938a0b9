# SPDX-License-Identifier: Apache-2.0
"""What each stage did last: recorded, so that state is never guessed from a tree."""

from __future__ import annotations

import msgspec

from patchctl import __version__
from patchctl.system.files import write_file
from patchctl.system.project import Project


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One stage's last success.

    `inputs` and `outputs` map a name that a person understands ("series", "nvcc") to a digest,
    id or version.
    """

    stage: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    tool: str = __version__

    def stale_because(self, inputs: dict[str, str]) -> list[str]:
        """Why the stage must run again, one reason for each input that differs; [] if current."""
        reasons = []
        for name in sorted({*self.inputs, *inputs}):
            old, new = self.inputs.get(name), inputs.get(name)
            if old == new:
                continue
            if old is None:
                reasons.append(f"{name} is new")
            elif new is None:
                reasons.append(f"{name} is gone")
            else:
                reasons.append(f"{name} changed ({_short(old)} -> {_short(new)})")
        return reasons


def load_record(project: Project, stage: str) -> Record | None:
    """The stage's last record, or None if it never succeeded (or the file is damaged)."""
    path = project.records / f"{stage}.json"
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None
    return record if (record.stage, record.tool) == (stage, __version__) else None


def save_record(project: Project, record: Record) -> None:
    """Remember a success; written last, when everything it speaks of is in place."""
    data = msgspec.json.format(msgspec.json.encode(record), indent=2)
    write_file(project.records / f"{record.stage}.json", data + b"\n")


def drop_record(project: Project, stage: str) -> None:
    """Forget a success, before its outputs are touched."""
    (project.records / f"{stage}.json").unlink(missing_ok=True)


def _short(value: str) -> str:
    is_digest = len(value) >= 32 and all(c in "0123456789abcdef" for c in value)
    return value[:12] if is_digest else value
