# SPDX-License-Identifier: Apache-2.0
"""rebase killed with SIGKILL at random moments: every time it goes on or is aborted cleanly.

``--kills N`` says how many kills must hit; 200 takes some minutes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.git.conftest import MakeProject, git, write_files
from tests.git.rebaserig import Rig, change, make_rig, text

from patchctl.cli.app import funnel
from patchctl.cli.main import main
from patchctl.stages.replay import replay
from patchctl.system.report import QuietReporter

FILES = [f"f{n}" for n in range(12)]
FILLER = {f"dir{n % 9}/filler{n}.h": text(f"filler {n}") for n in range(150)}
RESOLVED = {
    "f3.h": text("f3", "20:both"),
    "f6.h": text("f6", "20:mine"),
    "f9.h": text("f9", "20:both"),
}
"""f3 and f9 were changed on both sides, f6 was removed by upstream."""


@pytest.fixture
def rig(make_project: MakeProject) -> Rig:
    rig = make_rig(make_project, {**FILLER, **{f"{name}.h": text(name) for name in FILES}})
    for number, name in enumerate(FILES):
        added = {f"new{number}.h": text(f"new {number}")} if number % 2 else {}
        rig.patch(f"{number:02}-{name}", change(name, "20:mine") | added)
    rig.lock()
    rig.onto = rig.release(
        {
            **change("f3", "20:theirs"),
            "f6.h": None,
            **change("f9", "20:theirs"),
            **change("f1", "20:mine"),
            **{name: text(name, "1:upstream") for name in list(FILLER)[::3]},
        }
    )
    rig.before = rig.state()
    return rig


class Killer:
    """Runs commands in a process of their own, and kills it at random moments."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self.rig, self.rng = rig, rng
        self.seconds: dict[str, float] = {}
        self.hits: dict[str, int] = {}

    def run(self, *arguments: str, kill: bool = False) -> tuple[int | None, dict[str, object]]:
        """The exit code (None if it was killed in time) and what it printed."""
        reading, writing = os.pipe()
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            os.dup2(writing, 1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            import sys

            sys.stdout = os.fdopen(1, "w")
            argv = ["-C", str(self.rig.project.root), "rebase", *arguments, "--json"]
            code = funnel(main, argv)
            sys.stdout.flush()
            os._exit(code)
        os.close(writing)
        usual = self.seconds.get(arguments[0], 1.0)
        if kill:
            time.sleep(self.rng.random() * usual * 1.05)
            os.kill(child, signal.SIGKILL)
        said = _read_all(reading)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            self.hits[arguments[0]] = self.hits.get(arguments[0], 0) + 1
            return None, {}
        taken = time.monotonic() - began
        self.seconds[arguments[0]] = taken if not kill else usual
        return os.WEXITSTATUS(status), json.loads(said)


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as pipe:
        return pipe.read()


def resolve(rig: Rig, resolved: set[str]) -> None:
    """Do what a person does with a conflict; not twice with the same."""
    unmerged = set(git(rig.edit, "diff", "--name-only", "--diff-filter=U").split())
    assert not unmerged & resolved, "a resolution that was staged is lost"
    for name in unmerged:
        write_files(rig.edit, {name: RESOLVED[name]})
        git(rig.edit, "add", name)
        resolved.add(name)


def final_state(rig: Rig) -> dict[str, bytes]:
    return {name: data for name, data in rig.state().items() if "/build/" not in name}


def whole_rebase(rig: Rig, killer: Killer) -> dict[str, bytes]:
    """A rebase that nobody kills; what it leaves."""
    code, _ = killer.run("--onto", rig.onto)
    while code == 4:
        resolve(rig, set())
        code, _ = killer.run("--continue")
    assert code == 0
    code, _ = killer.run("--accept")
    assert code == 0
    return final_state(rig)


def restore(rig: Rig) -> None:
    for path in (*rig.project.patches.iterdir(), *(rig.project.root / "vendor").iterdir()):
        path.unlink()
    write_files(Path("/"), rig.before)


def leftovers(rig: Rig) -> list[str]:
    """What a session that has ended must not leave."""
    out = rig.project.out
    found = [p.name for p in out.iterdir() if p.name == "edit" or "tmp" in p.name]
    found += [p.name for p in (out / "session").iterdir()]
    found += [p.name for p in rig.project.patches.iterdir() if p.name.startswith(".")]
    return found + [
        line for line in git(rig.project.store, "for-each-ref").split("\n") if "rebase" in line
    ]


def forget(rig: Rig, cache: Path) -> None:
    for path in sorted(cache.glob("rerere/**/*"), reverse=True):
        with suppress(OSError):
            path.unlink() if path.is_file() else path.rmdir()


def trial(rig: Rig, killer: Killer, accepted: dict[str, bytes], cache: Path) -> Iterator[str]:
    """One rebase with kills in it; yields what happened."""
    rng = killer.rng
    before = final_state(rig)
    resolved: set[str] = set()
    if rng.random() < 0.5:
        forget(rig, cache)
    for _ in range(60):
        code, said = killer.run("--status")
        assert code == 0, said
        now = final_state(rig)
        if said["active"]:
            assert now == before, "nothing outside the session changes"
        else:
            assert now in (before, accepted), "all is accepted, or nothing"
            if now == accepted:
                yield "accepted"
                return
        if rng.random() < 0.06 and said["active"]:
            code, _ = killer.run("--abort", kill=rng.random() < 0.5)
            yield f"abort {code}"
            if code == 0:
                assert final_state(rig) == before
                assert leftovers(rig) == []
                return
            continue
        kill = rng.random() < 0.7
        if not said["active"]:
            code, said = killer.run("--onto", rig.onto, kill=kill)
        elif said["current"] is None:
            code, said = killer.run("--accept", kill=kill)
        else:
            if rig.edit.exists():
                resolve(rig, resolved)
            code, said = killer.run("--continue", kill=kill)
        yield f"{code}"
        assert code in (None, 0, 4), said
    raise AssertionError("it does not come to an end")


def test_killed_at_random_moments_it_goes_on_or_is_aborted(
    rig: Rig, private_cache: Path, pytestconfig: pytest.Config
) -> None:
    wanted = pytestconfig.getoption("--kills")
    killer = Killer(rig, random.Random(2026))
    accepted = whole_rebase(rig, killer)
    assert final_state(rig) != {n: d for n, d in rig.before.items() if "/build/" not in n}
    restore(rig)
    ends: dict[str, int] = {}
    while sum(killer.hits.values()) < wanted:
        happened = list(trial(rig, killer, accepted, private_cache))
        ends[happened[-1]] = ends.get(happened[-1], 0) + 1
        if happened[-1] == "accepted":
            replay(rig.project, QuietReporter(), offline=True)
            restore(rig)
            replay(rig.project, QuietReporter(), offline=True)
        git(rig.project.store, "fsck", "--strict", "--no-dangling")
        # of a kill right behind the decisive step: the next rebase overwrites it
        assert not {"edit", "rebase.json"} & set(leftovers(rig))
    print(f"{sum(killer.hits.values())} kills hit {killer.hits}; sessions ended: {ends}")
