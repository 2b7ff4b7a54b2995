"""``SshConfig.resolve(target)``: the settings of the user's ``ssh_config`` for a host.

Files are read once and shared by all hosts. Every criterion of ``Match`` is answered as ssh does or
refused by name: an unknown one counted as true would silently change user, port or proxy. A config
that we cannot follow is a ``Failure(Kind.CONFIG)``. Values made from tokens are checked again.
"""

from __future__ import annotations

import glob
import os
import stat
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dispatcher.model.failure import Failure, Kind
from dispatcher.model.paths import open_regular
from dispatcher.transport.base import Target, bad_target, shell_safe
from dispatcher.transport.ssh_config import config_lines
from dispatcher.transport.ssh_config.config_lines import ConfigProblem, Line, matches_list
from dispatcher.transport.ssh_config.host_config import HostConfig, Variables, check, jump_list

_MAX_DEPTH = 16  # of Include, as in ssh
_EXEC_SECONDS = 10.0  # of a program that a Match line asks
_HOLDS = "criterion-holds"  # the user name that ssh shows if a criterion holds
_HINT = "--transport ssh  # the system's ssh follows its own configuration"

#: Values of one host before they are checked: option -> words.
Raw = dict[str, list[str]]


@dataclass
class _Lookup:
    original: str
    host: str  # compared with ``Host`` lines
    raw: Raw
    origins: dict[str, str] = field(default_factory=dict)
    ignored: str = ""
    final: bool = False
    wants_final: bool = False
    active: bool = True
    runs: bool = True  # whether programs of ``Match`` lines may be run


class SshConfig:
    """The user's and the system's configuration, or one file instead of both.

    path: as ``ssh -F``; ``"none"`` reads nothing at all. sends: the variables that SendEnv chooses
    from, where that is not ``environ``.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        sends: Mapping[str, str] | None = None,
        local: config_lines.Local | None = None,
        system_dir: str = "/etc/ssh",
    ) -> None:
        self._local = local or config_lines.Local.here()
        self._environ = os.environ if environ is None else environ
        self._sends = self._environ if sends is None else sends
        self._ssh_dir = os.path.join(self._local.home, ".ssh")
        self._system_dir = system_dir
        self._path = path
        self._lock = threading.Lock()
        self._parsed: dict[str, tuple[Line, ...]] = {}
        self._answers = ProgramAnswers()

    def resolve(self, target: Target, *, runs: bool = True) -> HostConfig | Failure:
        """The settings to connect to ``target``, or why its config cannot be followed.

        runs: False runs no program of a ``Match`` line; a host that needs one is a failure then.
        """
        problem = bad_target(target)
        if problem is not None:
            return problem
        try:
            lookup = self._read(target, runs=runs)
            config = check(target.host, lookup.raw, lookup.origins, self._local, self._environ)
            return replace(config, environment=_sent(lookup.raw, self._sends))
        except ConfigProblem as bad:
            return Failure(Kind.CONFIG, str(bad), bad.hint or _HINT)

    def _read(self, target: Target, *, runs: bool = True) -> _Lookup:
        raw: Raw = {}
        if target.user is not None:
            raw["user"] = [target.user]
        if target.port is not None:
            raw["port"] = [str(target.port)]
        lookup = _Lookup(target.host, target.host, raw, runs=runs)
        self._read_all(lookup)
        lookup.host = _host_name(lookup, lookup.origins.get("hostname", "hostname")).lower()
        if lookup.wants_final:
            lookup.final = True
            raw["hostname"] = [lookup.host.replace("%", "%%")]
            self._read_all(lookup)
        return lookup

    def _read_all(self, lookup: _Lookup) -> None:
        if self._path is not None:
            if self._path.lower() != "none":
                self._read_file(self._path, lookup, user=True, depth=0, must_exist=True)
            return
        self._read_file(os.path.join(self._ssh_dir, "config"), lookup, user=True, depth=0)
        self._read_file(os.path.join(self._system_dir, "ssh_config"), lookup, user=False, depth=0)

    def _read_file(
        self,
        path: str,
        lookup: _Lookup,
        *,
        user: bool,
        depth: int,
        never: bool = False,
        must_exist: bool = False,
    ) -> None:
        if depth > _MAX_DEPTH:
            raise ConfigProblem(f"{path}: more than {_MAX_DEPTH} files include each other")
        # As in ssh (readconf.c): the user's own file and all that is included must be the user's
        # or root's; -F and the system's file are as given.
        private = depth > 0 or (user and self._path is None)
        lookup.active = not never
        for line in self._lines(path, private, must_exist):
            self._apply(line, lookup, user=user, depth=depth, never=never)

    def _lines(self, path: str, private: bool, must_exist: bool) -> tuple[Line, ...]:
        with self._lock:
            if path not in self._parsed:
                self._parsed[path] = _load(path, private, must_exist)
            return self._parsed[path]

    def _apply(self, line: Line, lookup: _Lookup, *, user: bool, depth: int, never: bool) -> None:
        keyword = config_lines.ALIASES.get(line.keyword, line.keyword)
        if keyword == "host":
            lookup.active = _host_applies(line, lookup.host) and not never
        elif keyword == "match":
            lookup.active = not never and self._match_applies(line, lookup)
        elif keyword == "include":
            self._include(line, lookup, user=user, depth=depth)
        elif keyword == "ignoreunknown":
            if lookup.active and not lookup.ignored:
                lookup.ignored = ",".join(line.words)
        elif keyword in config_lines.KNOWN:
            _set(keyword, line, lookup)
        elif not matches_list(keyword, lookup.ignored, lower=True):
            raise ConfigProblem(f"{line.place}: unknown option {line.keyword[:40]!r}")

    def _include(self, line: Line, lookup: _Lookup, *, user: bool, depth: int) -> None:
        was_active = lookup.active
        for word in line.words:
            pattern = config_lines.expand_variables(word, self._environ, line.place)
            if pattern.startswith("~"):
                if not user:
                    raise ConfigProblem(f"{line.place}: Include: ~ in a system file")
                pattern = config_lines.expand_home(pattern, self._local, line.place)
            elif not pattern.startswith("/"):
                pattern = os.path.join(self._ssh_dir if user else self._system_dir, pattern)
            for path in sorted(glob.glob(pattern)):
                self._read_file(path, lookup, user=user, depth=depth + 1, never=not was_active)
                lookup.active = was_active

    def _match_applies(self, line: Line, lookup: _Lookup) -> bool:
        result = True
        found = config_lines.criteria(line.rest, line.place)
        for place, (word, value) in enumerate(found):
            negated = word.startswith("!")
            criterion = word.lstrip("!")
            if criterion == "all":
                if place > 1 or place + 1 < len(found):
                    raise ConfigProblem(f"{line.place}: Match all cannot be combined")
                return result and not negated
            if criterion in ("canonical", "final"):
                lookup.wants_final |= criterion == "final"
                holds = lookup.final
            else:
                if criterion in ("exec", "localnetwork") and not result:
                    continue  # no program is run whose answer cannot matter
                holds = self._holds(criterion, value, line, lookup)
            if holds == negated:
                result = False
        return result

    def _holds(self, criterion: str, value: str, line: Line, lookup: _Lookup) -> bool:
        raw = lookup.raw
        host = lookup.host if lookup.final else _host_name(lookup, line.place)
        user = raw.get("user", [self._local.user])[0]
        if criterion in ("exec", "localnetwork") and not lookup.runs:
            raise ConfigProblem(f"{line.place}: Match {criterion}: not run now")
        if criterion == "localnetwork":
            return self._answers.ssh_holds(criterion, value, line.place)
        if criterion == "exec":
            tokens = config_lines.token_values(
                self._local,
                original=lookup.original,
                host=host,
                port=raw.get("port", ["22"])[0],
                user=user,
                alias=raw.get("hostkeyalias", [None])[0],
                jump=raw.get("proxyjump", [""])[0],
            )
            place, allowed = line.place, config_lines.FILES
            command = config_lines.expand(value, tokens, allowed, place, for_shell=True)
            return self._answers.succeeds(command, place)
        compared = {
            "host": host.lower(),
            "originalhost": lookup.original.lower(),
            "user": user,
            "localuser": self._local.user,
            "tagged": raw.get("tag", [""])[0],
        }
        if criterion not in compared:
            raise ConfigProblem(f"{line.place}: Match {criterion}: not understood", hint=_HINT)
        return matches_list(compared[criterion], value, lower=criterion.endswith("host"))


class ProgramAnswers:
    """Answers of programs to ``Match`` lines, each run once and shared by all hosts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the tables
        self._running: dict[tuple[tuple[str, ...], bytes], threading.Lock] = {}
        self._answers: dict[tuple[tuple[str, ...], bytes], tuple[int, bytes] | ConfigProblem] = {}

    def succeeds(self, command: str, place: str) -> bool:
        """True when the shell command of a ``Match exec`` exits 0.

        Raises: ConfigProblem when it takes too long or cannot run.
        """
        shell = os.environ.get("SHELL") or "/bin/sh"
        return self._answer((shell, "-c", command), b"", f"{place}: Match exec")[0] == 0

    def ssh_holds(self, criterion: str, value: str, place: str) -> bool:
        """Ask the system's ssh about a criterion that is the same for all hosts.

        Raises: ConfigProblem when there is no ssh here, or none that knows the criterion.
        """
        what = f"{place}: Match {criterion}"
        if not shell_safe(value.replace("!", "")):  # it becomes a word in a config for ssh
            raise ConfigProblem(f"{what}: bad value {value[:40]!r}")
        config = f"Match {criterion} {value}\nUser {_HOLDS}\n"
        argv = ("ssh", "-G", "-F", "/dev/stdin", "--", "host")
        code, said = self._answer(argv, config.encode(), what)
        if code:
            raise ConfigProblem(f"{what}: not understood by the ssh of this machine", hint=_HINT)
        return f"user {_HOLDS}".encode() in said.splitlines()

    def _answer(self, argv: tuple[str, ...], text: bytes, what: str) -> tuple[int, bytes]:
        key = argv, text
        with self._lock:
            running = self._running.setdefault(key, threading.Lock())
        with running:  # another program's answer is not waited for
            if key not in self._answers:
                try:
                    self._answers[key] = _run(argv, text, what)
                except ConfigProblem as problem:
                    self._answers[key] = problem
            answer = self._answers[key]
        if isinstance(answer, ConfigProblem):
            raise ConfigProblem(str(answer), hint=answer.hint)
        return answer


def _run(argv: tuple[str, ...], text: bytes, what: str) -> tuple[int, bytes]:
    """Exit code and output; without ``text`` as input there is no output that counts."""
    try:
        done = subprocess.run(
            argv,
            input=text,
            # programs that the user's command leaves running may hold its output open
            stdout=subprocess.PIPE if text else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_EXEC_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigProblem(f"{what}: no answer in {_EXEC_SECONDS:.0f} s") from None
    except OSError as error:
        raise ConfigProblem(f"{what}: {argv[0]}: {error.strerror}", hint=_HINT) from None
    return done.returncode, done.stdout or b""


def _host_name(lookup: _Lookup, place: str) -> str:
    written = lookup.raw.get("hostname")
    if written is None:
        return lookup.original
    return config_lines.expand(written[0], {"h": lookup.original}, config_lines.HOSTNAME, place)


def _host_applies(line: Line, host: str) -> bool:
    found = False
    for pattern in line.words:
        if not pattern:
            raise ConfigProblem(f"{line.place}: Host: empty pattern")
        negated = pattern.startswith("!")
        if config_lines.matches(host, pattern[1:] if negated else pattern):
            if negated:
                return False
            found = True
    return found


def _set(keyword: str, line: Line, lookup: _Lookup) -> None:
    """Store the value if it is the first (or one of many); check its form always."""
    raw = lookup.raw
    first = config_lines.SINGLE | config_lines.LISTS | config_lines.RAW  # counts alone
    if keyword in config_lines.RAW:
        value = line.rest.lstrip(" \t\r\n=")
        if keyword == "proxyjump":
            value = value.partition("#")[0].rstrip()
            jump_list(value, line.place)
        if _excluded(keyword, raw):
            return
        words = [value]
    else:
        words = list(line.words)
        one_word = keyword in config_lines.SINGLE | config_lines.REPEATED
        if one_word and len(words) > 1:
            raise ConfigProblem(f"{line.place}: {keyword}: more than one value")
        if (one_word or keyword in config_lines.LISTS) and not (words and all(words)):
            raise ConfigProblem(f"{line.place}: {keyword}: empty value")
        if keyword in ("sendenv", "setenv"):
            bad = [word for word in words if not word or ("=" in word) != (keyword == "setenv")]
            if bad:
                raise ConfigProblem(f"{line.place}: {keyword}: bad name {bad[0][:40]!r}")
    if not lookup.active:
        return
    for word in words if keyword == "sendenv" else ():  # a line adds, or with - takes away
        kept = [one for one in raw.get(keyword, ()) if not config_lines.matches(one, word[1:])]
        raw[keyword] = kept if word.startswith("-") else [*raw.get(keyword, ()), word]
    if keyword in config_lines.REPEATED:
        values = raw.setdefault(keyword, [])
        if words[0] not in values:
            values.append(words[0])
            lookup.origins.setdefault(keyword, line.place)
    elif keyword in first and keyword not in raw:
        raw[keyword] = words
        lookup.origins[keyword] = line.place


def _sent(raw: Raw, environ: Mapping[str, str]) -> Variables:
    """The variables that SendEnv takes from ``environ``, and those of SetEnv, which win."""
    sends, matches = raw.get("sendenv", ()), config_lines.matches
    found = {name: environ[name] for name in environ if any(matches(name, one) for one in sends)}
    for word in reversed(raw.get("setenv", ())):  # of one name the first counts
        found[word.partition("=")[0]] = word.partition("=")[2]
    return tuple(found.items())


def _excluded(keyword: str, raw: Raw) -> bool:
    """ProxyJump and ProxyCommand exclude each other: whichever comes first, as ssh has it."""
    if keyword == "proxycommand":
        return raw.get("proxyjump", ["none"])[0].lower() != "none"
    return keyword == "proxyjump" and "proxycommand" in raw


def _load(path: str, private: bool, must_exist: bool) -> tuple[Line, ...]:
    try:
        with open(path if must_exist else open_regular(path), "rb") as file:
            if private:
                _check_owner(path, os.fstat(file.fileno()))
            text = file.read().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        if must_exist:
            raise ConfigProblem(f"{path}: no such file", hint="give another -F file") from None
        return ()
    except OSError as error:
        raise ConfigProblem(f"{path}: {error.strerror}") from None
    return config_lines.parse(text, path)


def _check_owner(path: str, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.getuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        why = f"{path}: bad owner or permissions: others could change it"
        raise ConfigProblem(why, hint=f"chmod 600 {path}")
