"""The shell text that starts a command in a container on a host, by one of six engines. Pure.

The host decides what only it knows: which engine it has, whether it has GPUs and RDMA devices, its
user's numbers. The container shares the host's network, IPC and process numbers: so MPI's shared
memory and the pids that agents, ``dispatch sweep`` and ``dispatch debug`` use mean the same inside
and outside. Its output goes to no log of the engine's, since it is the agent's protocol.
"""

from __future__ import annotations

import re
import shlex
from typing import Literal

from dispatcher.model.errors import UsageError
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.frozen import Value, value
from dispatcher.model.names import quoted

EngineName = Literal["auto", "docker", "podman", "nerdctl", "apptainer", "enroot"]

#: begins each message of this text
MARK = "dispatch-container: "
#: exit code of docker, podman and nerdctl for their own failures, and of our text
ENGINE_FAILED = 125
#: labels of a container: its run and, in one engine for many users, its user
RUN_LABEL, USER_LABEL = "dispatch.run", "dispatch.uid"
#: how a container's name begins, which goes on with the run id and a number
NAME = "dispatch-"


@value
class Engine(Value):
    """The words of one engine, as shell text; ``$u`` and ``$g`` are the user's numbers.

    Every container gets ``options``; ``gpus`` and ``fabric`` only where the host has such devices.
    ``mount`` has two formats of a bind mount, the second for reading only. ``inside`` comes between
    the image and the shell text.
    """

    options: str
    gpus: str
    mount: tuple[str, str]
    fabric: str = ""
    terminal: str = ""
    inside: str = "/bin/sh -c"


def _daemon(more: str, gpus: str) -> Engine:
    options = (
        f"run -i --rm --pull=never --name=$n --label={RUN_LABEL}=$r --label={USER_LABEL}=$u "
        "--network=host --ipc=host --pid=host --entrypoint=/bin/sh $x " + more
    )
    mount = ("--volume={}:{}", "--volume={}:{}:ro")
    return Engine(options, gpus, mount, "--device=/dev/infiniband", "-t", "-c")


#: from podman-run(1), docker's and nerdctl's reference, apptainer-exec(1), enroot's start.md.
#: Limits of a container are the host's: podman copies them, docker's daemon may set any
ENGINES = {
    "docker": _daemon(
        "--user=$o --log-driver=none --ulimit=memlock=-1:-1 --security-opt=label=disable",
        "--gpus=all",
    ),
    "podman": _daemon(
        "$k --log-driver=none --ulimit=host --pids-limit=-1 --security-opt=label=disable",
        "--device=nvidia.com/gpu=all",
    ),
    # has no log driver that keeps nothing
    "nerdctl": _daemon("--user=$o --log-opt=max-size=1m --log-opt=max-file=1 $m", "--gpus=all"),
    "apptainer": Engine("exec", "--nv", ("--bind={}:{}", "--bind={}:{}:ro")),
    "enroot": Engine(
        "start $x",
        "--env=NVIDIA_VISIBLE_DEVICES=all",
        ("--mount={}:{}:none:x-create=auto,rbind", "--mount={}:{}:none:x-create=auto,rbind,ro"),
    ),
}
#: other names of an engine's program
_PROGRAMS = {"apptainer": ("apptainer", "singularity")}

#: $x: variables of the login that the agent needs, by name: the link that it watches, the GPUs that
#: a batch system chose, and the home of a user whom the image does not know
#: $o: the user inside whose processes are the user's on the host; it is root if no root's daemon
#: starts the container
_FACTS = (
    "u=$(id -u) g=$(id -g) n={name}$r-$$;o=$u:$g k=--userns=keep-id m=;"
    "ulimit -l unlimited 2>/dev/null||ulimit -S -l $(ulimit -H -l) 2>/dev/null;"
    "[ $u = 0 ]&&k=--user=0:0;"
    'x=;[ "$SSH_CONNECTION" ]&&x=--env=SSH_CONNECTION;'
    '[ "$CUDA_VISIBLE_DEVICES" ]&&x="$x --env=CUDA_VISIBLE_DEVICES";'
    '[ "$(ulimit -l 2>/dev/null)" = unlimited ]&&m=--ulimit=memlock=-1:-1;'
    'case $u:$e in 0:*);;*:nerdctl)o=0:0;;*:docker)[ "$DOCKER_HOST" ]||'
    "[ -w /var/run/docker.sock ]||o=0:0;;esac;"
    'case $u:$o:$HOME in 0:*|*:0:0:*|*:);;*)x="$x --env=HOME";;esac;'
)
_FAIL = f'fail(){{ echo "{MARK}$*" >&2;exit {ENGINE_FAILED};}};'


@value
class Mount(Value):
    """A folder or file of the host, and its path in the container."""

    source: str
    target: str
    read_only: bool = False


def parse_mount(text: str) -> Mount:
    """The value of ``--mount``: ``SRC:DST`` or ``SRC:DST:ro``. Raises: UsageError."""
    source, _, rest = text.partition(":")
    target, colon, mode = rest.partition(":")
    is_path = [re.fullmatch(r"/[^\0-\x1f,\\]*", path) for path in (source, target)]
    if not all(is_path) or (colon and mode not in ("ro", "rw")):
        raise UsageError(
            f"--mount {quoted(text)}: not SRC:DST or SRC:DST:ro with absolute paths",
            hint="--mount /data:/data:ro",
        )
    return Mount(source, target, mode == "ro")


@value
class Container(Value):
    """The container that each host starts.

    The host mounts each of ``folders`` that it has at the same path; a missing source of ``mounts``
    is a failure. The engine gets ``arguments`` before the image. ``run_id`` names the container.
    """

    image: str
    run_id: str
    engine: EngineName = "auto"
    folders: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w./][\w.:/@+=~-]*", self.image, re.ASCII):
            raise UsageError(
                f"--container-image: not the name of an image: {quoted(self.image)}",
                hint="--container-image nvcr.io/nvidia/pytorch:25.01-py3",
            )
        if any("\0" in text for text in (*self.folders, *self.arguments)):
            raise UsageError("--container-arg: a NUL byte: no program can be given one")

    @property
    def is_file(self) -> bool:
        """Whether the image is a file or folder of the host."""
        return self.image[0] in "/." or self.image.endswith((".sif", ".sqsh"))

    @property
    def candidates(self) -> tuple[str, ...]:
        """The engines that may have this image, the first choice first."""
        if self.engine != "auto":
            return (self.engine,)
        if self.image.endswith(".sqsh"):
            return ("enroot", "apptainer")
        if self.is_file or "://" in self.image:
            return ("apptainer",)
        return ("docker", "podman", "nerdctl", "enroot")

    def command(self, inside: str, *, terminal: bool = False, parent: bool = False) -> str:
        """The host's command line that runs ``inside``, a line for a shell, in the container.

        With ``terminal`` the container gets a terminal. With ``parent`` the variable ``p`` has the
        number of the process that a command's watcher watches.
        """
        text = f"r={self.run_id} e= f=;{_FAIL}" + self._choose() + self._mounted()
        text += _FACTS.format(name=NAME) + "case $e in "
        for name in self.candidates:
            engine = ENGINES[name]
            programs = "|".join(_PROGRAMS.get(name, (name,)))
            words = f'{engine.options} {engine.terminal if terminal else ""} $d "$@"'
            gpus = f"[ -e /dev/nvidiactl ]&&d='{engine.gpus}';"
            if engine.fabric:
                gpus += f'[ -d /dev/infiniband ]&&d="$d {engine.fabric}";'
            extra = shlex.join((*self.arguments, self.image))
            first = "p=$0;export p;" if parent else ""
            tail = f"{engine.inside} {shlex.quote(first + inside)} $PPID"
            text += f"{programs}){self._set_mounts(engine)}{gpus}exec $e {words} {extra} {tail};;"
        return f"exec /bin/sh -c {shlex.quote(text + 'esac')}"

    def _choose(self) -> str:
        """Text that sets ``e`` to the only engine, or to the first that has the image."""
        programs = [p for name in self.candidates for p in _PROGRAMS.get(name, (name,))]
        looked = " ".join(programs)
        image = shlex.quote(self.image)
        text = (
            f'for c in {looked};do command -v $c >/dev/null 2>&1&&{{ e=${{e:-$c}};f="$f $c";}};'
            f'done;[ "$e" ]||fail no engine: looked for {looked};'
        )
        if self.is_file:
            return text + f"[ -e {image} ]||fail no image: {image};"
        return text + (
            f'case $f in " "*" "*)e=;for c in $f;do $c image inspect {image} >/dev/null 2>&1&&'
            f'{{ e=$c;break;}};done;[ "$e" ]||fail no image: none of$f has {image};;esac;'
        )

    def _mounted(self) -> str:
        """Text that fails where the host lacks the source of a mount."""
        sources = (shlex.quote(mount.source) for mount in self.mounts)
        return "".join(f"[ -e {one} ]||fail no such file: --mount {one};" for one in sources)

    def _set_mounts(self, engine: Engine) -> str:
        """Text that makes the mounts the shell's arguments."""
        text = "d=;set --;"
        for folder in dict.fromkeys(self.folders):
            word = shlex.quote(engine.mount[0].format(folder, folder))
            if folder != "/" and ":" not in folder:
                text += f'[ -d {shlex.quote(folder)} ]&&set -- "$@" {word};'
        for one in self.mounts:
            word = engine.mount[one.read_only].format(one.source, one.target)
            text += f'set -- "$@" {shlex.quote(word)};'
        return text


#: what engines print -> what it means, and what helps; {image} and {pull} are filled in
_SAID: tuple[tuple[str, str | None, str], ...] = (
    (
        r"image not known|[Nn]o such image|Unable to find image|image .*not found|no image: ",
        "the host has no image {image}",
        "{pull}",
    ),
    (
        r"CDI device|nvidia-container|could not select device driver",
        None,
        "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml  # as root, on the host; docker: "
        "nvidia-ctk runtime configure",
    ),
    (r"daemon|permission denied.*\.sock", None, "docker info  # on the host, as your user"),
    (
        r"exec: \"/bin/sh\"|stat /bin/sh|file [`'\"]*/bin/sh[`'\"]* not found",
        "the image {image} has no /bin/sh",
        "an image with a shell and Python 3.8 or later",
    ),
    (r"no engine: looked for", None, "--container-engine ENGINE, or install one on the host"),
)


def explained(failure: Failure, container: Container, host: str) -> Failure:
    """``failure`` of the start on ``host``, in terms of the container where it is about that."""
    image = container.image
    if failure.kind is Kind.NO_PYTHON:
        why = f"{failure.why} in the image {image}"
        hint = "an image with the whole of Python 3.8 or later (Debian: python3, not -minimal)"
        return Failure(failure.kind, why, hint)
    if failure.kind not in (Kind.BOOT, Kind.START):
        return failure
    said = failure.why.rpartition(MARK)[2]
    engine = next((name for name in container.candidates if name in said), "docker")
    engine = "podman" if "image not known" in said else engine  # it does not name itself
    pull = f"dispatch exec -w {host} -- {engine} pull {image}"
    if container.is_file:
        pull = f"dispatch put -w {host} {image} {image}"
    for pattern, means, help in _SAID:
        if re.search(pattern, said):
            why = (means or said).format(image=image)
            return Failure(Kind.CONTAINER, why, help.format(pull=pull))
    if MARK in failure.why or re.match(r"exit (status|code) 12[567]\b", said):
        return Failure(Kind.CONTAINER, said)
    return failure
