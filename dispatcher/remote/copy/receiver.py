"""The receiving end of a copy: which files of a list it needs, and how they get their names.

A file comes into a *stage* or a *part* (``disk``). It is renamed from there when all of it is here
and its SHA-256 is the sender's; a tree that is new in one step (``docs/design/copy.md``). Longer
than other modules, because every step of a copy needs its list, groups and parts.
"""

from __future__ import annotations

import errno
import os

from dispatcher.remote.copy.disk import (
    FOLDER_OF_ANOTHER,
    PART,
    STAGE,
    Incoming,
    NotTaken,
    Present,
    at_home,
    check_owner,
    check_place,
    check_way,
    digest,
    is_ours,
    locked,
    merge,
    needs,
    open_part,
    opened_again,
    rename,
    same_file,
    same_time,
    sweep,
)  # fmt: skip
from dispatcher.remote.host.own_folder import FOR_LISTING, clear
from dispatcher.remote.protocol.copy_frames import (
    BROKEN,
    DATA,
    END,
    FILE,
    FOLDER,
    HOLE,
    LINK,
    MOST_PARTS,
    START,
    Entry,
    bytes_of,
    sha256,
)  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: bytes from which on a file is worth resuming
WORTH = 1 << 20


def owner_of(text: str) -> tuple[int, int]:
    """uid and gid of ``USER``, ``USER:GROUP``, ``USER:`` (its own group), ``:GROUP``; -1: stays.

    Raises: NotTaken.
    """
    if not text:
        return -1, -1
    import grp
    import pwd

    user, colon, group = text.partition(":")
    uid = gid = -1
    try:
        if user:
            try:
                found = pwd.getpwnam(user)
                uid, gid = found.pw_uid, found.pw_gid if colon else -1
            except KeyError:
                uid = int(user)
    except ValueError:
        raise NotTaken(f"--owner {text}: no such user") from None
    try:
        if group:
            try:
                gid = grp.getgrnam(group).gr_gid
            except KeyError:
                gid = int(group)
    except ValueError:
        raise NotTaken(f"--owner {text}: no such group") from None
    return uid, gid


class Group:
    """Names that go to one destination ``dest``, and the folder where they are staged."""

    def __init__(self, dest: str, names: list[str], alone: bool) -> None:
        dest = at_home(dest)
        self.to = None if dest.endswith("/") or len(names) > 1 or os.path.isdir(dest) else dest
        self.folder = (dest if self.to is None else os.path.dirname(dest)) or "."
        check_way(self.folder, alone=alone)
        before = os.umask(0o077)
        os.umask(before | 0o002)  # users who may write to one folder could exchange the next
        try:
            os.makedirs(self.folder, exist_ok=True)
        except FileExistsError:
            raise OSError(errno.ENOTDIR, "not a folder", self.folder) from None
        finally:
            os.umask(before)
        self.stage = ""
        self.lock = -1

    def final(self, name: str) -> str:
        """The path that ``name`` gets in the end."""
        return os.path.join(self.folder, name) if self.to is None else self.to

    def staged(self, inner: str) -> str:
        """Where ``inner`` waits for its name; its folders are the caller's."""
        if not self.stage:
            # set first, so that it goes also if a signal ends us right after it was made
            self.stage = os.path.join(self.folder, STAGE + os.urandom(6).hex())
            try:
                os.mkdir(self.stage, 0o700)
            except OSError as error:
                self.stage = ""
                place = self.folder.rstrip("/") or "/"
                raise OSError(error.errno, error.strerror, place) from None
            self.lock = os.open(self.stage, FOR_LISTING)
            locked(self.lock)  # where the file system can
        return os.path.join(self.stage, inner)

    def close(self) -> None:
        """Remove the stage, with all files that did not get their name. Raises: OSError."""
        if self.stage:
            if self.lock >= 0:
                clear(self.lock)
            os.rmdir(self.stage)
            self.stage = ""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def _check(entries: list[Entry], groups: list[Any]) -> None:
    """Refuse a list that no sender makes: it may have come through others. Raises: NotTaken.

    Each path is in a folder that is listed before it, so neither ``..`` nor a link leads elsewhere.
    """
    folders: set[str] = set()
    others: set[str] = set()
    for entry in entries:
        above, _, name = entry.path.rpartition("/")
        if above in folders:
            is_possible = name not in ("", ".", "..")
        else:
            is_possible = (
                above.isascii()
                and above.isdigit()
                and len(above) < 9
                and int(above) < len(groups)
                and name in groups[int(above)][1]
            )
        if not (
            is_possible
            and entry.kind in (FILE, FOLDER, LINK)
            and 0 <= entry.mode <= 0o7777
            and entry.size >= 0
            and abs(entry.mtime) < 1 << 66  # 2262 ends 1 << 63, and file systems go on
            and "\0" not in entry.more
            and entry.path not in (others if entry.kind == FOLDER else folders)
        ):
            raise NotTaken("a list of files that cannot be")
        (folders if entry.kind == FOLDER else others).add(entry.path)


class Receiver:
    """Takes the files of ``entries``, whose paths are ``GROUP/NAME/...``, to their destinations.

    groups: (destination, names). checksum: compare contents, not size and time. resume: read
    what is there of a file, keep parts. owner: see ``owner_of``; of files, links and new folders.
    alone: see ``check_way``; of all folders. fixed: give a file that is there the list's mode.
    """

    def __init__(
        self,
        entries: list[Entry],
        groups: list[Any],
        checksum: bool,
        resume: bool,
        owner: str = "",
        alone: bool = False,
        fixed: bool = False,
    ) -> None:
        self._checksum = checksum
        self._resume = resume
        self._owner = owner_of(owner)
        self._alone = alone
        self._fixed = fixed or alone
        _check(entries, groups)
        self._groups = [Group(dest, names, alone) for dest, names in groups]
        for group in self._groups:
            sweep(group.folder)
        self._entries = entries
        self._new: set[str] = set()  # folders to make, by their paths in the list
        self._needed: list[int] = []
        self._parts: dict[int, Incoming] = {}  # locked
        self._whole: dict[int, str] = {}  # the names of parts that are in the stage, too
        self._alike: dict[str, Present] = {}  # by path: of the same size, not of the same time
        self._present: dict[int, Present] = {}
        self._turn = 0  # which of the needed
        self._file: Incoming | None = None  # whose turn it is, once it has begun
        self._sure = False  # that its bytes so far belong to this file
        self._wants: set[int] = set()
        self._places: dict[int, str] = {}
        self.bytes = 0

    # -- what is needed -----------------------------------------------------------------

    def needs(self) -> dict[str, Any]:
        """Which entries' bytes must be sent, and the bytes of them that are there already."""
        wanted = bytearray(len(self._entries))
        for index, entry in enumerate(self._entries):
            if not self._wanted(entry):
                continue
            wanted[index] = True
            self._needed.append(index)
            self._wants.add(index)
            if entry.path in self._alike:
                self._present[index] = self._alike.pop(entry.path)
                continue
            part = self._open_part(entry, make=False) if len(self._parts) < MOST_PARTS else None
            if part is not None and part.size:
                self._parts[index] = part
            elif part is not None:
                os.close(part.fd)
        return needs(bytes(wanted), self._parts, self._present)

    def _wanted(self, entry: Entry) -> bool:
        """Whether bytes of ``entry`` must be sent. Raises: NotTaken if it has no place."""
        final = self._final(entry)
        there, kind = self._there(entry, final)
        if entry.kind == FOLDER:
            if there is None or kind == 0o120000:  # a link may lead anywhere: it is replaced
                self._new.add(entry.path)
            elif kind != 0o040000:
                raise NotTaken(f"{final}: is not a folder")
            elif self._alone:
                check_owner(final, there, FOLDER_OF_ANOTHER)
            return False
        check_place(final, kind)
        if entry.kind == LINK:
            return False
        return not (there and kind == 0o100000 and self._same(entry, final, there))

    def _final(self, entry: Entry) -> str:
        """The path that ``entry`` gets in the end."""
        group, top, rest = self._split(entry.path)
        return group.final(top) + rest

    def _there(self, entry: Entry, final: str) -> tuple[os.stat_result | None, int]:
        """The file at the place of ``entry``, and its kind; (None, 0) if the place is free."""
        if entry.path.rpartition("/")[0] not in self._new:
            try:
                there = os.lstat(final)
                return there, there.st_mode & 0o170000
            except FileNotFoundError:
                pass
        return None, 0

    def _same(self, entry: Entry, final: str, there: os.stat_result) -> bool:
        trusted = is_ours(there) or there.st_uid == self._owner[0]
        if there.st_size != entry.size or not (trusted or (os.geteuid() == 0 and not self._alone)):
            return False  # of another user's even what is the same may change any time
        if self._checksum:
            if digest(final) != entry.more:
                return False
        elif not (trusted and same_time(there.st_mtime_ns, entry.mtime)):
            if self._resume and os.geteuid() in (0, there.st_uid):  # else it could get no time
                try:
                    self._alike[entry.path] = Present(final, there)
                except OSError:
                    pass  # it cannot be read: it is sent
            return False
        return self._settle(entry, final, there, time=self._checksum)

    def _settle(self, entry: Entry, path: str, there: os.stat_result, *, time: bool) -> bool:
        """Set owner, mode and ``time`` of a file that stays; False if it may not be changed."""
        mode = self._mode(entry, there)
        is_right = there.st_mode & 0o7777 == mode and self._owner == (-1, -1)
        if is_right and not time:
            return True
        try:
            fd = opened_again(path, there)
            try:
                if time:
                    os.utime(fd, ns=(entry.mtime, entry.mtime))
                if self._own(fd, there):
                    os.chmod(fd, self._mode(entry, there, 0o777))
                elif there.st_mode & 0o7777 != mode:
                    os.chmod(fd, mode)
            finally:
                os.close(fd)
        except PermissionError:
            return False
        return True

    def _mode(self, entry: Entry, there: os.stat_result, kept: int = 0o7777) -> int:
        """The mode for the file at ``there``: its own, executable if the sent file is."""
        if self._fixed:
            return entry.mode
        mode = there.st_mode & kept
        return mode | (mode & 0o444) >> 2 if entry.mode & 0o100 else mode

    def _keep(self, staged: str, final: str, entry: Entry, there: os.stat_result) -> None:
        """Give a file owner, group and mode of the file that it replaces, as scp leaves them.

        The exception is another user's file, if that user may have put it there to get ours.
        """
        is_open = os.geteuid() or os.stat(os.path.dirname(final) or ".").st_mode & 0o002
        if is_open and not is_ours(there):
            return
        uid, gid = self._owner
        uid, gid = there.st_uid if uid < 0 else uid, there.st_gid if gid < 0 else gid
        for owner in uid, -1:  # the group at least
            try:
                os.chown(staged, owner, gid)
                break
            except OSError:
                pass
        os.chmod(staged, self._mode(entry, there, 0o777))

    def _own(self, path: str | int, there: os.stat_result | None = None) -> bool:
        """Give ``path``, a link itself, to its owner, if it is not; before its mode is set."""
        uid, gid = self._owner
        if self._owner == (-1, -1):
            return False
        if there is not None and uid in (-1, there.st_uid) and gid in (-1, there.st_gid):
            return False
        try:
            if isinstance(path, int):
                os.fchown(path, uid, gid)
            else:
                os.lchown(path, uid, gid)
        except PermissionError:
            raise NotTaken("--owner: only root may give files away; try --sudo") from None
        return True

    def _split(self, path: str) -> tuple[Group, str, str]:
        """Group, name, and the rest with the slash before it."""
        number, _, path = path.partition("/")
        top, slash, rest = path.partition("/")
        return self._groups[int(number)], top, slash + rest

    def _open_part(self, entry: Entry, *, make: bool) -> Incoming | None:
        """The part of ``entry``, locked and read; None if it should not have one."""
        if not self._resume or entry.size < WORTH:
            return None
        known = sha256()
        known.update(os.fsencode(f"{self._final(entry)}\0{entry.size}\0{entry.mtime}"))
        path = os.path.join(self._split(entry.path)[0].folder, PART + known.hexdigest()[:24])
        fd = open_part(path, make=make)
        if fd is None:
            return None
        part = Incoming(fd, path)
        part.resume(entry.size)
        return part

    # -- what arrives -------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether every needed file has arrived."""
        return self._turn == len(self._needed)

    @property
    def now(self) -> Entry:
        """The file whose turn it is."""
        return self._entries[self._needed[self._turn]]

    def take(self, kind: int, body: bytes) -> None:
        """The next frame of the files. Raises: NotTaken, OSError."""
        if self.done:
            raise NotTaken("more files came than were asked for")
        index = self._needed[self._turn]
        entry = self._entries[index]
        file = self._file
        if file is None and index in self._present:
            if kind == START and int.from_bytes(body, "big") == entry.size:
                return  # they are the same; the end frame confirms it
            there = self._present.pop(index)
            if kind == END:
                self._stay(index, entry, there, body)
                return
        if file is None:
            self._sure = False
            file = self._file = self._parts.get(index) or self._begin(index, entry)
        if kind in (DATA, HOLE):
            size = bytes_of(kind, body)
            if file.size + size > entry.size:
                raise NotTaken(f"{entry.path}: more bytes came than it has")
            self.bytes += size
            file.take(kind, body)
            self._sure = True
        elif kind == START:
            if int.from_bytes(body, "big") != file.size:  # it is not the same file
                file.restart()
            self._sure = True
        elif kind == END:
            self._end(index, entry, file, body)
        elif kind == BROKEN:
            raise NotTaken(os.fsdecode(body))
        else:
            raise NotTaken(f"a frame of kind {kind!r}")

    def _begin(self, index: int, entry: Entry) -> Incoming:
        """Make the file that takes ``entry``, whose turn it is, from its first byte."""
        part = self._open_part(entry, make=True)
        if part is None:
            return self._create(entry)
        part.restart()  # the sender does not know about bytes that the part may have
        self._parts[index] = part
        return part

    def _create(self, entry: Entry) -> Incoming:
        path = self._staged(entry)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return Incoming(os.open(path, flags, 0o600), path)

    def _staged(self, entry: Entry) -> str:
        """Where a file waits for its name, in folders that are there."""
        group, top, rest = self._split(entry.path)
        path = group.staged(top + rest)
        if rest and not os.path.isdir(os.path.dirname(path)):
            os.makedirs(os.path.dirname(path))
        return path

    def _staged_too(self, index: int, part: Incoming) -> bool:
        """Give a part that is whole a second name, in the stage; whether it can have one.

        Two names keep other copies from it as a lock does (``open_part``), and take no descriptor.
        """
        staged = self._staged(self._entries[index])
        try:
            os.link(part.path, staged)
        except OSError:
            return False  # a file system without: the lock stays
        self._whole[index], part.path = part.path, staged
        del self._parts[index]
        return True

    def _stay(self, index: int, entry: Entry, there: Present, sent: bytes) -> None:
        """Keep a file that equals the sent one in all but its time."""
        still = there.is_still(sent)
        if not still or not self._settle(entry, there.path, there.about, time=True):
            raise NotTaken(f"{entry.path}: changed while it was compared")
        self._wants.discard(index)
        self._turn += 1

    def _end(self, index: int, entry: Entry, file: Incoming, sent: bytes) -> None:
        listed = entry.more in ("", file.hash.hexdigest())
        if file.size != entry.size or file.hash.digest() != sent or not listed:
            if index in self._parts:
                os.unlink(file.path)
            raise NotTaken(f"{entry.path}: came damaged, or changed while it was sent")
        self._own(file.fd)
        os.fchmod(file.fd, entry.mode)
        os.utime(file.fd, ns=(entry.mtime, entry.mtime))
        if index not in self._parts or self._staged_too(index, file):
            os.close(file.fd)
        self._places[index] = file.path
        self._file = None
        self._turn += 1

    # -- for those whom we pass files on to ---------------------------------------------

    def available(self, index: int) -> int:
        """How many bytes of a file are here for certain; -1: it has not begun to come."""
        if index in self._places or index not in self._wants:
            return self._entries[index].size
        if self._file is None or self._needed[self._turn] != index:
            return -1
        return self._file.size if self._sure else -1

    def source(self, index: int) -> tuple[str, int]:
        """Where a file is or comes, and its size; until ``commit``."""
        entry = self._entries[index]
        if index in self._places:
            return self._places[index], entry.size
        if index in self._wants:
            return (self._file.path if self._file else ""), entry.size
        return self._final(entry), entry.size

    # -- the names ----------------------------------------------------------------------

    def commit(self) -> None:
        """Give every file its name; all files must have come. Raises: NotTaken, OSError."""
        folders: list[tuple[str, str, Entry]] = []
        tops: dict[str, str] = {}
        for index, entry in enumerate(self._entries):
            if entry.kind == FILE and index not in self._places:
                continue
            group, top, rest = self._split(entry.path)
            final = group.final(top) + rest
            there, kind = self._there(entry, final)
            if entry.kind == FOLDER and kind == 0o040000:
                continue
            if entry.kind == LINK and kind == 0o120000 and os.readlink(final) == entry.more:
                self._own(final)
                continue
            staged = group.staged(top + rest)
            tops[group.staged(top)] = group.final(top)
            if entry.kind == FOLDER:
                os.makedirs(staged, exist_ok=True)
                folders.append((staged, final, entry))
                continue
            if rest:
                os.makedirs(os.path.dirname(staged), exist_ok=True)
            if index in self._whole:
                self._drop(index)
            if entry.kind == LINK:
                os.symlink(entry.more, staged)
                self._own(staged)
            elif self._places[index] != staged:
                rename(self._places[index], staged)
            if there and kind == 0o100000 and entry.kind == FILE and not self._alone:
                self._keep(staged, final, entry, there)
        for staged, _, entry in reversed(folders):
            self._own(staged)
            os.chmod(staged, entry.mode | 0o700)  # a folder that we may not write to stays
            os.utime(staged, ns=(entry.mtime, entry.mtime))
        for staged, final in tops.items():
            merge(staged, final, self._owner)
        for _, final, entry in folders:
            if entry.mode & 0o700 != 0o700:
                fd = os.open(final, FOR_LISTING)
                os.fchmod(fd, entry.mode)
                os.close(fd)

    def _drop(self, index: int) -> None:
        """Take the first name from a part that is in the stage, too."""
        part = self._whole.pop(index)
        if same_file(self._places[index], part):
            os.unlink(part)

    def report(self) -> dict[str, Any]:
        """Counts of the copy: files sent and equal; bytes received, and found from another time."""
        files = sum(entry.kind == FILE for entry in self._entries)
        needed = sum(self._entries[index].size for index in self._wants)
        return {
            "sent": len(self._wants),
            "equal": files - len(self._wants),
            "bytes": self.bytes,
            "found": max(0, needed - self.bytes),
        }

    def close(self, keep: bool) -> None:
        """Remove everything; if ``keep``, leave unfinished files' parts, for a week."""
        for part in self._parts.values():
            if same_file(part.fd, part.path):  # it has not got its name
                if keep and os.fstat(part.fd).st_size:
                    os.utime(part.fd)
                else:
                    os.unlink(part.path)
            os.close(part.fd)
        if self._file is not None and self._file not in self._parts.values():
            os.close(self._file.fd)
        for index in list(self._whole):
            if keep:
                os.utime(self._places[index])
            else:
                self._drop(index)
        self._whole.clear()
        self._parts.clear()
        self._file = None
        for group in self._groups:
            group.close()
