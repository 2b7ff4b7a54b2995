"""Logging in to one host: ``LoggingIn`` tries the ways that the host takes, in ssh's order.

A host may want two of them: each step that it takes leaves the rest to do. A question of
keyboard-interactive that asks for the password is answered with it; any other is shown to the user.
Whatever was wrong has one second try.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.ssh_auth.identities import Candidate, Identities, login_refused, methods
from dispatcher.transport.ssh_auth.passwords import Outcome, Passwords, wants_password
from dispatcher.transport.ssh_config.host_config import METHODS, TYPED, HostConfig

if TYPE_CHECKING:
    from dispatcher.transport.ssh.session import HostQuestion, Session

#: steps of a login; questions of an attempt, with or without prompts; answers that the user types
MOST_STEPS, MOST_ROUNDS, MOST_TYPED = 16, 16, 12
#: where ssh_config or the host wants something that dispatch does not have
SSH_HINT = "--transport ssh  # the system's ssh can do more of these"
_SLOW_HINT = "--connect-timeout 200  # if it is slow to let you in"
_SHA1 = frozenset({"ssh-rsa", "ssh-dss", "ssh-rsa-cert-v01@openssh.com"})
_SHA1_HINT = "--transport ssh  # with HostKeyAlgorithms +ssh-rsa in ssh_config"
_KEY, _ASKED, _PASSWORD, _NONE = "publickey", "keyboard-interactive", "password", "none"
#: outcomes after which there is nothing more to try
_LAST = ("in", "late", "gone")


class LoggingIn:
    """Logs a session in. deadline: by ``passwords.timer``. jump: it leads on to other hosts.

    goes_on: the host took no key and closed the connection; ``run`` another session for passwords.
    """

    _session: Session

    def __init__(
        self,
        config: HostConfig,
        deadline: float,
        identities: Identities,
        passwords: Passwords,
        *,
        jump: bool,
    ) -> None:
        self._config = config
        self._deadline = deadline
        self._identities = identities
        self._passwords = passwords
        self._types = passwords.may_ask(jump=jump)
        #: for the user: one name, as of this end of a tunnel, may lead to several hosts
        self._name = config.name if config.port == 22 else f"{config.name} port {config.port}"
        self._password = passwords.of(config.user, self._name, jump=jump) if self._types else None
        keys = identities.candidates(config) if _KEY in config.methods else []
        self._keys: Iterator[Candidate] = iter(keys)
        self._tried: list[Candidate] = []
        self._unable: list[str] = []  # keys that did not sign, and why
        self._spent: set[str] = set()
        self.goes_on = False
        self._partial = False
        self._refused = False  # the password was, here
        self._open = False  # it was sent, and the host has not answered yet
        self._n_typed = 0
        self._why = ""  # how the host answered the typed text

    def run(self, session: Session) -> Failure | None:
        """Why the session did not get in, or None."""
        if self.goes_on:
            session.offered, self.goes_on = self._session.offered, False
            self._spent.add(_KEY)
        self._session = session
        try:
            outcome = self._run()
        finally:
            if self._open:  # others wait for the outcome
                self._came("unsettled")
        if isinstance(outcome, Failure):
            return outcome
        if outcome == "in":
            return None
        at_limit = outcome == "gone" and self._spent.isdisjoint(METHODS) and _at_limit(session)
        if outcome in _LAST and not at_limit:
            # it was late by its deadline at that time; the user may have begun to type since
            return why_broken(session, 0.0 if outcome == "late" else self._until())
        self.goes_on = at_limit and self._types and not TYPED.isdisjoint(session.offered)
        return login_refused(
            self._config, self._identities, self._tried, session.offered,
            more=self._partial, typed=self._why, unable=self._unable,
            untried=[candidate.label for candidate in self._keys] if at_limit else None,
        )  # fmt: skip

    def _run(self) -> str | Failure:
        ways: dict[str, Callable[[], str | Failure]] = {
            _KEY: self._by_key, _ASKED: self._by_answers, _PASSWORD: self._by_password,
            _NONE: lambda: self._session.try_none(self._config.user, self._until()),
        }  # fmt: skip
        for _ in range(MOST_STEPS):
            way = self._next()
            if way is None:
                break
            outcome = ways[way]()
            if way == _NONE:
                self._spent.add(_NONE)
            if isinstance(outcome, Failure) or outcome in _LAST:
                return outcome
            if outcome == "partial":  # and the same may be asked for again
                self._partial = True
                self._spent.discard(way)
        return "refused"

    def _next(self) -> str | None:
        """The way to try now, of those that are left; None: the host takes none of them.

        The host lists its ways in its first refusal, so a user without a key asks for that first.
        """
        offered, asked = self._session.offered, _NONE in self._spent
        for way in self._config.methods:
            if way in self._spent or (offered and way not in offered):
                continue
            if offered or way == _KEY:
                return way
            break
        return None if offered or asked else _NONE

    def _until(self) -> float:
        """The host's deadline by ``time.monotonic``."""
        return self._passwords.timer.real(self._deadline)

    # -- keys ------------------------------------------------------------------------------

    def _by_key(self) -> str:
        """Try the keys until the host takes one or closes the connection."""
        session = self._session
        for candidate in self._keys:
            key = candidate.load()
            if key is None:
                continue
            outcome = session.try_key(self._config.user, key, self._until())
            if outcome == "unsigned":
                self._unable.append(f"{candidate.label}: {session.unsigned}")
                continue
            self._tried.append(candidate)
            if outcome in ("in", "partial"):
                self._identities.worked(candidate)
            if outcome != "refused":
                return outcome
            if _KEY not in session.offered:
                break
        self._spent.add(_KEY)
        return ""

    # -- a password ------------------------------------------------------------------------

    def _by_password(self) -> str | Failure:
        self._spent.add(_PASSWORD)
        while (word := self._word()) is not None:
            outcome = self._session.try_password(self._config.user, word, self._until())
            if outcome == "asked":
                self._came("right")
                why = f"{self._config.user}: the password has expired, and the host wants another"
                return Failure(
                    Kind.AUTH, why, f"ssh {self._config.name}  # and change it on the host"
                )
            if not self._judged(outcome):
                return outcome
        return self._late() or "refused"

    def _word(self) -> bytes | None:
        """The password to send now; None where there is none for this host."""
        password = self._password
        if password is None or self._refused:
            return None
        word = password.take(self, self._deadline)
        if word is None:
            self._why = password.why(self._name)
            return None
        self._open = True
        return word.encode("utf-8", "surrogateescape")

    def _judged(self, outcome: str) -> bool:
        """Report how the host took the password; whether to try another one here."""
        if outcome in ("in", "partial"):
            return self._came("right")
        if outcome == "refused":
            return self._came("wrong")
        return self._came("wrong" if _at_limit(self._session) else "unsettled", again=False)

    def _came(self, outcome: Outcome, *, again: bool = True) -> bool:
        assert self._password is not None
        self._open = False
        name, again = self._name, again and self._config.second_try
        if self._password.came(self, name, outcome, again=again):
            return True
        self._refused = outcome == "wrong"
        if self._refused:
            self._why = self._password.why(name)
        return False

    def _late(self) -> str:
        return "late" if self._passwords.timer.now() >= self._deadline else ""

    # -- questions -------------------------------------------------------------------------

    def _by_answers(self) -> str | Failure:
        self._spent.add(_ASKED)
        if not self._types:
            return "refused"
        outcome = self._attempt()
        if outcome == "again":
            outcome = self._attempt()
        return "refused" if outcome == "again" else outcome

    def _attempt(self) -> str | Failure:
        """One attempt; ``again``: it was refused, and another answer may be right."""
        typed = self._n_typed
        outcome = self._session.try_interactive(self._config.user, self._until())
        for _ in range(MOST_ROUNDS):
            question = self._session.question
            if outcome != "asked" or question is None:
                break
            answers = self._answers(question)
            if answers is None:
                return self._late() or "refused"
            outcome = self._session.answer(answers, self._until())
        if outcome == "asked":
            return Failure(Kind.PROTOCOL, f"it asks more than {MOST_ROUNDS} times to log in")
        sent = self._open
        again = sent and self._judged(outcome)
        if outcome != "refused":
            return outcome
        if self._n_typed > typed:  # an answer was wrong, or the password: the host does not say
            self._refused = False
            what = "the password or an answer" if sent else "an answer"
            self._why = f"{what} to its questions was refused"
            return "again"
        return "again" if again else "refused"

    def _answers(self, question: HostQuestion) -> list[bytes] | None:
        """The answers to a question; None: the user gave none."""
        answers: list[bytes] = []
        word: bytes | None = None
        above = question.above
        for prompt, echo in question.prompts:
            if wants_password(prompt, echo=echo):
                if word is None:
                    if self._open and not self._judged("refused"):
                        return None  # it was sent before, and asked for once more: it was wrong
                    word = self._word()
                if word is None:
                    return None
                answers.append(word)
                continue
            self._n_typed += 1
            if self._n_typed > MOST_TYPED:
                self._why = f"it asks more than {MOST_TYPED} questions"
                return None
            answer = self._passwords.answer(self._name, above, prompt)
            if answer is None:
                self._why = "it asks a question, and got no answer"
                return None
            above = ()
            answers.append(answer.encode("utf-8", "surrogateescape"))
        return answers


def why_broken(session: Session, deadline: float) -> Failure:
    """Why a session did not come as far as it should have."""
    from paramiko.ssh_exception import IncompatiblePeer, SSHException

    from dispatcher.transport.ssh.session import HostKeyRefused

    problem = session.get_exception()
    if isinstance(problem, HostKeyRefused):
        return problem.failure
    if session.active and time.monotonic() >= deadline:
        return Failure(Kind.TIMEOUT, f"{session.steps.name}: no answer in time", _SLOW_HINT)
    if isinstance(problem, IncompatiblePeer):
        if "host key" in str(problem):
            types, has = ", ".join(session.preferred_keys)[:200], methods(session.host_key_types)
            if _SHA1.issuperset(has):
                why = f"its host key signs by {', '.join(has)} alone, which is SHA-1"
                return Failure(Kind.PROTOCOL, why, _SHA1_HINT)
            why = f"it has no host key of a type that is on file and allowed ({types})"
            return Failure(Kind.HOST_KEY_UNKNOWN, f"{why}, only {', '.join(has)}")
        return Failure(Kind.PROTOCOL, str(problem).lower(), hint=SSH_HINT)
    if isinstance(problem, SSHException):
        return Failure(Kind.PROTOCOL, f"{session.steps.name}: {str(problem)[:200]}")
    return _dropped(session, problem)


def _at_limit(session: Session) -> bool:
    """Whether the host hung up because so many tries failed (sshd's MaxAuthTries)."""
    return "authentication failures" in session.goodbye.lower()


def _dropped(session: Session, problem: BaseException | None) -> Failure:
    said = (session.before_banner, session.goodbye, session.stream.words())
    words = "; ".join(part[:300] for part in said if part)
    last_words = f": {words}" if words else ""
    if _at_limit(session):
        return Failure(Kind.AUTH, f"the host hung up{last_words}")
    # An sshd that locks us out for a while reports that; trying again prolongs it.
    retryable = "not allowed at this time" not in words.lower()
    reason = getattr(problem, "strerror", None)
    how = reason.lower() if reason else "closed by the host"
    return Failure(Kind.DROPPED, f"{session.steps.name}: {how}{last_words}", retryable=retryable)
