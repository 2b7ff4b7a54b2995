"""The text of an ``ssh_config`` file: its lines, its keywords, the tokens in its values.

OpenSSH's own reading, followed to the letter: a config read a little differently may lead to
another host. Keywords are followed, skipped (they concern features that our links lack) or
refused (we could not connect as the user wrote it down). Each option allows its own tokens.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pwd
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dispatcher.transport.base import shell_safe

_SPACE = " \t\r\n"


class ConfigProblem(Exception):
    """A config that cannot be followed; the text is ``file:line: why``."""

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.hint = hint


@dataclass(frozen=True)
class Line:
    """One directive: its keyword in lower case, the rest as text and as words."""

    place: str  # "file:line"
    keyword: str
    rest: str
    words: tuple[str, ...]


def parse(text: str, name: str) -> tuple[Line, ...]:
    """The directives of a file, in order.

    Raises: ConfigProblem for a keyword without a value, an open quote and a NUL.
    """
    lines = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = _parse_line(raw, f"{name}:{number}")
        if line is not None:
            lines.append(line)
    return tuple(lines)


def _parse_line(raw: str, place: str) -> Line | None:
    text = raw.rstrip(_SPACE + "\f").lstrip(_SPACE)
    if not text or text.startswith("#"):
        return None
    if "\0" in text:  # ssh takes half of the line, and no file or user has such a name
        raise ConfigProblem(f"{place}: a NUL byte")
    keyword, index = _read_keyword(text, 0, place)
    rest = text[index:]
    if not keyword:
        return None
    if not rest:
        raise ConfigProblem(f"{place}: {keyword}: no value")
    return Line(place, keyword.lower(), rest, split_words(rest, place))


def _read_keyword(text: str, begin: int, place: str) -> tuple[str, int]:
    """The keyword at ``begin``, and where its value begins, after blanks and one ``=``."""
    for index in range(begin, len(text)):
        char = text[index]
        if char == '"':
            end = text.find('"', index + 1)
            if end < 0:
                raise ConfigProblem(f"{place}: no closing quote")
            return text[begin:index] + text[index + 1 : end], _skip(text, end + 1)
        if char in _SPACE or char == "=":
            value = _skip(text, index)
            is_sign = text.startswith("=", value)
            return text[begin:index], _skip(text, value + 1) if is_sign else value
    return text[begin:], len(text)


def _skip(text: str, index: int) -> int:
    while index < len(text) and text[index] in _SPACE:
        index += 1
    return index


def split_words(text: str, place: str) -> tuple[str, ...]:
    """The words of a value, quotes removed, up to a comment.

    Raises: ConfigProblem when a quote is not closed.
    """
    words: list[str] = []
    index = 0
    while index < len(text):
        if text[index] in " \t":
            index += 1
            continue
        if text[index] == "#":
            break
        word, index = _read_word(text, index, place)
        words.append(word)
    return tuple(words)


def _read_word(text: str, index: int, place: str) -> tuple[str, int]:
    word: list[str] = []
    quote = ""
    while index < len(text):
        char = text[index]
        following = text[index + 1 : index + 2]
        escapes = following in ("'", '"', "\\") or (following == " " and not quote)
        if char == "\\" and following and escapes:
            index += 1
            word.append(following)
        elif not quote and char in " \t":
            break
        elif not quote and char in "'\"":
            quote = char
        elif char == quote:
            quote = ""
        else:
            word.append(char)
        index += 1
    if quote:
        raise ConfigProblem(f"{place}: no closing quote")
    return "".join(word), index


@functools.lru_cache(maxsize=4096)  # every host asks all of them
def criteria(text: str, place: str) -> tuple[tuple[str, str], ...]:
    """The criteria of a ``Match`` line, each with its value: ``host n1`` or ``host=n1``.

    Raises: ConfigProblem when there is none, and for one without a value.
    """
    found: list[tuple[str, str]] = []
    index = _skip(text, 0)
    while index < len(text) and text[index] != "#":
        word, index = _read_keyword(text, index, place)
        word, value, begin = word.lower(), "", index
        if word.lstrip("!") not in ("all", "canonical", "final"):
            value, index = _read_word(text, begin, place)
            if not value or text[begin] in "#=":
                raise ConfigProblem(f"{place}: Match {word}: no value")
        found.append((word, value))
        index = _skip(text, index)
    if not found:
        raise ConfigProblem(f"{place}: Match: no criterion")
    return tuple(found)


# ruff: noqa: SIM905 - word lists read better as paragraphs

#: Older spellings.
ALIASES = {
    **dict.fromkeys(
        ("challengeresponseauthentication", "skeyauthentication", "tisauthentication"),
        "kbdinteractiveauthentication",
    ),
    "dsaauthentication": "pubkeyauthentication",
    "identityfile2": "identityfile",
    "hostbasedkeytypes": "hostbasedacceptedalgorithms",
    "pubkeyacceptedkeytypes": "pubkeyacceptedalgorithms",
    "smartcarddevice": "pkcs11provider",
}

#: One word; the first value wins.
SINGLE = frozenset(
    "addressfamily bindaddress connecttimeout hashknownhosts hostkeyalias hostname identitiesonly "
    "identityagent port preferredauthentications pubkeyauthentication stricthostkeychecking tag "
    "user ciphers macs kexalgorithms hostkeyalgorithms pubkeyacceptedalgorithms "
    "casignaturealgorithms checkhostip requiredrsasize "
    "canonicalizehostname pkcs11provider securitykeyprovider proxyusefdpass "
    "batchmode hostbasedauthentication passwordauthentication kbdinteractiveauthentication "
    "numberofpasswordprompts bindinterface revokedhostkeys serveralivecountmax "
    "serveraliveinterval sessiontype".split()
)

#: Several words; the first line wins.
LISTS = frozenset(("globalknownhostsfile", "setenv", "userknownhostsfile"))

#: One word; every line counts.
REPEATED = frozenset(("certificatefile", "identityfile"))

#: The rest of the line, quotes and all.
RAW = frozenset(
    ("knownhostscommand", "proxycommand", "proxyjump", "refuseconnection", "remotecommand")
)

#: Value with which a refused option is harmless; any other is a failure.
REFUSED = {
    "bindinterface": ("none",),
    "canonicalizehostname": ("no", "false"),
    "knownhostscommand": ("none",),
    "pkcs11provider": ("none",),
    "proxyusefdpass": ("no", "false"),
    "remotecommand": ("none",),
    "revokedhostkeys": ("none",),
    "securitykeyprovider": ("internal", "none"),
    "sessiontype": ("default",),
}

SKIPPED = frozenset(
    "addkeystoagent afstokenpassing canonicaldomains canonicalizefallbacklocal "
    "canonicalizemaxdots canonicalizepermittedcnames "
    "channeltimeout cipher clearallforwardings "
    "compression compressionlevel connectionattempts controlmaster controlpath controlpersist "
    "dynamicforward enableescapecommandline enablesshkeysign escapechar exitonforwardfailure "
    "fallbacktorsh fingerprinthash forkafterauthentication forwardagent forwardx11 "
    "forwardx11timeout forwardx11trusted gatewayports globalknownhostsfile2 gssapiauthentication "
    "gssapiclientidentity gssapidelegatecredentials gssapikexalgorithms gssapikeyexchange "
    "gssapirenewalforcesrekey gssapiserveridentity gssapitrustdns hostbasedacceptedalgorithms "
    "ignoreunknown ipqos "
    "kbdinteractivedevices keepalive kerberosauthentication kerberostgtpassing localcommand "
    "localforward loglevel logverbose nohostauthenticationforlocalhost "
    "obscurekeystroketiming permitlocalcommand permitremoteopen protocol "
    "rekeylimit remoteforward requesttty rhostsauthentication "
    "rhostsrsaauthentication rsaauthentication stdinnull streamlocalbindmask streamlocalbindunlink "
    "syslogfacility tcpkeepalive tunnel tunneldevice updatehostkeys "
    "useprivilegedport userknownhostsfile2 useroaming usersh usekeychain verifyhostkeydns "
    "versionaddendum visualhostkey warnweakcrypto xauthlocation".split()
)

KNOWN = SINGLE | LISTS | REPEATED | RAW | SKIPPED | {"host", "match", "include", "sendenv"}


HOSTNAME = "h"
PROXY = "hnpr"
FILES = "CdhijkLlnpru"

_VARIABLE = re.compile(r"\$\{([^}]*)\}")


@dataclass(frozen=True)
class Local:
    """This side of the connection: who and where we are."""

    user: str
    uid: int
    home: str
    host: str

    @classmethod
    def here(cls) -> Local:
        """The facts of this process. The home is the account's, as in ssh, not ``$HOME``."""
        uid = os.getuid()
        try:
            entry = pwd.getpwuid(uid)
            user, home = entry.pw_name, entry.pw_dir
        except KeyError:
            user, home = os.environ.get("USER", str(uid)), os.path.expanduser("~")
        return cls(user, uid, home, socket.gethostname())


def token_values(
    local: Local, *, original: str, host: str, port: str, user: str, alias: str | None, jump: str
) -> dict[str, str]:
    """The value of each token, for one host."""
    seen = local.host + host + port + user + jump
    return {
        "C": hashlib.sha1(seen.encode(), usedforsecurity=False).hexdigest(),
        "d": local.home,
        "h": host,
        "i": str(local.uid),
        "j": jump,
        "k": alias or original,
        "L": local.host.partition(".")[0],
        "l": local.host,
        "n": original,
        "p": port,
        "r": user,
        "u": local.user,
    }


def expand(
    text: str, values: Mapping[str, str], allowed: str, place: str, *, for_shell: bool = False
) -> str:
    """The text with its tokens replaced. for_shell: it is a line that a shell will read.

    Raises: ConfigProblem for a token that is unknown or not allowed here, and for a shell
    when a value would not stay one plain word there.
    """
    parts = []
    at = 0
    while (found := text.find("%", at)) >= 0:
        parts.append(text[at:found])
        at = found + 2
        letter = text[found + 1 : at]
        if letter == "%":
            parts.append("%")
        elif letter and letter in allowed and letter in values:
            if for_shell and not shell_safe(values[letter]):
                raise ConfigProblem(
                    f"{place}: %{letter} stands for {values[letter][:80]!r}, "
                    "which a shell would not read as one word"
                )
            parts.append(values[letter])
        else:
            raise ConfigProblem(f"{place}: token %{letter} is not allowed here")
    parts.append(text[at:])
    return "".join(parts)


def expand_variables(text: str, environ: Mapping[str, str], place: str) -> str:
    """The text with each ``${NAME}`` replaced. Raises: ConfigProblem when a variable is not set."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in environ:
            raise ConfigProblem(f"{place}: ${{{name}}} is not set")
        return environ[name]

    return _VARIABLE.sub(value, text)


def expand_home(path: str, local: Local, place: str) -> str:
    """The path with a leading ``~`` or ``~user`` replaced.

    Raises: ConfigProblem for a user that does not exist.
    """
    if not path.startswith("~"):
        return path
    user, slash, rest = path[1:].partition("/")
    if not user:
        return local.home.rstrip("/") + slash + rest if slash else local.home
    try:
        return pwd.getpwnam(user).pw_dir.rstrip("/") + slash + rest
    except KeyError:
        raise ConfigProblem(f"{place}: ~{user}: no such user") from None


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    # The text between two stars is matched where it is first found and never tried
    # elsewhere (a lookahead does not go back), so that no pattern can make the match slow.
    first, *rest = (_literal(part) for part in re.split(r"\*+", pattern))
    between = (f"(?=(?P<p{n}>.*?{part}))(?P=p{n})" for n, part in enumerate(rest[:-1]))
    last = [f".*{rest[-1]}"] if rest else []
    return re.compile("".join([first, *between, *last]), re.DOTALL)


def _literal(text: str) -> str:
    return ".".join(re.escape(part) for part in text.split("?"))


def matches(text: str, pattern: str) -> bool:
    """True when the whole text fits one pattern."""
    return _compiled(pattern).fullmatch(text) is not None


def matches_list(text: str, patterns: str, *, lower: bool = False) -> bool:
    """True when the text fits a pattern of the comma list and no ``!pattern`` of it.

    lower: fold the patterns to lower case (OpenSSH does so for host names).
    """
    found = False
    for pattern in patterns.split(","):
        negated = pattern.startswith("!")
        bare = pattern[1:] if negated else pattern
        if matches(text, bare.lower() if lower else bare):
            if negated:
                return False
            found = True
    return found


#: The same method under the name it got when it became a standard.
_ALSO = {"curve25519-sha256@libssh.org": "curve25519-sha256"}
_SIGNS = "+-^"


def narrow(supported: Sequence[str], config: str | None) -> tuple[str, ...]:
    """Our algorithms, in our order, less what the config's list excludes.

    ``+`` and ``^`` lists add and move; they exclude nothing. ``-`` removes.
    """
    if not config or config[0] in "+^":
        return tuple(supported)
    listed = config.lstrip(_SIGNS).split(",")

    def named(name: str) -> bool:
        return any(matches(name, item) or _ALSO.get(name) == item for item in listed)

    return tuple(name for name in supported if named(name) != (config[0] == "-"))
