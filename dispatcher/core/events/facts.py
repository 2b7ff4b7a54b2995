"""``Facts``: what an agent says about its host before a start."""

from __future__ import annotations

from dispatcher.model.frozen import Value, value


@value
class Facts(Value):
    """What an agent says about its host; ``core`` judges it, nobody trusts it further.

    port: the port node 0 keeps free for MASTER_PORT, else None.
    error_folder: where ranks may write error files on that host, None if nowhere.
    machine: equal for two agents only if they run on the same machine.
    mark: when the progress file was last changed, in ns; None where there is none.
    script: CRC-32 of the script's beginning, None without a script. room: bytes that are
    free for temporary files and in shared memory, None where not known. visible:
    CUDA_VISIBLE_DEVICES as the agent found it.
    """

    hostname: str
    pid: int
    python: str
    cores: int
    gpus: int
    addresses: tuple[str, ...]
    machine: str
    error_folder: str | None = None
    port: int | None = None
    mark: int | None = None
    script: int | None = None
    room: tuple[int | None, int | None] = (None, None)
    visible: str | None = None
