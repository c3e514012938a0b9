# SPDX-License-Identifier: Apache-2.0
"""The series file after a change: comments and options stay with what they belong to."""

from __future__ import annotations

import random

import pytest

from patchctl.errors import UsageError
from patchctl.formats.series import parse_series
from patchctl.formats.seriesrewrite import Listed, rewrite_series

OLD = b"""# head of the file

# about one
one.patch
two.patch -p0  # two is old

# section
#  of two lines

three.patch
# tail
"""


def rewritten(old: bytes, *wanted: Listed) -> str:
    return rewrite_series(old, wanted, where="series").decode()


def same(name: str, strip: int = 1) -> Listed:
    return Listed(name, strip, name)


ONE, TWO, THREE = same("one.patch"), same("two.patch", 0), same("three.patch")


def test_nothing_changed_keeps_every_byte() -> None:
    assert rewritten(OLD, ONE, TWO, THREE).encode() == OLD


def test_missing_last_newline_is_the_only_thing_added() -> None:
    assert rewritten(b"one.patch", ONE) == "one.patch\n"


def test_dropped_patch_takes_its_comment_along() -> None:
    text = rewritten(OLD, TWO, THREE)
    assert text.startswith("# head of the file\n\ntwo.patch -p0  # two is old\n\n# section\n")
    assert "about one" not in text


def test_moved_patch_takes_its_comment_and_leaves_the_section(  # the section is of a place
) -> None:
    text = rewritten(OLD, TWO, THREE, ONE)
    assert text == (
        "# head of the file\n\ntwo.patch -p0  # two is old\n\n# section\n#  of two lines\n\n"
        "three.patch\n# tail\n# about one\none.patch\n"
    )


def test_new_patch_goes_behind_the_one_before_it() -> None:
    text = rewritten(OLD, ONE, Listed("new.patch"), TWO, THREE, Listed("plain.patch", 0))
    assert "one.patch\nnew.patch\ntwo.patch -p0" in text
    assert text.endswith("three.patch\n# tail\nplain.patch -p0\n")


def test_renamed_patch_keeps_its_line() -> None:
    text = rewritten(b"  a.patch\t-p0 -p0 # why\n", Listed("b.patch", 1, "a.patch"))
    assert text == "  b.patch # why\n"


def test_comment_in_the_first_line_is_of_the_file() -> None:
    old = b"# ours\none.patch\ntwo.patch\n"
    assert rewritten(old, same("two.patch"), ONE) == "# ours\ntwo.patch\none.patch\n"


def test_name_that_is_a_part_of_the_comment_is_left_alone() -> None:
    old = b"a.patch # not a.patch but b.patch\n"
    assert rewritten(old, Listed("c.patch", 1, "a.patch")) == "c.patch # not a.patch but b.patch\n"


def test_old_series_that_does_not_parse_is_refused() -> None:
    with pytest.raises(UsageError):
        rewritten(b"one.patch -R\n", ONE)


@pytest.mark.parametrize("seed", range(60))
def test_any_change_reads_back_as_wanted_and_loses_no_other_comment(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"{n:04}-x.patch" for n in range(rng.randrange(1, 9))]
    lines = ["# head", ""]
    for name in names:
        lines += rng.choice([[], [""], [f"# about {name}"], ["# place", ""], ["", "# place", ""]])
        lines.append(name + rng.choice(["", "  ", " -p0", "\t-p1", " # why"]))
    old = "\n".join(lines).encode() + rng.choice([b"", b"\n"])
    strips = {entry.name: entry.strip for entry in parse_series(old, where="s")}
    kept = rng.sample(names, rng.randrange(len(names) + 1))
    wanted = [Listed(name, strips[name], name) for name in kept]
    for number in range(rng.randrange(3)):
        wanted.insert(rng.randrange(len(wanted) + 1), Listed(f"new{number}.patch", number % 2))
    text = rewrite_series(old, wanted, where="s")
    found = [(entry.name, entry.strip) for entry in parse_series(text, where="s")]
    assert found == [(item.name, item.strip) for item in wanted]
    assert text.startswith(b"# head\n\n")
    assert text.count(b"# place") == old.count(b"# place")
    for name in names:
        about = f"# about {name}\n".encode()
        assert text.count(about) == (old.count(about) if name in kept else 0)
        if about in text:
            assert about + name.encode() in text
