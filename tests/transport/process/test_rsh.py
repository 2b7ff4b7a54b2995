"""Remote-shell commands as users write them, and the templates they become."""

from __future__ import annotations

import shlex

import pytest
from cases import cases

from dispatcher.model.errors import UsageError
from dispatcher.transport.process.command import SRUN, CommandTransport, template

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
