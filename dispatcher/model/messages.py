"""Every message that ends a run or refuses a command: its code, its reason, its remedy.

The code follows the message on the screen and is in ``report.json`` and ``exec --json``. It does
not change; the texts may. The code of a class of ``model.errors`` is the class's name; the code of
a host that cannot be used is from ``model.failure.Kind``. Only ``dispatch explain`` and the
site load these texts.
"""

from __future__ import annotations

from dispatcher.model.frozen import Document, value


@value
class Message(Document):
    """``dispatch explain --json``: a message, or a list of all.

    what: in a line. why, do: paragraphs. exit_code: dispatch's exit code, as text.
    """

    schema = "message/1"

    code: str
    exit_code: str
    what: str
    why: str
    do: str


def _message(code: str, exit_code: str | int, what: str, why: str, do: str) -> Message:
    return Message(code, str(exit_code), what, _joined(why), do.strip("\n"))


def _joined(text: str) -> str:
    return " ".join(text.split())


_USAGE = 2
_CLUSTER = 125

RUN = (
    _message(
        "rank-failed", "the rank's own", "A rank ended with an exit code that is not 0.",
        """The rank's program ended with an error. It failed first; dispatch then ended the
        other ranks, so their later errors are only consequences. The reason follows the exit code,
        if the rank printed one. If the reason is only a lost peer, the lines below name the peer
        and any rank that failed on its own.""",
        """
Read the rank's last lines, below the message, and the hint if there is one. With --log-dir a file
has its whole output:

    dispatch -H hostfile --log-dir logs train.py
    less logs/latest/rank-00003.err
""",
    ),
    _message(
        "rank-killed", "128+n for signal n", "A rank was ended by a signal.",
        """dispatch did not send it. SIGKILL often means that the host ran out of memory; if the
        kernel log confirms that, a line below the message says so. SIGSEGV, SIGBUS and SIGABRT mean
        that native code crashed.""",
        """
Out of memory: use smaller batches or fewer data loaders. To see the memory of each rank:

    dispatch -H hostfile --sample 5 --log-dir logs train.py
    dispatch top

A crash: allow core files on the host (ulimit -c unlimited), or let Python print the place:

    dispatch -H hostfile -x PYTHONFAULTHANDLER=1 train.py
""",
    ),
    _message(
        "mpi-aborted", "MPI_Abort's code; 1 for 0", "A rank called MPI_Abort.",
        """The program, or a library in it, gave up and asked MPI to end the whole job. An uncaught
        exception does the same under mpi4py.run and dispatcher.comm.""",
        "Read the rank's last lines, below the message.",
    ),
    _message(
        "mpi-left-early", 1, "A rank exited with 0 without MPI_Init or MPI_Finalize.",
        """Other ranks are in MPI and would wait for it forever. Usually the program of one rank
        ends before MPI_Init or without MPI_Finalize: a return before mpi4py is imported,
        os._exit(0), exit(0) in C.""",
        """
Find the place where that rank exits. If each rank uses MPI alone, or not at all:

    dispatch -H hostfile --mpi none train.py
""",
    ),
    _message(
        "program-not-found", 127, "The program was not found on a host.",
        "The command's first word is not a program on that host.",
        """
Name it with its path, or copy it:

    dispatch put -H hostfile ./a.out "$PWD/"
""",
    ),
    _message(
        "program-not-executable", 126, "The program cannot be executed on a host.",
        """The file exists, but execve(2) refused it: no x permission, a script without a first
        line #!/..., a program for another processor, or a limit on open files or processes.""",
        """
    dispatch exec -b -H hostfile -- ls -l /path/to/program
    dispatch exec -b -H hostfile 'ulimit -n -u'
""",
    ),
    _message(
        "hosts-rejected", "125; 126 or 127 for a program",
        "Some hosts cannot be used, so nothing was started.",
        """dispatch checks every host before it starts the first rank. The table below the message
        has the reason for each host.""",
        """
Follow the hint below the table. Or run without these hosts, or check them:

    dispatch -H hostfile --exclude-unhealthy train.py
    dispatch check -H hostfile train.py
""",
    ),
    _message(
        "output-lost", _CLUSTER, "Bytes of a rank's output did not arrive.",
        """The agent counts the bytes that it reads from the rank, and dispatch the bytes that
        arrive. The numbers differ, so output was lost on the way, and the job counts as failed.""",
        "This should not happen. Please report it, with dispatch.jsonl of the log folder.",
    ),
    _message(
        "job-hung", 124, "Nothing happened for --hang-timeout seconds.",
        """All ranks stopped writing, computing and using their GPUs. Usually one rank took another
        code path and the others wait for it in a collective. The lines below show where each rank
        was, the outlier first; with torch they also name the missing rank and the evidence.""",
        """
Look at the outlier. If the program may be silent and idle for longer, allow more time, or give the
pattern of a line that shows progress:

    dispatch -H hostfile --hang-timeout 1800 train.py
    dispatch -H hostfile --hang-timeout 600 --progress-line 'step \\d+' train.py
""",
    ),
    _message(
        "time-limit", 124, "The job reached its --time-limit.",
        """dispatch sent its ranks a signal to end, and killed them after --grace. The variable
        MPIEXEC_TIMEOUT sets such a limit as well.""",
        """
Let the program save its work before that, and go on from there:

    dispatch -H hostfile --time-limit 04:00:00 --signal USR1@300 train.py
""",
    ),
    _message(
        "interrupted", "128+n; 130 for Ctrl-C", "dispatch itself was interrupted.",
        """It got a signal: Ctrl-C, a closed terminal, dispatch stop, a batch system's time limit.
        Only a second Ctrl-C shortens the time that the ranks have to end (--grace).""",
        """
To keep a job running after the terminal closes:

    dispatch --detach -H hostfile train.py
""",
    ),
    _message(
        "reader-left", 141, "The reader of standard output exited.",
        "The program after the pipe exited, as head does once it has its lines.",
        """
To keep the run going in such a case, write its output to files:

    dispatch -H hostfile --log-dir logs train.py | head
""",
    ),
    _message(
        "hosts-failed", "1, 3, 124 or 125; with -S the largest",
        "A command failed on some hosts.",
        """The lines below group the hosts by result: the command's own exit code, a time limit, or
        why the host could not be reached. "Not started": --max-fail, or a --serial batch in which
        every host failed, stopped the command before their turn. The exit code is then 3.""",
        """
Try the failed hosts again, and go on with the hosts that were not started:

    dispatch exec -H hostfile --failed-to failed.txt -- COMMAND
    dispatch exec --retry-failed failed.txt -- COMMAND
""",
    ),
)  # fmt: skip

HOSTS = (
    _message(
        "name-not-found", _CLUSTER, "The host's name has no address.",
        "It is not in DNS, not in /etc/hosts, and no Host in ~/.ssh/config gives it a HostName.",
        "    getent hosts NAME",
    ),
    _message(
        "unreachable", _CLUSTER, "The host cannot be reached.",
        """The kernel or a router on the way has no route to it, or the host stopped responding
        while its ranks ran. It is down, has another address, or its network is down. Its
        ranks may run on until their lease ends (--lease).""",
        """
    ping NAME
    dispatch -H hostfile --heartbeat 20 --lease 600 train.py     # wait for a shaky network
""",
    ),
    _message(
        "connection-refused", _CLUSTER, "The host answers, but nothing listens on that port.",
        "sshd does not run on that host or uses another port, or a firewall refuses connections.",
        """
    dispatch exec -w NAME -p 2222 hostname       # or NAME:2222 in the hostfile
""",
    ),
    _message(
        "timeout", _CLUSTER, "The host did not answer in time.",
        """The message names the step: the connection, the login, or the start of the agent. The
        cause may be a firewall that drops packets, or a slow login file.""",
        """
    time ssh NAME true
    dispatch -H hostfile --connect-timeout 30 --boot-timeout 60 train.py
""",
    ),
    _message(
        "connection-dropped", _CLUSTER, "The connection ended before the command began.",
        """sshd drops new connections if too many come at once (MaxStartups), and locks out users
        after too many failed logins. A restarting host drops connections, too. dispatch has tried
        several times.""",
        """
    dispatch -H hostfile --fanout 16 train.py    # fewer at once
    journalctl -u ssh                            # on that host
""",
    ),
    _message(
        "authentication-failed", _CLUSTER, "The host does not let you in.",
        """It knows none of your keys, or you have another user name on it. The message lists the
        other ways that it accepts: a password, or keyboard-interactive questions (--ask-pass
        prompts you for both); Kerberos (gssapi) or the key of your machine (hostbased), which need
        --transport ssh. dispatch sends a wrong password to no other host, so that it locks no
        accounts.""",
        """
    ssh -v NAME true                             # shows which keys are offered
    ssh-copy-id NAME
    dispatch -H hostfile --user NAME train.py
    dispatch exec -H hostfile --ask-pass uptime  # type the password, once for all
""",
    ),
    _message(
        "sudo-refused", _CLUSTER, "sudo refused on the host.",
        """The password was wrong, or sudoers does not allow you this command. You get a second
        try; a password that fails twice is not sent to any other host.""",
        "    dispatch exec -H hostfile --sudo -- true",
    ),
    _message(
        "host-key-unknown", _CLUSTER, "The host's key is not in known_hosts.",
        """A host proves its identity by its key. Like ssh with StrictHostKeyChecking, dispatch
        refuses a host whose key it does not know, without asking you.""",
        """
It is best to get the keys from the cluster's administrators. Or trust the present keys, once:

    dispatch exec -H hostfile --host-keys accept-new true
""",
    ),
    _message(
        "host-key-changed", _CLUSTER, "The host's key differs from its key in known_hosts.",
        """Either the host was reinstalled, or another machine answers at its address. The message
        names the file and the line.""",
        """
First find out which. If it was reinstalled:

    ssh-keygen -R NAME
    dispatch exec -w NAME --host-keys accept-new true
""",
    ),
    _message(
        "host-key-revoked", _CLUSTER, "The host's key is marked @revoked in known_hosts.",
        "The mark means that the key must not be trusted any more.",
        "Give the host a new key; do not remove the mark.",
    ),
    _message(
        "bad-ssh-configuration", _CLUSTER, "ssh_config asks for something unsupported.",
        "The ProxyCommand is not a program, jump hosts form a loop, or no algorithm is known.",
        "    ssh -G NAME                                  # how ssh reads it",
    ),
    _message(
        "no-usable-python", _CLUSTER, "The host has no Python 3.8 or later.",
        """The agent, which starts the host's ranks, is a small Python program. It needs any Python
        from 3.8 on with its usual modules (Debian's python3-minimal lacks ctypes), not the ranks'
        own. dispatch skips a shim of pyenv or asdf whose Python is missing, and a script in its
        place that prints. dispatch exec, put and get need no Python.""",
        """
    dispatch -H hostfile --agent-python /opt/python/bin/python3 train.py
""",
    ),
    _message(
        "agent-did-not-start", _CLUSTER, "The agent exited before it responded.",
        """The message quotes the host's output. The cause may be a login shell that refuses
        commands, a full disk, or a policy that kills the agent.""",
        "    dispatch exec -w NAME 'python3 -V; df -h /tmp'",
    ),
    _message(
        "command-did-not-start", _CLUSTER, "The login ended before the command started.",
        """The message quotes the host's output. The cause may be an account without logins
        (nologin), a login file that exits, a forced command, or a missing login shell. If the login
        allows only some commands, run them with exec --plain.""",
        "    dispatch exec --plain -w NAME true",
    ),
    _message(
        "container-did-not-start", _CLUSTER, "The host started no container of --container-image.",
        """The host has no container engine or not the image, a folder of --mount is missing, or the
        engine refused an option. The message quotes the engine. dispatch pulls no image, because a
        start must not wait for a registry.""",
        """
Put the image on the hosts, then look into it:

    dispatch exec -H hostfile -- podman pull IMAGE
    dispatch exec -H hostfile --container-image IMAGE -- python3 -V
""",
    ),
    _message(
        "check-failed", _CLUSTER, "The host cannot be used for this run.",
        """Its folder, script, program or interface is missing, or dispatch check found a critical
        problem. The message says which.""",
        "    dispatch check -w NAME train.py",
    ),
    _message(
        "host-in-use", _CLUSTER, "Another job uses the host, and --if-busy is fail.",
        """A process computes on a GPU that was chosen for the run, one of your other jobs runs on
        the host, or ranks of a job that lost the host may still run there.""",
        """
Wait until the host is free, choose other hosts or GPUs, or start nevertheless:

    dispatch -H hostfile --if-busy wait train.py
    dispatch -H hostfile --if-busy warn train.py
""",
    ),
    _message(
        "protocol-error", _CLUSTER, "The host sent data that its agent never sends.",
        """Something on the way changes the data, or the host is compromised: it reports on other
        hosts' ranks, or floods dispatch with far more data than a job has
        (docs/design/security.md). dispatch closes the connection and drops the data. If the
        message names SSH algorithms such as ssh-rsa, dispatch and the host share none of them.""",
        "Check everything between you and the host: a proxy, an ssh wrapper, login files that "
        "print.\nFor algorithms: --transport ssh uses all that your ssh_config allows.",
    ),
    _message(
        "host-lost", _CLUSTER, "The host stopped responding or disconnected.",
        """It lost its power or its network, its agent was killed, or this machine slept. Its
        ranks exit on their own after --lease seconds without contact with dispatch.""",
        """
    dispatch check -w NAME
    dispatch -H hostfile --heartbeat 20 --lease 600 train.py     # a shaky network, a laptop
    dispatch -H hostfile --max-restarts 3 --spares 1 train.py
""",
    ),
)  # fmt: skip

REFUSALS = (
    _message(
        "bad-value", _USAGE, "A value is not valid.",
        "The message names the option, or the file and its line, and the expected value.",
        "    dispatch COMMAND --help",
    ),
    _message(
        "unknown-command", _USAGE, "There is no such command.",
        "The first word is neither a command of dispatch nor a script in this folder.",
        "    dispatch --help                              # all commands",
    ),
    _message(
        "unknown-code", _USAGE, "dispatch explain does not know that code.",
        "The codes are the words in brackets after a message.",
        "    dispatch explain                             # lists all",
    ),
    _message(
        "unknown-option", _USAGE, "The command has no such option.",
        "Options of dispatch come before the program; all after it belong to the program.",
        "    dispatch COMMAND --help",
    ),
    _message(
        "missing-argument", _USAGE, "An argument is missing.",
        "It is the program to run, the command, or the files to copy and their destination.",
        "    dispatch -H hostfile train.py",
    ),
    _message(
        "unexpected-argument", _USAGE, "There is an unexpected argument.",
        "Often a value has blanks and is not quoted.",
        "    dispatch COMMAND --help",
    ),
    _message(
        "wrong-argument", _USAGE, "A function got an argument it does not accept.",
        """A program that imports dispatcher used an unknown argument name, or a value of
        another type. The message has the name, and the values that it accepts.""",
        """
See docs/guides/python.md for the arguments. Programs can catch dispatcher.UsageError:

    dispatcher.request("hostfile", ["train.py"], nnodes=4)
""",
    ),
    _message(
        "conflicting-options", _USAGE, "Some options do not go together.",
        "One excludes another, or needs an option that is missing. The message names both.",
        "Leave one out. If you did not type it, dispatch.toml sets it: dispatch config",
    ),
    _message(
        "no-password", _USAGE, "A password was required, but none was entered.",
        """--ask-pass and --ask-sudo-password ask on the terminal, before dispatch touches a host.
        There is no terminal, or you typed nothing. dispatch never takes a password from an option,
        a variable or a file.""",
        """
    ssh-copy-id NAME                             # log in by key instead
    ssh-add                                      # type a key's passphrase now
""",
    ),
    _message(
        "not-a-script", _USAGE, "The program is not a Python script.",
        """dispatch starts Python scripts. Other programs need --no-python, modules -m.
        Launchers such as torchrun are not needed, because dispatch is one.""",
        """
    dispatch -H hostfile --no-python ./a.out
    dispatch -H hostfile -m package.train
    dispatch import -- torchrun --nproc-per-node 8 train.py
""",
    ),
    _message(
        "cannot-translate", _USAGE, "dispatch import does not know this line.",
        "The other launcher does not have this flag, or dispatch has no equivalent.",
        "Leave out the flag that the message names, and try again.",
    ),
    _message(
        "file-unusable", _USAGE, "A file or folder cannot be used.",
        "It is missing, cannot be read or written, or has the wrong contents.",
        "    ls -ld PATH",
    ),
    _message(
        "unsafe-folder", _USAGE, "Other users can write to a folder that must be yours alone.",
        "They could replace dispatch's files in it.",
        "    chmod 700 PATH",
    ),
    _message(
        "bad-config", _USAGE, "dispatch.toml cannot be used.",
        "It is not TOML, or has a table or an option that no command knows.",
        "    dispatch config                              # the form, and the source of each value",
    ),
    _message(
        "config-not-trusted", _USAGE, "A file in the current folder sets a restricted option.",
        """A dispatch.toml or .deepspeed_env in the current folder may have come with a cloned
        repository. It may not set programs, keys, or variables that load code.""",
        "Put the line into ~/.config/dispatch/dispatch.toml, or on the command line, if you "
        "trust it.",
    ),
    _message(
        "cannot-copy", _USAGE, "put or get cannot do this.",
        "Two sources have the same destination, or one is not a file, folder or link.",
        "    dispatch put --help",
    ),
    _message(
        "journal-unusable", _CLUSTER, "The journal of a run cannot be read.",
        "It is truncated, from another version of dispatch, or not a journal.",
        "    ls logs/latest/                              # dispatch.jsonl is the journal",
    ),
    _message(
        "bad-hostfile", _USAGE, "A hostfile, or a list of hosts after -w, has mistakes.",
        "All of them are shown at once, each with its line and column.",
        """
    dispatch hosts -H hostfile                   # how dispatch reads it
    dispatch hosts -w 'n[1-3]'
""",
    ),
    _message(
        "no-hosts", _USAGE, "There are no hosts: none was named, or none is left.",
        "There is no -H, no -w and no batch job; or the filters leave out all hosts.",
        """
    dispatch -H hostfile train.py
    dispatch -H localhost:2 train.py
""",
    ),
    _message(
        "unknown-host", _USAGE, "A filter names an unknown host or slot.",
        "--include, --exclude and -x can only name hosts of -H or -w.",
        "    dispatch hosts -H hostfile",
    ),
    _message(
        "hosts-disagree", _USAGE, "Two sources name different hosts.",
        "There is no -H, and two batch systems or files name the hosts of this job.",
        "Choose one with -H; the message shows both.",
    ),
    _message(
        "bad-batch-job", _USAGE, "dispatch cannot read the batch system's list of hosts.",
        "A variable or file that should name the job's hosts is missing or of another form.",
        "Name the hosts with -H; the message has a line for it.",
    ),
    _message(
        "plan-impossible", _USAGE, "These hosts cannot run the request.",
        "The request is valid, but does not fit the hosts.",
        "    dispatch -H hostfile --dry-run train.py",
    ),
    _message(
        "too-few-hosts", _USAGE, "The request needs more hosts than there are.",
        "--nnodes, --spares and --min-nodes together need more than -H has.",
        "    dispatch hosts -c -H hostfile",
    ),
    _message(
        "too-many-ranks", _USAGE, "The request needs more slots than the hosts have.",
        "A slot is room for one rank. The message has the number of slots.",
        """
    dispatch -H hostfile --oversubscribe --np 64 train.py
""",
    ),
    _message(
        "no-gpu", _USAGE, "The request needs a GPU that a host does not have.",
        "Its driver shows none, or CUDA_VISIBLE_DEVICES on that host hides it.",
        "    dispatch exec -b -H hostfile -- nvidia-smi -L",
    ),
    _message(
        "too-few-open-files", _USAGE, "So many hosts need more open files than are allowed.",
        "Every connection needs some. The message has the number.",
        "    ulimit -n 65536",
    ),
    _message(
        "no-such-job", _USAGE, "This machine has no record of a job with that name.",
        "A machine has records of the last hundred jobs that were started on it.",
        "    dispatch jobs -a",
    ),
    _message(
        "ambiguous-job", _USAGE, "Several jobs match.",
        "More than one runs, or the id is too short.",
        "    dispatch jobs                                # then: dispatch attach ID, or latest",
    ),
    _message(
        "job-ended", _CLUSTER, "The job has ended already.",
        "Its launcher has exited.",
        "    dispatch logs JOB",
    ),
    _message(
        "cannot-restart", _CLUSTER, "The ranks of the job cannot be restarted as requested.",
        "They have not started, are already ending, or their new script does not exist.",
        """
The job goes on unchanged. When its ranks run:

    dispatch restart JOB -- train.py --lr 1e-4
""",
    ),
    _message(
        "job-elsewhere", _CLUSTER, "The job cannot be reached from this shell.",
        "It belongs to another machine.",
        "Go to that machine.",
    ),
    _message(
        "launcher-killed", _CLUSTER, "The job's launcher was killed, so there is no verdict.",
        "The cause is kill -9, the OOM killer or a power cut. Its ranks exit on their own.",
        "    dispatch kill JOB                            # ends leftover processes",
    ),
    _message(
        "launcher-silent", _CLUSTER, "The job's launcher does not answer.",
        "It is stopped, or its machine is very busy.",
        "    dispatch jobs                                # paused?",
    ),
    _message(
        "no-log-files", _CLUSTER, "There are no files of that job, or of that rank.",
        "The job was started without --log-dir, the files were removed, or the rank wrote nothing.",
        "    dispatch --log-dir logs -H hostfile train.py",
    ),
    _message(
        "not-profiled", _CLUSTER, "dispatch profile has no samples of some ranks.",
        "They do not run Python, they ended, or they do not answer and there is no py-spy.",
        "    dispatch stacks                              # where they are",
    ),
    _message(
        "no-connection-daemon", _CLUSTER, "The process that keeps connections open cannot be used.",
        "It could not be started, or it does not answer.",
        "    dispatch connect --close",
    ),
    _message(
        "dispatch-failed", _CLUSTER, "dispatch itself could not go on.",
        "The message gives the reason.",
        "    dispatch -v ...                              # every step, on standard error",
    ),
    _message(
        "internal-error", _CLUSTER, "There is a bug in dispatch itself.",
        "It reached a state that cannot occur.",
        "Please report it, with the whole message and dispatch.jsonl of the log folder.",
    ),
)  # fmt: skip

#: code -> its message
MESSAGES = {one.code: one for one in (*RUN, *HOSTS, *REFUSALS)}
