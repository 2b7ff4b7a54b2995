"""The pages about the house are true: its tree, its walks, and the files they name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import test_layers

ROOT = Path(__file__).parents[1]
HOUSE, DESIGN = ROOT / "dispatcher", ROOT / "docs" / "design"
README = (DESIGN / "README.md").read_text()
#: rooms whose rule is no list of what belongs elsewhere
SAID_OTHERWISE = {"comm", "remote", "remote/protocol", "transport/tree"}
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]


def rooms() -> set[str]:
    """Folders of the house to depth two."""
    folders = {path.parent.relative_to(HOUSE) for path in HOUSE.rglob("__init__.py")}
    return {str(folder) for folder in folders if folder.parts}


def test_the_tree_is_drawn_as_it_is() -> None:
    tree = README.partition("```\n")[2].partition("```")[0]
    drawn, room = [], ""
    for line in tree.splitlines():
        name = line.split("/")[0]
        room = room if name.startswith(" ") else name
        drawn.append(f"{room}/{name.strip()}" if name.startswith(" ") else room)
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == rooms()
    assert [name for name in drawn if "/" not in name] == list(test_layers.MAY)


def test_every_room_says_what_it_has_and_what_it_never_has() -> None:
    for room in sorted(rooms()):
        doc = ast.get_docstring(ast.parse((HOUSE / room / "__init__.py").read_text())) or ""
        assert len(doc.splitlines()) >= 2, room
        if room not in SAID_OTHERWISE:
            assert re.search(r"Never\s+here", doc), room


def test_files_that_pages_name_are_there() -> None:
    folders = [ROOT, HOUSE, ROOT / "tests"]
    for page in PAGES:
        text = page.read_text()
        named = set(re.findall(r"`([\w./-]+/[\w.-]+\.py)\b", text))
        if page.parent == ROOT:  # those of the site are followed when it is built
            named |= {name.partition("#")[0] for name in re.findall(r"\]\(([^)]+)\)", text)}
        for name in sorted(named):
            if name and not name.startswith("http"):
                assert any((folder / name).exists() for folder in (*folders, page.parent)), (
                    f"{page.relative_to(ROOT)}: {name}"
                )


def test_every_page_of_the_design_is_listed() -> None:
    listed = re.findall(r"^\* \[([\w.]+)\]", README, re.M)
    assert sorted(listed) == sorted(p.name for p in DESIGN.glob("*.md") if p.name != "README.md")


def test_each_walk_enters_a_room_once() -> None:
    text = README.partition("## Walks")[2].replace("|---|---|---|\n", "")
    walks = re.findall(r"^\| room \|.*\n(?:\| .* \|\n)+", text, re.M)
    assert len(walks) == 5
    for walk in walks:
        entered = re.findall(r"^\| (\w+) \| `(\w+)/", walk, re.M)
        assert [said for said, _ in entered] == [room for _, room in entered]
        assert len({said for said, _ in entered}) == len(entered) >= 3
