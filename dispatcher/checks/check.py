"""Values of checks: readings and facts of a host in, findings out; pure.

A *reading* is the answer to one question of a survey. A check is a function from one host to a
``Finding``. ``each`` makes it a check of the cluster; ``equal`` also compares: the value that most
hosts have is the right value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dispatcher.model.frozen import NamedNumber, Value, value
from dispatcher.remote.protocol.packing import PackError, unpack


class Level(NamedNumber):
    """How grave a finding is, in rising order.

    INCOMPLETE: the check could not read what it needs; graver than WARN, since such a
    host may be unfit.
    """

    OK = 0
    WARN = 1
    INCOMPLETE = 2
    CRITICAL = 3

    @property
    def fit(self) -> bool:
        return self <= Level.WARN


@value
class Finding(Value):
    """A check's result for a host.

    level: OK, WARN, INCOMPLETE or CRITICAL. value: the measured value. remedy: a remedy for it.
    """

    level: Level
    text: str = ""
    value: str = ""  # the same for equal hosts ("570.86", "8"), to find the outlier
    remedy: str | None = None


#: statuses of ``remote.probe.survey``
NOT_FOUND, NOT_EXECUTABLE, CRASHED = 127, 126, 125


@dataclass(frozen=True)
class Reading:
    """status: exit status, None when it hung until its deadline; cut: more was there than kept."""

    status: int | None
    output: bytes
    cut: bool = False

    @property
    def hung(self) -> bool:
        return self.status is None

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "backslashreplace")

    def value(self) -> Any:
        """The packed value that a ``file`` or ``call`` reading holds, bytes in it as text.

        None when it failed or is no such value.
        """
        if self.status != 0 or self.cut:
            return None
        try:
            return _as_text(unpack(self.output))
        except PackError:
            return None

    def why(self) -> str:
        """The reason for the lack of an answer, as text."""
        if self.hung:
            return "no answer in time"
        if self.status == NOT_FOUND:
            return "not installed"
        last = self.text.strip().splitlines()[-1][:200] if self.text.strip() else ""
        return f"exit code {self.status}" + (f": {last}" if last else "")


def _as_text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    if isinstance(value, dict):
        return {name: _as_text(item) for name, item in value.items()}
    return value


class Unread(Exception):
    """A check could not read what it needs; the text gives the reason."""


@dataclass(frozen=True)
class Asked:
    """The job that the user wants to run, as far as it is known.

    cwd, script: as they would be used; script "" for none. iface: the interface of the ranks.
    needs_cwd: a job will start in ``cwd``; otherwise it is only where the user happens to be.
    """

    cwd: str = ""
    script: str = ""
    iface: str | None = None
    needs_cwd: bool = True


@dataclass(frozen=True)
class Seen:
    """One host. readings: of the first visit; later: of the second, a little after.

    slots: ranks it should take, None if not known. head: the name of host 0.
    ahead: (least, most) seconds that its clock is ahead of our clock, None if unknown.
    """

    name: str
    readings: Mapping[str, Reading] = field(default_factory=dict)
    later: Mapping[str, Reading] = field(default_factory=dict)
    slots: int | None = None
    head: str = ""
    ahead: tuple[float, float] | None = None
    asked: Asked = Asked()

    def reading(self, name: str, *, later: bool = False) -> Reading:
        """The reading ``name``, however it ended. Raises: Unread when it was never made."""
        found = (self.later if later else self.readings).get(name)
        if found is None:
            raise Unread("not read")
        return found

    def value(self, name: str, *, later: bool = False) -> Any:
        """The value of a ``file`` or ``call`` reading. Raises: Unread."""
        reading = self.reading(name, later=later)
        value = reading.value()
        if value is None:
            raise Unread(reading.why())
        return value

    def files(self, name: str, *, later: bool = False) -> dict[str, str]:
        """path -> content of a ``file`` reading. Raises: Unread."""
        value = self.value(name, later=later)
        try:
            return {str(path): str(content) for path, content in value}
        except (TypeError, ValueError):
            raise Unread("a malformed answer") from None

    def file(self, name: str, path: str) -> str:
        """The content of ``path`` in the ``file`` reading ``name``. Raises: Unread."""
        found = self.files(name).get(path)
        if found is None:
            raise Unread(f"{path}: cannot be read")
        return found

    def output(self, name: str) -> str:
        """The output of a ``run`` reading. Raises: Unread when it failed or was cut."""
        reading = self.reading(name)
        if reading.status != 0:
            raise Unread(reading.why())
        if reading.cut:
            raise Unread("its output is too long")
        return reading.text


#: one host -> a finding; raises Unread
CheckHost = Callable[[Seen], Finding]
#: hosts by name -> a finding for each
CheckHosts = Callable[[Mapping[str, Seen]], dict[str, Finding]]


@dataclass(frozen=True)
class Check:
    """A column of the matrix. about: one line for the user."""

    name: str
    about: str
    find: CheckHosts


def ok(value: str = "", text: str = "") -> Finding:
    """A good result. value: the measurement, for finding the outlier."""
    return Finding(Level.OK, text, value)


def warn(text: str, remedy: str | None = None, value: str = "") -> Finding:
    """A finding with which the host can be used. remedy: None if not known."""
    return Finding(Level.WARN, text, value, remedy)


def critical(text: str, remedy: str | None = None, value: str = "") -> Finding:
    """A finding with which the host cannot be used. remedy: None if not known."""
    return Finding(Level.CRITICAL, text, value, remedy)


def a_few(texts: Sequence[str], most: int = 3, between: str = ", ") -> str:
    """The first ``most`` of ``texts`` in one line, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def checked(check: CheckHost, seen: Seen) -> Finding:
    """The finding of ``check``; INCOMPLETE when it cannot read."""
    try:
        return check(seen)
    except Unread as why:
        return Finding(Level.INCOMPLETE, f"could not be read: {why}")
    except Exception as error:  # noqa: BLE001 - what no parser foresaw of one host's text costs
        # its own column an answer, and the other hosts nothing
        text = str(error) or type(error).__name__
        return Finding(Level.INCOMPLETE, f"could not be understood: {text[:200]}")


def each(check: CheckHost) -> CheckHosts:
    """Every host for itself."""
    return lambda hosts: {name: checked(check, seen) for name, seen in hosts.items()}


def equal(check: CheckHost, level: Level, remedy: str | None = None) -> CheckHosts:
    """Every host for itself, and then each against the value that most of them have.

    On a tie, the earlier host's value counts, because rank 0 is on the first host.
    """

    def compare(hosts: Mapping[str, Seen]) -> dict[str, Finding]:
        found = each(check)(hosts)
        common = mode(one.value for one in found.values() if one.level == Level.OK)
        for name, one in found.items():
            if one.level == Level.OK and one.value != common:
                text = f"{one.value or 'none'} here, {common or 'none'} elsewhere"
                found[name] = Finding(level, text, one.value, remedy)
        return found

    return compare


def mode(values: Any) -> str | None:
    """The most frequent of ``values``, the first of those as frequent; None for no value."""
    counts = Counter(values)
    return max(counts, key=lambda value: counts[value], default=None)
