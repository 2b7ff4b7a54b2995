"""The words for each engine, by a shell that finds programs in the engines' places."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from cases import cases

from dispatcher.model.errors import UsageError
from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.container.engines import (
    MARK,
    Container,
    EngineName,
    explained,
    parse_mount,
)

RUN = "20260131-142501-k3f9x2"
#: prints its arguments; knows the images that a file beside it names
PROGRAM = """#!/bin/sh
[ "$1 $2" = "image inspect" ] && { grep -qx "$3" "$0.images" 2>/dev/null; exit; }
printf '%s\\n' "${0##*/}" "$@"
"""
COMMON = (
    "run -i --rm --pull=never --name=dispatch-{run}-N --label=dispatch.run={run} "
    "--label=dispatch.uid={uid} --network=host --ipc=host --pid=host --entrypoint=/bin/sh "
)
OWN = "--user={uid}:{gid} " if os.getuid() == 0 else "--user=0:0 "
PODMANS = "--user=0:0 " if os.getuid() == 0 else "--userns=keep-id "
VOLUMES = "--volume={here}:{here} --volume=/etc:/data --volume=/usr:/usr:ro "
INSIDE = "inside 'it'"


def started(
    folder: Path, container: Container, *engines: str, gpus: bool = False, **environ: str
) -> list[str]:
    """What the host of these engines runs; of a failure, what it prints."""
    for tool in ("id", "grep"):
        found = shutil.which(tool)
        assert found is not None
        if not (folder / tool).exists():
            (folder / tool).symlink_to(found)
    for name in engines:
        (folder / name).write_text(PROGRAM)
        (folder / name).chmod(0o755)
    command = container.command(INSIDE)
    command = command.replace("/dev/nvidiactl", "/dev/null" if gpus else "/dev/no-gpu")
    command = command.replace("/dev/infiniband", "/dev" if gpus else "/dev/no-fabric")
    ended = subprocess.run(
        ["/bin/sh", "-c", command],
        env={"PATH": str(folder), **environ},
        capture_output=True,
        text=True,
    )
    return (ended.stdout or ended.stderr.removeprefix(MARK)).splitlines()


@cases(
    ("engine", "program", "words", "gpus"),
    [
        ("docker", "docker",
         COMMON + OWN + "--log-driver=none --ulimit=memlock=-1:-1 --security-opt=label=disable",
         "--gpus=all --device=/dev"),
        ("podman", "podman",
         COMMON + PODMANS + "--log-driver=none --ulimit=host --pids-limit=-1 "
         "--security-opt=label=disable",
         "--device=nvidia.com/gpu=all --device=/dev"),
        ("nerdctl", "nerdctl",
         COMMON + OWN + "--log-opt=max-size=1m --log-opt=max-file=1",
         "--gpus=all --device=/dev"),
        ("apptainer", "apptainer", "exec", "--nv"),
        ("apptainer", "singularity", "exec", "--nv"),
        ("enroot", "enroot", "start", "--env=NVIDIA_VISIBLE_DEVICES=all"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("has_gpus", [False, True])
def test_words(
    tmp_path: Path, has_gpus: bool, engine: EngineName, program: str, words: str, gpus: str
) -> None:
    here = tmp_path / program
    here.mkdir()
    mounts = tuple(map(parse_mount, ("/etc:/data", "/usr:/usr:ro")))
    container = Container(
        "img", RUN, engine, (str(here), "/", "/nowhere"), mounts, ("--shm-size=1g",)
    )
    found = started(here, container, program, gpus=has_gpus)
    text = " ".join(found)
    text = re.sub(rf"(--name=dispatch-{RUN})-\d+", r"\1-N", text)
    text = re.sub(r"\d+$", "PPID", text)
    if engine == "nerdctl":  # only where the host's limit allows it
        text = text.replace(" --ulimit=memlock=-1:-1", "")
    volumes = VOLUMES.format(here=here)
    if engine == "apptainer":
        volumes = volumes.replace("--volume", "--bind")
    if engine == "enroot":
        volumes = f"--mount={here}:{here}:none:x-create=auto,rbind "
        volumes += "--mount=/etc:/data:none:x-create=auto,rbind "
        volumes += "--mount=/usr:/usr:none:x-create=auto,rbind,ro "
    shell = "/bin/sh -c" if engine in ("apptainer", "enroot") else "-c"
    own = words.format(run=RUN, uid=os.getuid(), gid=os.getgid())
    start = " ".join(filter(None, (program, own, gpus if has_gpus else "")))
    assert text == f"{start} {volumes}--shm-size=1g img {shell} {INSIDE} PPID"


@cases(
    ("image", "installed", "having", "said"),
    [
        ("img", "podman", "", "podman run"),
        ("img", "docker podman", "podman", "podman run"),
        ("img", "docker podman nerdctl", "podman docker", "docker run"),
        ("img", "docker podman", "", "no image: none of docker podman has img"),
        ("img", "", "", "no engine: looked for docker podman nerdctl enroot"),
        ("docker://img", "docker apptainer", "", "apptainer exec"),
        ("docker://img", "docker singularity", "", "singularity exec"),
        ("/usr", "podman apptainer", "", "apptainer exec"),
        ("/no.sif", "podman apptainer", "", "no image: /no.sif"),
        ("img.sqsh", "podman enroot", "", "no image: img.sqsh"),
    ],
)
def test_the_host_chooses_an_engine(
    tmp_path: Path, image: str, installed: str, having: str, said: str
) -> None:
    here = tmp_path / f"{installed}-{having}".replace(" ", "-")
    here.mkdir(exist_ok=True)
    for name in having.split():
        (here / f"{name}.images").write_text(f"{image}\n")
    found = started(here, Container(image, RUN), *installed.split())
    assert " ".join(found[:2]).startswith(said)


def test_variables_of_the_login_pass_by_name(tmp_path: Path) -> None:
    engines: tuple[tuple[EngineName, bool], ...]
    engines = (("docker", True), ("enroot", True), ("apptainer", False))
    for engine, passed in engines:
        found = started(
            tmp_path,
            Container("img", RUN, engine),
            engine,
            SSH_CONNECTION="a 1 b 2",
            CUDA_VISIBLE_DEVICES="3",
        )
        assert ([word for word in found if word.startswith("--env=")] != []) is passed
        assert not {"3", "a 1 b 2"} & {word.partition("=")[2] for word in found}


def test_words_of_the_user_are_words_for_the_engine(tmp_path: Path) -> None:
    odd = tmp_path / "a b'c $HOME"
    odd.mkdir()
    mount = parse_mount(f"{odd}:/data $x:ro")
    container = Container("img", RUN, "podman", (str(odd),), (mount,), ("--env=A=$(id) 'b'",))
    found = started(tmp_path, container, "podman")
    assert found[-7:-1] == [
        f"--volume={odd}:{odd}", f"--volume={odd}:/data $x:ro", "--env=A=$(id) 'b'", "img", "-c",
        INSIDE,
    ]  # fmt: skip
    missing = Container("img", RUN, "podman", (), (parse_mount("/no where:/x"),))
    assert started(tmp_path, missing, "podman") == ["no such file: --mount /no where"]


def test_a_command_finds_the_process_to_watch(tmp_path: Path) -> None:
    container = Container("img", RUN, "apptainer")
    (tmp_path / "apptainer").write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    (tmp_path / "apptainer").chmod(0o755)
    command = container.command('echo "$p"', parent=True)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = ["/bin/sh", "-c", f"{shlex.join(['/bin/sh', '-c', command])}; :"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate()[0] == f"{process.pid}\n"


@pytest.mark.parametrize("text", ["/a", "/a:b", "a:/b", "/a:/b:x", "/a:/b,c", "/a:/b:ro:x", ""])
def test_mounts_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--mount"):
        parse_mount(text)


@pytest.mark.parametrize("image", ["", "-v", "a b", "a;b", "$(id)", "a\nb", "a\0"])
def test_images_that_are_none(image: str) -> None:
    with pytest.raises(UsageError, match="--container-image"):
        Container(image, RUN)


ENDED = "exit status 125 before the agent answered; remote said: "


@cases(
    ("image", "kind", "why", "new_kind", "new_why", "hint"),
    [
        ("img", Kind.BOOT, ENDED + "Error: img: image not known", Kind.CONTAINER,
         "the host has no image img", "dispatch exec -w n1 -- podman pull img"),
        ("img", Kind.START, "docker: Error response from daemon: No such image: img:latest",
         Kind.CONTAINER, "the host has no image img", "dispatch exec -w n1 -- docker pull img"),
        ("/a.sif", Kind.BOOT, ENDED + MARK + "no image: /a.sif", Kind.CONTAINER,
         "the host has no image /a.sif", "dispatch put -w n1 /a.sif /a.sif"),
        ("img", Kind.BOOT, ENDED + MARK + "no engine: looked for podman", Kind.CONTAINER,
         "no engine: looked for podman", "--container-engine"),
        ("img", Kind.BOOT, ENDED + "Error: unresolvable CDI devices nvidia.com/gpu=all",
         Kind.CONTAINER, "unresolvable CDI devices", "nvidia-ctk cdi generate"),
        ("img", Kind.BOOT, ENDED + "docker: Cannot connect to the Docker daemon at unix:///x.",
         Kind.CONTAINER, "Cannot connect", "docker info"),
        ("img", Kind.BOOT, ENDED.replace("125", "127") + 'runc: exec: "/bin/sh": stat /bin/sh: '
         "no such file or directory", Kind.CONTAINER, "the image img has no /bin/sh", "a shell"),
        ("img", Kind.NO_PYTHON, "python3 is incomplete: No module named '_ctypes'",
         Kind.NO_PYTHON, "No module named '_ctypes' in the image img", "not -minimal"),
        ("img", Kind.BOOT, ENDED + "Error: unknown flag: --x", Kind.CONTAINER, "unknown flag", ""),
        ("img", Kind.BOOT, "the link ended before the agent answered", Kind.BOOT, "the link", ""),
        ("img", Kind.AUTH, "no such image", Kind.AUTH, "no such image", ""),
    ],
)  # fmt: skip
def test_failures_are_explained(
    image: str, kind: Kind, why: str, new_kind: Kind, new_why: str, hint: str
) -> None:
    found = explained(Failure(kind, why), Container(image, RUN), "n1")
    assert found.kind is new_kind
    assert new_why in found.why
    assert hint in (found.hint or "")
