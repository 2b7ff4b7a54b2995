"""What ``{host}`` and ``{rank}`` become in the names of files."""

from __future__ import annotations

import pytest

from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host
from dispatcher.model.paths import fill, groups

HOSTS = (Host("n1", slots=2), Host("n2", slots=1))


@pytest.mark.parametrize(
    ("sources", "dest", "wanted"),
    [
        (["a"], "/x", [(("/x", ("a",)),), (("/x", ("a",)),)]),
        (["a-{host}"], "/{host}/", [(("/n1/", ("a-n1",)),), (("/n2/", ("a-n2",)),)]),
        (
            ["a-{rank}", "b"],
            "/x/",
            [(("/x/", ("a-0", "a-1", "b")),), (("/x/", ("a-2", "b")),)],
        ),
        (
            ["a-{rank}"],
            "/x-{rank}",
            [(("/x-0", ("a-0",)), ("/x-1", ("a-1",))), (("/x-2", ("a-2",)),)],
        ),
        (["{{host}}", "{}", "{a,b}"], "/{{x}}", [(("/{x}", ("{host}", "{}", "{a,b}")),)] * 2),
    ],
)
def test_what_goes_where(sources: list[str], dest: str, wanted: list[object]) -> None:
    assert groups(sources, dest, HOSTS) == wanted


@pytest.mark.parametrize("text", ["{user}", "/x/{Host}", "{rank}{_x}"])
def test_an_unknown_placeholder(text: str) -> None:
    with pytest.raises(UsageError, match="unknown placeholder") as caught:
        groups(["a"], text, HOSTS)
    assert "{{" in (caught.value.hint or "")


def test_ranks_must_be_known() -> None:
    with pytest.raises(UsageError, match="how many ranks has n3") as caught:
        groups(["{rank}"], "/x", [*HOSTS, Host("n3")])
    assert "n3:1" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a\0b"])
def test_no_host_name_leads_elsewhere(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be part of a path"):
        fill("/data/{host}/x", name)
