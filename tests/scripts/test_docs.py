"""The site of the pages: it builds without a warning, and a reader's browser fetches nothing."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rig  # noqa: F401 - puts scripts/ on the path
import schemas

from dispatcher.cli import COMMANDS
from dispatcher.cli.entry import shown_name

ROOT = Path(__file__).parents[2]
#: what a browser fetches by itself: scripts, styles, pictures, fonts; not what a reader may click
FETCHED = re.compile(r"""<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=["']?([^"'\s>]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = ["build", "--strict", "--site-dir", str(folder), "--config-file", "mkdocs.yml"]
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *words], cwd=ROOT, timeout=200, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def test_every_command_has_its_page(site: Path) -> None:
    for name in COMMANDS:
        text = (site / "reference" / "commands" / f"{name}.html").read_text()
        assert shown_name(name) in text or name == "run"
        assert 'id="profile"' in text  # the anchor of an option that all have


def test_every_form_is_shown_and_its_schema_published(site: Path) -> None:
    text = (site / "reference" / "json.html").read_text()
    for path in (ROOT / "docs" / "reference" / "schemas").iterdir():
        # readers of an earlier version's files still find its schema
        assert f'href="schemas/{path.name}"' in text or path.stem not in schemas.schemas()
        assert (site / "reference" / "schemas" / path.name).read_text() == path.read_text()
    for shown in ("<code>RankEnding</code>", "<code>rank.exited</code>", "seconds since 1970."):
        assert shown in text


def test_a_browser_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    fetched = {place for page in pages for place in FETCHED.findall(page.read_text())}
    assert any(place.endswith(".css") for place in fetched)
    assert [place for place in sorted(fetched) if "//" in place] == []


def test_pictures_are_whole_and_a_command_makes_each() -> None:
    command = (ROOT / "scripts" / "screenshots").read_text()
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    for picture in (ROOT / "docs" / "img").iterdir():
        drawn = picture.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "://" not in drawn, f"{picture.name} needs something from elsewhere"
        assert len(drawn) < 50_000
        assert f'"{picture.stem}"' in command
        assert f"img/{picture.name})" in pages


def test_a_picture_that_moves_shows_its_end_where_nothing_moves() -> None:
    drawn = (ROOT / "docs" / "img" / "run.svg").read_text()
    still = re.sub(r'<g class="\w+" visibility="hidden">.*?</g>', "", drawn, flags=re.S)
    assert ("[rank-failed]" in still, "$" in still) == (True, False)  # the last look
    plain, _, moving = drawn.partition("@media screen and (prefers-reduced-motion:no-preference){")
    delays = re.findall(r"animation:t\d+ ([\d.]+)s (\S+)s step-end 3}", moving)
    assert (bool(delays), "animation" in plain) == (True, False)
    assert all(0 < float(total) + float(delay) <= 5 for total, delay in delays)


def test_no_backslash_of_markdown_is_shown(site: Path) -> None:
    text = (site / "guides" / "exec-peers.html").read_text()
    assert "| dshbak -c</code>" in text
    assert r"\|" not in text
    text = html.unescape((site / "reference" / "commands" / "exec.html").read_text())
    assert "; ^FILE is a hostfile" in text
    assert "Read FILE instead of ~/.ssh/config" in text


def test_the_tests_that_pages_name_are_there() -> None:
    named = re.compile(r"`([\w/]+/test_\w+)`: `(\w+)`")
    text = (ROOT / "docs" / "concepts" / "faults.md").read_text(encoding="utf-8")
    found = named.findall(text)
    assert len(found) > 20
    for place, name in found:
        assert f"def test_{name}(" in (ROOT / "tests" / f"{place}.py").read_text(), (place, name)
