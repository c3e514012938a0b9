# SPDX-License-Identifier: Apache-2.0
"""Package indexes, as the user's pip is set to use them; a server on this machine plays one."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.git.conftest import make_sdist, make_sdist_project, tree_of

from patchctl.errors import ToolMissing, Unavailable
from patchctl.stages.fetch import fetch
from patchctl.system import packageindex, pipsettings
from patchctl.system.packageindex import DigestMismatch, Wanted, obtain
from patchctl.system.pipsettings import pip_settings
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter

FILES = {"csrc/a.h": b"int a;\n"}
NAME = "pkg-1.0.tar.gz"


@dataclass
class Index:
    """A simple index with the one project ``pkg``."""

    url: str
    archive: bytes
    stated: str = ""
    cut: int = 0
    broken_answers: int = 0
    asked: list[str] = field(default_factory=list)
    accepted: list[str | None] = field(default_factory=list)


@pytest.fixture
def index(tmp_path: Path, find_links: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    make_sdist(tmp_path / NAME, FILES)
    state = Index("", (tmp_path / NAME).read_bytes())

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            state.accepted.append(self.headers["Accept-Encoding"])
            if state.broken_answers:
                state.broken_answers -= 1
                self.close_connection = True
                return
            pages = {
                "/simple/pkg/": (b"text/html", self.page()),
                f"/files/{NAME}": (b"application/gzip", state.archive),
            }
            if self.path not in pages:
                self.send_error(404)
                return
            kind, body = pages[self.path]
            self.send_response(200)
            self.send_header("Content-Type", kind.decode())
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            is_file = self.path.startswith("/files")
            self.wfile.write(body[: len(body) - state.cut] if is_file else body)

        def page(self) -> bytes:
            fragment = f"#sha256={state.stated}" if state.stated else ""
            wheel = '<a href="../../files/pkg-1.0-py3-none-any.whl">w</a>'
            return f'{wheel}<a href="../../files/{NAME}{fragment}">s</a>'.encode()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", state.url)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(packageindex, "PAUSE", 0.0)
    yield state
    server.shutdown()


@pytest.fixture
def project(tmp_path: Path, index: Index) -> Project:
    sha256 = hashlib.sha256(index.archive).hexdigest()
    return make_sdist_project(tmp_path / "p", sha256, tree_of(FILES))


WANTED = Wanted("pkg", "1.0", (".tar.gz",))


def test_archive_is_downloaded_into_the_cache(
    project: Project, index: Index, private_cache: Path
) -> None:
    assert fetch(project, QuietReporter()).tree == tree_of(FILES)
    assert index.asked == ["/simple/pkg/", f"/files/{NAME}"]
    (cached,) = private_cache.rglob(NAME)
    assert cached.read_bytes() == index.archive
    assert [p for p in private_cache.rglob("*") if p.is_file()] == [cached]


def test_find_links_come_before_the_index(project: Project, index: Index, find_links: Path) -> None:
    (find_links / NAME).write_bytes(index.archive)
    assert fetch(project, QuietReporter()).fetched
    assert index.asked == []


def test_offline_does_not_ask_the_index(project: Project, index: Index) -> None:
    with pytest.raises(Unavailable, match="--offline forbids"):
        fetch(project, QuietReporter(), offline=True)
    assert index.asked == []


def test_extra_index_is_asked_when_the_first_has_nothing(
    project: Project, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("simple", "empty"))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", index.url)
    assert fetch(project, QuietReporter()).fetched


def test_stated_digest_spares_the_download(index: Index, project: Project) -> None:
    index.stated = hashlib.sha256(index.archive).hexdigest()
    first = obtain(WANTED, QuietReporter(), offline=False)
    again = obtain(WANTED, QuietReporter(), offline=False)
    assert again.path == first.path
    assert index.asked.count(f"/files/{NAME}") == 1


def test_false_statement_of_the_index_is_not_believed(index: Index, project: Project) -> None:
    index.archive, index.stated = b"something else", "ab" * 32
    with pytest.raises(DigestMismatch, match="got sha256 .* expected " + "ab" * 32):
        obtain(Wanted("pkg", "1.0", (".tar.gz",), "ab" * 32), QuietReporter(), offline=False)


def test_download_that_is_cut_leaves_nothing(
    project: Project, index: Index, private_cache: Path
) -> None:
    index.cut = 10
    with pytest.raises(Unavailable, match="cannot get pkg") as caught:
        fetch(project, QuietReporter())
    assert "--offline" in caught.value.hint
    assert [p for p in private_cache.rglob("*") if p.is_file()] == []
    assert index.asked.count(f"/files/{NAME}") == packageindex.ATTEMPTS
    index.cut = 0
    assert fetch(project, QuietReporter()).fetched


def test_short_failure_of_the_network_is_overcome(project: Project, index: Index) -> None:
    index.broken_answers = packageindex.ATTEMPTS - 1
    assert fetch(project, QuietReporter()).fetched


def test_no_network_says_which_source_failed_and_what_helps(
    project: Project, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:1/simple")
    with pytest.raises(Unavailable) as caught:
        fetch(project, QuietReporter())
    assert "PIP_FIND_LINKS" in caught.value.hint
    assert any(line.startswith("http://***@127.0.0.1:1/simple: ") for line in caught.value.details)
    assert "secret" not in "".join(caught.value.details)


def test_project_that_the_index_does_not_have(project: Project, index: Index) -> None:
    with pytest.raises(Unavailable) as caught:
        obtain(Wanted("other", "1.0", (".tar.gz",)), QuietReporter(), offline=False)
    assert any("404" in line for line in caught.value.details)


def test_version_that_the_index_does_not_have(project: Project, index: Index) -> None:
    with pytest.raises(Unavailable, match=r"no file \.tar\.gz of it was found") as caught:
        obtain(Wanted("pkg", "9.9", (".tar.gz",)), QuietReporter(), offline=False)
    assert "pip config list" in caught.value.hint


def test_find_links_place_that_is_not_there_is_passed_over(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert fetch(project, QuietReporter()).fetched


# --- pip's settings -----------------------------------------------------------------------


def test_environment_wins_over_configuration_file(
    find_links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = http://one.invalid/\nextra-index-url =\n  http://a.invalid/\n"
        "  http://b.invalid/\ntrusted-host = a.invalid\ntimeout = 3\n"
        "[install]\ntrusted-host = b.invalid\n[list]\nindex-url = http://no.invalid/\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    settings = pip_settings()
    assert settings.index_urls == (
        "http://one.invalid/",
        "http://a.invalid/",
        "http://b.invalid/",
    )
    assert settings.find_links == (str(find_links),)
    assert settings.trusted_hosts == ("b.invalid",)
    assert (settings.timeout, settings.cert) == (3.0, tmp_path / "ca.pem")
    monkeypatch.setenv("PIP_INDEX_URL", "http://two.invalid/")
    assert pip_settings().index_urls[0] == "http://two.invalid/"
    monkeypatch.setenv("PIP_NO_INDEX", "true")
    assert pip_settings().index_urls == ()


def test_default_index_is_pips_own(find_links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    (url,) = pip_settings().index_urls
    assert url.startswith("https://")
    assert url.endswith("/simple")


def test_certificates_that_are_not_there_are_named(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    with pytest.raises(Unavailable, match=r"ca\.pem") as caught:
        fetch(project, QuietReporter())
    assert "PIP_CERT" in caught.value.hint


def test_interpreter_without_pip_is_told(find_links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipsettings.sys, "executable", "/bin/false")
    with pytest.raises(ToolMissing, match="cannot ask pip") as caught:
        pip_settings()
    assert "ensurepip" in caught.value.hint


@pytest.mark.parametrize("variable", ["PIP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("value", ["http://[::x", "::bad::", "http://h:x"])
def test_proxy_that_is_no_address_is_named(
    project: Project, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(Unavailable, match="the proxy setting does not work") as caught:
        fetch(project, QuietReporter())
    assert variable.upper().removeprefix("PIP_") in caught.value.hint.upper()


def test_index_that_is_no_address_is_told_without_its_password(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:secret@[::x/simple")
    with pytest.raises(Unavailable) as caught:
        fetch(project, QuietReporter())
    assert "http://***@[::x/simple" in str(caught.value.details)
    assert "secret" not in str(caught.value.details)


def test_server_is_asked_for_the_file_as_it_is(project: Project, index: Index) -> None:
    """One that packs it once more would change the digest."""
    fetch(project, QuietReporter())
    assert index.accepted[-1] == "identity"
