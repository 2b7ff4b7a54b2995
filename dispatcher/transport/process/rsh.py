"""Remote-shell commands as ``CommandTransport`` templates: ``--rsh`` and ``--transport slurm``.

Two contracts are in use. ``ssh``, and every launch agent made for ``mpirun``
(Open MPI's ``plm_rsh_agent``, the ``kubexec.sh`` of MPIJobs), joins its last
arguments and gives them to a shell there: the command is one argument.
``kubectl exec``, ``docker exec`` and their kind start a program from its
arguments as they are: there the command is ``sh -c COMMAND``. Known programs
are told apart by name, as is anything that ends in ``--``; who knows better
writes ``{command}`` where the shell text belongs.
"""

from __future__ import annotations

import os
import shlex

from dispatcher.model.errors import UsageError

#: programs that start what they are given without a shell
_EXEC = frozenset({
    "apptainer", "chroot", "crictl", "docker", "incus", "ip", "kubectl", "lxc", "lxc-attach",
    "machinectl", "microk8s", "nerdctl", "nsenter", "oc", "podman", "singularity", "srun",
    "systemd-run",
})  # fmt: skip

#: One step a host beside whatever else runs in the job; the agent lives in it, and
#: Slurm ends all of the step when srun's connection or the job ends. srun(1).
SRUN = (
    "srun", "--nodes=1", "--ntasks=1", "--nodelist={host}", "--overlap", "--cpu-bind=none",
    "--mpi=none", "--unbuffered", "--quiet", "--job-name=dispatch", "sh", "-c", "{command}",
)  # fmt: skip


def template(text: str, flag: str = "--rsh") -> tuple[str, ...]:
    """The argv template of a remote-shell command as a user writes it.

    Without ``{host}`` the host follows the words, as ``mpirun`` has it.

    Raises: UsageError when there are no words or a quote is left open.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {str(error).lower()}: {text!r}") from None
    if not words:
        raise UsageError(f"{flag}: an empty command", hint=f"{flag} 'kubectl exec -i {{host}} --'")
    if not any("{host}" in word for word in words):
        words.append("{host}")
    if any("{command}" in word for word in words):
        return tuple(words)
    if os.path.basename(words[0]) in _EXEC or words[-1] == "--":
        return (*words, "sh", "-c", "{command}")
    return (*words, "{command}")
