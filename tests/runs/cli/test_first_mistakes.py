"""The mistakes everybody makes first, told of by hosts: each has a hint to paste."""

from __future__ import annotations

import shlex
import tempfile

from rig import Cluster

from ..conftest import PROGRAM, Desk


def test_a_script_that_is_nowhere(desk: Desk) -> None:
    (desk.folder / "train.py").write_text("")
    done = desk.run("-H", "localhost", "trian.py")
    assert done.returncode == 127
    assert "trian.py: no such file\n" in done.stderr
    assert done.stderr.endswith(
        "  hint: train.py  # no such script here either; did you mean this?\n"
    )


def test_the_hint_to_send_the_folder_does_what_it_says(cluster: Cluster) -> None:
    """The folder is on login alone, as hosts have a /tmp of their own."""
    place = tempfile.mkdtemp(prefix="copied-", dir="/tmp")
    text = (
        f"mkdir {place}/job && cd {place}/job && echo 'print(1)' > one.py && "
        f"hint=$({shlex.join(PROGRAM)} -H n1,n2 one.py 2>&1 | sed -n 's/^  hint: //p') && "
        f'echo "$hint" && eval "{shlex.join(PROGRAM)} -H n1,n2 ${{hint%%#*}} one.py" && '
        f"{shlex.join(PROGRAM)} -H n1,n2 one.py; "
        f"rm -r {place}; {shlex.join(PROGRAM)} exec -w n1,n2 rm -r {place}"
    )
    done = cluster.run(["sh", "-c", text])
    hint, *lines = done.stdout.splitlines()
    assert hint.startswith("--sync  # or "), done.stderr
    assert sorted(lines) == sorted(2 * ["[0] 1", "[1] 1"]), done.stderr
