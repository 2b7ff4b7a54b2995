"""Programs that give a byte stream: what they are started with, and what they cannot do."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator

import pytest
from cases import cases

from dispatcher.model.errors import UsageError
from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import Link, Target, Transport, Window
from dispatcher.transport.process.command import SRUN, CommandTransport, LocalTransport, template

from ..conftest import gather

ALL = ("printf", "%s|", "{host}", "{user}", "{port}", "{command}", "x{host}y{port}")


def said(transport: CommandTransport, target: Target, command: str = "run it") -> str | Failure:
    """What the program says, or why it was not started."""
    opened = transport.open(target, command, time.monotonic() + 40)
    if isinstance(opened, Link):
        output = gather(opened)[0].decode()
        opened.close()
        transport.close()
        return output
    return opened


@cases(
    ("words", "target", "output"),
    [
        (ALL, Target("n1", "me", 2222), "n1|me|2222|run it|xn1y2222|"),
        (("printf", "%s|", "{host}"), Target("n1"), "n1|run it|"),
        (("printf", "%s|", "{{host}}", "-l{user}"), Target("n1", "me"), "{host}|-lme|run it|"),
        (("printf", "%s|", "{command}", "{host}"), Target("::1"), "run it|::1|"),
    ],
)
def test_the_words_of_a_program(words: tuple[str, ...], target: Target, output: str) -> None:
    assert said(CommandTransport(words), target) == output


@cases(
    ("words", "target", "why"),
    [
        (ALL, Target("n1", "me"), "the transport command wants {port}, which is not given"),
        (ALL, Target("n1", None, 22), "the transport command wants {user}, which is not given"),
        (("ssh", "{host}"), Target("n1", "me"),
         "user me is set, and the transport command has no {user}"),
        (("ssh", "{host}", "{user}"), Target("n1", "me", 22),
         "port 22 is set, and the transport command has no {port}"),
        (("ssh", "{host}"), Target("-n1"), "bad host name: '-n1'"),
    ],
)  # fmt: skip
def test_what_a_template_cannot_say(words: tuple[str, ...], target: Target, why: str) -> None:
    assert said(CommandTransport(words), target) == Failure(Kind.CONFIG, why)


def test_a_program_gives_no_terminal() -> None:
    opened = CommandTransport(("true",)).open(Target("n1"), "true", time.monotonic() + 20, Window())
    assert opened == Failure(Kind.CONFIG, "the transport command gives no terminal")


@cases(
    ("words", "why"),
    [
        ((), "transport command: the template is empty"),
        (("ssh", "{hots}"), "transport command: unknown field {hots}; known: "
         "{host}, {user}, {port}, {command}"),
        (("ssh", "{"), "transport command: '{': "),
        (("ssh", "{}"), "transport command: unknown field {}; known: "),
    ],
)  # fmt: skip
def test_a_template_that_is_none(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        CommandTransport(words)
    assert caught.value.message.startswith(why)


def test_names_of_ways() -> None:
    assert CommandTransport(("x",)).name == "command"
    assert CommandTransport(("x",), "slurm").name == "slurm"
    assert LocalTransport().name == "local"


@cases(
    ("by", "line"),
    [
        (CommandTransport(("ssh", "-p", "{port}", "{host}")), "ssh -p 22 n1 'python3 -V'"),
        (CommandTransport(template("docker exec -i")), "docker exec -i n1 sh -c 'python3 -V'"),
        (LocalTransport(), "python3 -V"),
    ],
)
def test_how_a_user_does_the_same(by: Transport, line: str) -> None:
    assert by.by_hand(Target("n1", port=22), "python3 -V") == line


@pytest.fixture
def local() -> Iterator[LocalTransport]:
    made = LocalTransport()
    yield made
    made.close()


def test_this_machine_runs_shell_text_whatever_the_host(local: LocalTransport) -> None:
    link = local.open(Target("not a name at all"), "echo $((6 * 7))", time.monotonic() + 40)
    assert isinstance(link, Link)
    assert link.address == "127.0.0.1"
    assert gather(link)[0] == b"42\n"
    link.close()


def test_this_machine_gives_a_terminal(local: LocalTransport) -> None:
    window = Window(columns=99, rows=33)
    link = local.open(Target("x"), "stty size", time.monotonic() + 20, window)
    assert isinstance(link, Link)
    assert link.address == "127.0.0.1"
    assert gather(link)[0] == b"33 99\r\n"
    link.close()


COMMAND = "{command}"


@cases(
    ("text", "words"),
    [
        ("ssh", ("ssh", "{host}", COMMAND)),
        ("ssh -J gate {host}", ("ssh", "-J", "gate", "{host}", COMMAND)),
        ("/etc/mpi/kubexec.sh", ("/etc/mpi/kubexec.sh", "{host}", COMMAND)),
        (
            "kubectl exec -i {host} --",
            ("kubectl", "exec", "-i", "{host}", "--", "sh", "-c", COMMAND),
        ),
        (
            "/usr/bin/kubectl -n 'my ns' exec -i {host} -c main --",
            ("/usr/bin/kubectl", "-n", "my ns", "exec", "-i", "{host}", "-c", "main", "--",
             "sh", "-c", COMMAND),
        ),
        ("docker exec -i {host}", ("docker", "exec", "-i", "{host}", "sh", "-c", COMMAND)),
        (
            "sudo -n docker exec -i",
            ("sudo", "-n", "docker", "exec", "-i", "{host}", "sh", "-c", COMMAND),
        ),
        ("sudo ssh {host}", ("sudo", "ssh", "{host}", COMMAND)),
        ("ssh gate docker", ("ssh", "gate", "docker", "{host}", COMMAND)),
        ("docker exec -i", ("docker", "exec", "-i", "{host}", "sh", "-c", COMMAND)),
        ("ip netns exec {host}", ("ip", "netns", "exec", "{host}", "sh", "-c", COMMAND)),
        ("our-enter {host} --", ("our-enter", "{host}", "--", "sh", "-c", COMMAND)),
        ("our-shell {host} -c {command}", ("our-shell", "{host}", "-c", COMMAND)),
    ],
)  # fmt: skip
def test_template(text: str, words: tuple[str, ...]) -> None:
    assert template(text) == words
    CommandTransport(words).close()


@cases(
    ("text", "said", "hint"),
    [
        ("", "--by: an empty command", "--by 'kubectl exec -i {host} --'"),
        ("  ", "--by: an empty command", "--by 'kubectl exec -i {host} --'"),
        ("ssh 'a", "--by: no closing quotation", None),
    ],
)
def test_no_template(text: str, said: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        template(text, "--by")
    assert (caught.value.message[: len(said)], caught.value.hint) == (said, hint)
    with pytest.raises(UsageError, match="--rsh"):
        template(text)


def test_srun_is_a_template() -> None:
    assert template(shlex.join(SRUN)) == SRUN
    CommandTransport(SRUN).close()


@cases("text", ["ssh {hots}", "ssh {host} {0}", "ssh {host", "ssh {host.x}"])
def test_unknown_fields_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        CommandTransport(template(text))
