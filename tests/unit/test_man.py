# SPDX-License-Identifier: Apache-2.0
"""Manual pages and completion are made from the commands, for every one of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from patchctl.cli.app import funnel
from patchctl.cli.main import main
from patchctl.formats.roff import Page, escape, manual_page, paragraphs

ROOT = Path(__file__).resolve().parents[2]


def every_command(group: click.Group = main, name: str = "patchctl") -> Iterator[str]:
    yield name
    with click.Context(group, info_name=name) as context:
        for child in group.list_commands(context):
            command = group.get_command(context, child)
            assert command is not None
            if isinstance(command, click.Group):
                yield from every_command(command, f"{name}-{child}")
            else:
                yield f"{name}-{child}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("man")
    assert funnel(main, ["man", str(made)]) == 0
    return made


def test_every_command_has_a_page(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {f"{name}.1" for name in every_command()}


def test_page_names_every_option_of_its_command(folder: Path) -> None:
    page = (folder / "patchctl-replay.1").read_text()
    for option in ("--lock", "--through PATCH", "--baseline NAME", "--json"):
        assert f".B {escape(option)}" in page
    assert '.TH "PATCHCTL\\-REPLAY" "1"' in page


def test_pages_are_the_same_each_time_and_left_alone(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert funnel(main, ["man", str(folder)]) == 0
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff on this machine")
def test_groff_has_nothing_to_say_of_any_page(folder: Path) -> None:
    for page in folder.iterdir():
        command = ["groff", "-man", "-Tutf8", "-Kutf8", "-ww", "-z", str(page)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), page.name


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff on this machine")
def test_text_that_looks_like_roff_is_shown_as_it_is() -> None:
    text = ".SH not a heading, it's `-x` \\fB ~ ^\n\n\b\n'kept   as\n  it is"
    page = Page("x", ".summary", "[OPTIONS]", text, [("-x", ".opt")], [], [], "1")
    command = ["groff", "-man", "-Tascii", "-P-cbou", "-ww"]
    done = subprocess.run(
        command, input=manual_page(page), capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    for line in (".SH not a heading, it's `-x` \\fB ~ ^", "'kept   as", "  it is", ".opt"):
        assert line in done.stdout


def test_paragraphs_that_keep_their_lines() -> None:
    assert paragraphs("one\ntwo\n\n\b\na  b\nc") == [(False, ["one two"]), (True, ["a  b", "c"])]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_of_the_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert funnel(main, ["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_PATCHCTL_COMPLETE={shell}_complete" in script
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def complete(*words: str) -> list[str]:
    """What bash is offered for the last of `words`."""
    environment = {
        **os.environ,
        "_PATCHCTL_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("patchctl", *words)),
        "COMP_CWORD": str(len(words)),
    }
    code = "from patchctl.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_commands_options_and_baselines_are_completed() -> None:
    assert "replay" in complete("re")
    assert complete("replay", "--thr") == ["--through"]
    assert complete("--baseline", "flash-attn-2") == ["flash-attn-2.8.3.post2"]
    assert complete("bisect", "sy") == ["symbols"]
