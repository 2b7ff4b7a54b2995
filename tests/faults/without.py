"""``dispatch`` with mechanisms switched off: what a control runs in place of the real one.

    without.py MECHANISM[,MECHANISM...] [ARGUMENTS OF DISPATCH]

A control is a row of the fault matrix that must fail when the row's mechanism is missing. The
product has no switch for that: here the agent's source is changed on its way to the host, and
parts of the launcher are replaced before it starts. A text or a name that is no longer there is
an error, so that a control cannot quietly lose its point.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

#: puts a value in place of an attribute, as ``setattr`` does
Put = Callable[[Any, str, Any], object]

#: mechanism -> (module of the agent, text, what stands there instead), ...
AGENT: dict[str, tuple[tuple[str, str, str], ...]] = {
    "subreaper": (("host.proctree", "_prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)", "pass"),),
    "sweep": (("host.proctree", "    me = os.getpid()\n", "    return set(), []\n    me = 0\n"),),
    "sweep limit": (("host.proctree", "limit: float = 5.0", "limit: float = 1e6"),),
    "drain limit": (("agent.node", "DRAIN = 2.0", "DRAIN = 1e6"),),
    # the end of its output is taken for the end of a rank
    "exit by wait": (
        (
            "agent.agent_loop",
            "        if not member.pipes and member.status is not None:\n",
            "        if not member.pipes and member.status is None:\n"
            "            proctree.send_signal(-member.pid, signal.SIGKILL)\n"
            "        if not member.pipes and member.status is not None:\n",
        ),
    ),
    "program check": (
        (
            "agent.agent_loop",
            "facts, problems = host_facts.judged(asked, self.watched)",
            "facts, problems = host_facts.judged(asked, self.watched)[0], []",
        ),
    ),
    "port check": (("agent.agent_loop", 'problems.append(["port", ', '(["port", '),),
    "autopsy": (
        ("agent.agent_loop", "if not member.status or not self.no_failure_yet:", "if True:"),
    ),
    "guardian": (("agent.guardian", "proctree.kill_all(_reap_all)", "pass"),),
    "ranks' death signal": (
        (
            "host.process",
            "if not proctree.signal_with_parent(parent, signal.SIGKILL):",
            "if False:",
        ),
    ),
    "agent's death signal": (
        (
            "agent.guardian",
            "if not proctree.signal_with_parent(guardian, signal.SIGTERM):",
            "if False:",
        ),
    ),
    "lifeline": (
        ("agent.agent_loop", '        self.tell(("lifeline", self.guardian.why()))\n', ""),
    ),
    "lease": (
        ("agent.node", 'if name == "lease":\n', 'if name == "lease":\n            return []\n'),
    ),
    "resting lease": (
        ("agent.node", 'self.paused = True\n            self.deadlines.pop("lease", None)', "pass"),
    ),
    "monotonic clock": tuple(
        (module, "from time import monotonic\n", "from time import time as monotonic\n")
        for module in ("agent.agent_loop", "agent.guardian")
    ),
    # faults rather than mechanisms: agent and guardian die before anybody knows more than their
    # folder; an agent that sends less than it read
    "both at the start": (
        (
            "host.own_folder",
            "os.mkdir(path, 0o700)",
            "os.mkdir(path, 0o700); os.uname().nodename == 'n2' and "
            "[os.kill(pid, 9) for pid in (os.getppid(), os.getpid())]",
        ),
    ),
    "whole output": (
        ("agent.agent_loop", "encode(frames.OUTPUT, data, ", "encode(frames.OUTPUT, data[1:], "),
    ),
}


def _handler(put: Put, event: str, change: Callable[[Any], Any]) -> None:
    """Have the job's rule for ``event`` see ``change(event)``."""
    from dispatcher.core.run.attempt import AttemptMachine

    rule = getattr(AttemptMachine, event)
    put(AttemptMachine, event, lambda self, event, now: rule(self, change(event), now))


def _first_failure(put: Put) -> None:
    """A rank's failure is no reason to end the others."""
    _handler(put, "_on_rank_exited", lambda event: replace(event, status=0))


def _waiting(put: Put) -> None:
    """Any rank's end ends the job."""
    _handler(put, "_on_rank_exited", lambda event: replace(event, status=event.status or 1))


def _byte_count(put: Put) -> None:
    _handler(put, "_on_output_ended", lambda event: replace(event, received=event.sent))


def _grace(put: Put) -> None:
    """TERM is waited on for ever."""
    from dispatcher.core.run import attempt

    put(attempt, "kill_steps", lambda cause, grace, first: [(signal.SIGTERM, 1e6)])


def _continuing(put: Put) -> None:
    from dispatcher.core.run.attempt import AttemptMachine

    send = AttemptMachine._signal_all
    put(
        AttemptMachine,
        "_signal_all",
        lambda self, n, **k: [] if n == signal.SIGCONT else send(self, n, **k),
    )


def _signals(put: Put) -> None:
    from dispatcher.runner.run import run_loop

    put(run_loop, "HANDLED", ())


def _heartbeats(put: Put) -> None:
    from dispatcher.core.run.attempt import AttemptMachine

    put(AttemptMachine, "_expect_heartbeat", lambda self, node, now: None)


def _end_of_link(put: Put) -> None:
    from dispatcher.runner.run.agent_link import AgentLink

    put(AgentLink, "_end_of", lambda self, link: None)


def _connect_limit(put: Put) -> None:
    from dispatcher.runner.loop import ConnectGate

    begin: Any = ConnectGate.__init__
    put(ConnectGate, "__init__", lambda self, most, seconds: begin(self, most, 1e6))


def _host_keys(put: Put) -> None:
    from dispatcher.transport.ssh_auth.host_keys import HostKeyCheck

    put(HostKeyCheck, "verify", lambda self, blob, kind: None)


def _sync_marker(put: Put) -> None:
    """All that a host says is taken for frames."""
    from dispatcher.bootstrap.payload import SyncScanner
    from dispatcher.remote.protocol.frames import SYNC

    put(SyncScanner, "feed", lambda self, data: data.removeprefix(SYNC))


def _sweep_limit(put: Put) -> None:
    from dispatcher.core.run import attempt

    put(attempt, "SWEEP_LIMIT", 1e6)


def _monotonic_clock(put: Put) -> None:
    import time

    put(time, "monotonic", time.time)


def _orphan_check(put: Put) -> None:
    """Hosts that were given up are not looked at again."""
    from dispatcher.core.run.restart import OrphanCheck

    put(OrphanCheck, "plan", lambda self, fences, over, now: [])


def _search_by_run_id(put: Put) -> None:
    """Nobody looks for what carries a run's id."""
    from dispatcher.bootstrap import shell

    put(shell, "sweep_command", lambda run_ids, *, kill: ("/bin/sh", "-c", ":"))


def _own_run_id(put: Put) -> None:
    """Processes of any run are taken for those of the one that is asked for."""
    from dispatcher.bootstrap import shell

    put(shell, "_SCRIPT", _changed(shell._SCRIPT, '[ "$w" = "$i" ]', '[ "$w" ]'))


def _known_events(put: Put) -> None:
    """A fault rather than a mechanism: the job has no rule for what happens."""
    from dispatcher.core.events import run_events

    _after_start(put, type("Unknown", (run_events.RankSpawned,), {}))


def _sound_core(put: Put) -> None:
    """Another fault: the core raises what nobody expects."""
    from dispatcher.core.events import run_events
    from dispatcher.core.run.run_machine import RunMachine

    odd = type("Odd", (run_events.RankSpawned,), {})
    handle: Any = RunMachine.handle

    def broken(self: Any, event: Any, now: float) -> Any:
        if isinstance(event, odd):
            raise KeyError("odd")
        return handle(self, event, now)

    put(RunMachine, "handle", broken)
    _after_start(put, odd)


def _after_start(put: Put, kind: Any) -> None:
    """An event of ``kind`` happens when the first rank has said something."""
    from dispatcher.runner.run.run_loop import Runner

    begin: Any = Runner.__init__

    def listen(self: Any, *arguments: Any, **fields: Any) -> None:
        begin(self, *arguments, **fields)
        output: Any = self._output
        said: list[Any] = []

        def heard(node: int, rank: int, stream: int, data: bytes) -> None:
            output(node, rank, stream, data)
            if not said:
                said.append(True)
                self.tell(kind(node, rank, 1))

        self._output = heard

    put(Runner, "__init__", listen)


#: mechanism -> what switches it off in the launcher
LAUNCHER: dict[str, Callable[[Put], None]] = {
    "first failure": _first_failure,
    "waiting": _waiting,
    "byte count": _byte_count,
    "grace": _grace,
    "continuing": _continuing,
    "signals": _signals,
    "heartbeats": _heartbeats,
    "end of link": _end_of_link,
    "connect limit": _connect_limit,
    "host keys": _host_keys,
    "sync marker": _sync_marker,
    "sweep limit": _sweep_limit,
    "monotonic clock": _monotonic_clock,
    "orphan check": _orphan_check,
    "search by run id": _search_by_run_id,
    "own run id": _own_run_id,
    "known events": _known_events,
    "sound core": _sound_core,
}


def _changed(text: str, old: str, new: str) -> str:
    if old not in text:
        raise ValueError(f"there is no longer {old!r}")
    return text.replace(old, new)


#: what is a fault and no mechanism; it has a row instead of a control
FAULTS = {"both at the start", "whole output", "known events", "sound core"}


def _put(owner: Any, name: str, value: Any) -> None:
    """As ``setattr``; what is not there cannot be switched off."""
    getattr(owner, name)
    setattr(owner, name, value)


def switch_off(names: str, put: Put = _put) -> None:
    """Change this process so that ``dispatch`` has none of ``names``, told apart by commas."""
    patches: list[tuple[str, str, str]] = []
    for name in names.split(","):
        if name not in AGENT and name not in LAUNCHER:
            raise ValueError(f"there is no {name!r}")
        patches += AGENT.get(name, ())
        if name in LAUNCHER:
            LAUNCHER[name](put)
    from dispatcher.bootstrap import payload

    source = payload.source

    def weakened(module: str) -> str:
        text = source(module)
        for where, old, new in patches:
            if where == module:
                text = _changed(text, old, new)
        return text

    put(payload, "source", weakened)


if __name__ == "__main__":
    switch_off(sys.argv.pop(1))
    from dispatcher.cli import console

    console()
