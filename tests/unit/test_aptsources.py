# SPDX-License-Identifier: Apache-2.0
"""Which of a machine's apt sources is Debian's archive."""

from __future__ import annotations

import pytest

from patchctl.formats.aptsources import Archive, debian_archives, sources_text

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"

DEB822 = f"""\
# a comment
Types: deb
URIs: http://first.example/debian
Suites: bookworm
Enabled: no

Types: deb-src
URIs: http://src.example/debian
Suites: bookworm

Types: deb
URIs: http://security.example/debian-security
Suites: bookworm-security
Signed-By: {KEYS}

Types: deb deb-src
# inside a stanza
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: {KEYS}
"""


def test_deb822_takes_the_enabled_binary_main_archive() -> None:
    assert debian_archives(DEB822, deb822=True) == [
        Archive("http://mirror.example/debian", "bookworm", KEYS)
    ]


def test_deb822_with_crlf_and_an_embedded_key_keeps_the_key() -> None:
    text = (
        "Types: deb\r\nURIs: https://m.example/debian\r\nSuites: trixie\r\nComponents: main\r\n"
        "Signed-By:\r\n -----BEGIN PGP PUBLIC KEY BLOCK-----\r\n .\r\n xyz\r\n"
    )
    (archive,) = debian_archives(text, deb822=True)
    assert archive.signed_by == "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n xyz"
    again = sources_text(archive, suite="trixie", component="main", architecture="amd64")
    assert debian_archives(again, deb822=True) == [archive]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deb http://m.example/debian bookworm main", [("http://m.example/debian", "")]),
        (
            f"deb [arch=amd64 signed-by={KEYS}] http://m.example/debian/ stable main contrib",
            [("http://m.example/debian/", KEYS)],
        ),
        ("# deb http://m.example/debian bookworm main", []),
        ("deb-src http://m.example/debian bookworm main", []),
        ("deb http://m.example/debian-security bookworm-security main", []),
        ("deb http://m.example/debian bookworm-backports main", []),
        ("deb http://packages.example/apt cloud-sdk-bookworm main", []),
        ("deb http://ubuntu.example/ubuntu noble main", []),
        ("deb cdrom:[Debian 12]/ bookworm main", []),
        ("", []),
    ],
)
def test_one_line_sources(line: str, expected: list[tuple[str, str]]) -> None:
    found = debian_archives(line + "\n", deb822=False)
    assert [(a.uri, a.signed_by) for a in found] == expected


def test_sources_text_names_one_suite_with_the_machines_mirror_and_keys() -> None:
    archive = Archive("http://m.example/debian", "bookworm", KEYS)
    text = sources_text(archive, suite="trixie", component="non-free", architecture="amd64")
    assert text == (
        "Types: deb\nURIs: http://m.example/debian\nSuites: trixie\nComponents: non-free\n"
        f"Architectures: amd64\nSigned-By: {KEYS}\n"
    )
