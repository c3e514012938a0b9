# SPDX-License-Identifier: Apache-2.0
"""Randomly damaged patches: refused with an error of ours, or repaired to what applies strictly."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from patchctl.errors import PatchDoesNotApply
from patchctl.formats.apply import Content, apply_patch
from patchctl.formats.edittree import EditTree
from patchctl.formats.gitobjects import Entry, Mode, blob_id
from patchctl.formats.grade import grade_patch
from patchctl.formats.grademodel import Grade
from patchctl.formats.mend import mend
from patchctl.formats.patch import parse_patch
from patchctl.formats.patchmodel import Patch
from patchctl.formats.patchtext import plain_text, split_mails
from patchctl.formats.repairs import repair

CASES = Path(__file__).parents[1] / "data" / "cases"
Files = dict[bytes, bytes]
# What no grade looks at, and only the strict engine refuses.
OF_THE_ENGINE = ("through", "link", "folder", "mode", "does not change")


def seeds() -> list[tuple[bytes, Files]]:
    """Every patch of the cases, with the tree that it is for."""
    found = []
    for path in sorted(CASES.glob("*/patches/*.patch")):
        base = path.parents[1] / "base"
        there = (p for p in base.rglob("*") if p.is_file() and not p.is_symlink())
        files = {p.relative_to(base).as_posix().encode(): p.read_bytes() for p in there}
        found.append((path.read_bytes(), files))
    return found


def damaged(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(lines))
        line = lines[at]
        match rng.randrange(8):
            case 0:
                lines[at : at + 1] = [] if len(lines) > 1 else [b""]
            case 1:
                lines.insert(at, rng.choice(lines))
            case 2:
                lines[at] = line.strip()
            case 3:
                lines[at] = line[: rng.randrange(len(line) + 1)]
            case 4:
                lines[at] = line + b"\r"
            case 5:
                lines[at] = line.replace(b"1", b"%d" % rng.randrange(30))
            case 6:
                place = rng.randrange(len(line) + 1)
                lines[at] = line[:place] + bytes([rng.randrange(256)]) + line[place + 1 :]
            case 7:
                lines[at] = line.replace(b"  ", b"\t")
    return b"\n".join(lines)


def read_leniently(data: bytes, files: Files) -> list[Patch]:
    text, _ = plain_text(data)
    patches = []
    for first, mail in split_mails(text):
        mended = mend(mail, first, lambda path: path in files, None)
        try:
            patches.append(parse_patch("p", mail))
        except PatchDoesNotApply:
            patches.append(parse_patch("p", mended.data))
    return patches


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_patch_is_refused_or_becomes_one_that_applies(seed: int) -> None:
    rng = random.Random(seed)
    sources = seeds()
    applied = refused = 0
    for _ in range(1500):
        data, files = rng.choice(sources)
        tree = {path: Entry(Mode.FILE, blob_id(content)) for path, content in files.items()}
        blobs = {blob_id(content): content for content in files.values()}

        def read(path: bytes, files: Files = files) -> Content | None:
            return Content(Mode.FILE, files[path]) if path in files else None

        try:
            patches = read_leniently(damaged(rng, data), files)
        except PatchDoesNotApply:
            refused += 1
            continue
        for patch in patches:
            if max(Counter(change.path for change in patch.changes).values()) > 1:
                continue
            grade = grade_patch(patch, read)
            if grade.grade is Grade.PRESENT or not all(file.fits for file in grade.files):
                refused += 1
                continue
            made = repair(patch, grade, read).patch
            try:
                apply_patch(made, EditTree(tree), blobs.__getitem__)
                applied += 1
            except PatchDoesNotApply as error:
                told = error.message
                assert any(word in told for word in OF_THE_ENGINE) or not made.changes, told
                refused += 1
    assert applied > 200
    assert refused > 400
