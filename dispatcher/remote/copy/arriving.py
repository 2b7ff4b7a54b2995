"""The files of a copy that arrive, in frames, and the folder that they come into.

``put`` on a host (``receiver``) and ``get`` on the launcher (``transfer.get_files``) use both. A
file comes into the *stage*, a folder of ours in the destination; a large one comes into a *part*,
which a later copy continues. All places are reached by descriptors, and never through a link.
"""

from __future__ import annotations

import errno
import os

from dispatcher.remote.copy import disk
from dispatcher.remote.copy.disk import Incoming
from dispatcher.remote.host.own_folder import FOR_LISTING, clear_folder
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.mux import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dispatcher.remote.protocol.copy_frames import Entry

#: bytes from which on a file is worth resuming
WORTH = 1 << 20


class OpenFolder:
    """The folder ``path``, open as ``root``. What is in it is named by the parts of its path.

    prefix: of the stage's name.
    """

    def __init__(self, path: str, root: int, prefix: str) -> None:
        self.path = path
        self.stage = ""
        self._prefix = prefix
        self._staged = -1  # the stage's descriptor
        self._open(root)

    def _open(self, root: int) -> None:
        self.root = root
        self._last: tuple[list[str], int] = ([], root)  # the folder that was entered last

    def path_of(self, parts: list[str]) -> str:
        """``parts`` as the user knows them."""
        return os.path.join(self.path, *parts) or "."

    def named(self, error: OSError, parts: list[str]) -> OSError:
        """``error`` with the path of ``parts``."""
        return OSError(error.errno, error.strerror, self.path_of(parts))

    def enter(self, parts: list[str], *, make: bool = False) -> int:
        """A descriptor of the folder ``parts``, valid until the next call. Raises: OSError."""
        if self._last[0] == parts:
            return self._last[1]
        fd = self.root
        for depth, part in enumerate(parts, 1):
            try:
                if make:
                    disk.make_folder(part, fd, 0o700)
                inner = disk.open_folder(part, fd)
            except OSError as error:
                raise self.named(error, parts[:depth]) from None
            finally:
                if fd != self.root:
                    os.close(fd)
            fd = inner
        self._leave()
        self._last = (parts, fd)
        return fd

    def _leave(self) -> None:
        if self._last[1] != self.root:
            os.close(self._last[1])
        self._last = ([], self.root)

    def status(self, parts: list[str]) -> os.stat_result | None:
        """lstat of ``parts``; None if nothing is there. Raises: OSError."""
        try:
            return os.stat(parts[-1], dir_fd=self.enter(parts[:-1]), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self.named(error, parts) from None

    def read(self, parts: list[str]) -> int:
        """A descriptor to read the file ``parts``; the caller closes it. Raises: OSError."""
        return os.open(parts[-1], disk.FOR_READING, dir_fd=self.enter(parts[:-1]))

    def read_again(self, parts: list[str], about: os.stat_result) -> int:
        """As ``read``, but only the file that ``about`` was of. Raises: NotTaken, OSError."""
        fd = self.read(parts)
        if not os.path.samestat(about, os.fstat(fd)):
            os.close(fd)
            raise disk.NotTaken(f"{self.path_of(parts)}: another one has its name now")
        return fd

    def in_stage(self) -> int:
        """The descriptor of the stage, which is made if there is none. Raises: OSError."""
        if self._staged < 0:
            # named first, so that it goes also if a signal ends us right after it was made
            self.stage = self._prefix + os.urandom(6).hex()
            try:
                os.mkdir(self.stage, 0o700, dir_fd=self.root)
            except OSError:
                self.stage = ""
                raise
            fd = os.open(self.stage, FOR_LISTING, dir_fd=self.root)
            os.mkdir("ours", dir_fd=fd)
            ours = os.stat("ours", dir_fd=fd, follow_symlinks=False).st_uid
            os.rmdir("ours", dir_fd=fd)
            if os.fstat(fd).st_uid != ours:  # others who may write to the folder were faster
                os.close(fd)
                self.stage = ""  # theirs, and not ours to remove
                raise PermissionError(errno.EPERM, "another user's folder has its name now")
            disk.locked(fd)  # so that no other copy sweeps it, where the file system can
            self._staged = fd
        return self._staged

    def create(self, *, folder: bool = False) -> tuple[int, str]:
        """Make a file, or ``folder``, in the stage: descriptor and name. Raises: OSError."""
        name = os.urandom(6).hex()
        try:
            stage = self.in_stage()
            if folder:
                os.mkdir(name, 0o700, dir_fd=stage)
                return os.open(name, FOR_LISTING, dir_fd=stage), name
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(name, flags, 0o600, dir_fd=stage), name
        except OSError as error:
            raise self.named(error, []) from None

    def drop_part(self, name: str) -> None:
        """Remove the part ``name``, if it is there."""
        try:
            os.unlink(name, dir_fd=self.root)
        except FileNotFoundError:
            pass

    def close(self) -> None:
        """Remove the stage with its leftover files; the files that have their names stay."""
        if self._staged >= 0:
            clear_folder(self._staged)
            os.close(self._staged)
            self._staged = -1
        if self.stage:
            os.rmdir(self.stage, dir_fd=self.root)
            self.stage = ""
        self._leave()
        if self.root >= 0:
            os.close(self.root)
            self._open(-1)


class Arriving:
    """The files that come in their ``_turns``. A subclass has the four methods at the end.

    resume: keep large files in parts, and read those of an earlier copy.
    """

    damaged = "came damaged, or changed while it was sent"

    def __init__(self, resume: bool) -> None:
        self._resume = resume
        self._parts: dict[int, Incoming] = {}  # locked, by their numbers in the list
        self._equal: dict[int, Incoming] = {}  # files that are here, equal in all but their time
        self._turns: Iterator[tuple[int, Entry]] = iter(())
        self._turn: tuple[int, Entry] | None = None
        self._file: Incoming | None = None  # whose turn it is, once it has begun
        self._sure = False  # that its bytes so far belong to this file
        self.bytes = self.found = 0  # that came, and that were here from another time

    @property
    def done(self) -> bool:
        """Whether every needed file has arrived."""
        return self._turn is None

    def _answer(self, wanted: bytes, turns: Iterator[tuple[int, Entry]]) -> dict[str, Any]:
        """The answer to a list: 1 for each ``wanted`` file, and the bytes that are here already."""
        self._turns = turns
        self._turn = next(turns, None)
        here = {**self._parts, **self._equal}
        starts = " ".join(f"{index} {file.size}" for index, file in here.items())
        seen = " ".join(file.hash.hexdigest() for file in here.values())
        return {"need": wanted, "start": starts, "seen": seen}

    def take(self, kind: int, body: bytes) -> None:
        """Take the next frame. Raises: Malformed, OSError, and the errors of ``_refused``."""
        if self._turn is None:
            raise Malformed("more files came than were asked for")
        index, entry = self._turn
        file, start = self._file, int.from_bytes(body[:8], "big")
        if file is None:
            if kind != copy_frames.END and (kind != copy_frames.START or start != entry.size):
                self._equal.pop(index, None)  # it is not the same file
            file = self._equal.get(index) or self._parts.get(index) or self._begin(index, entry)
            self._file = file
            self.found += file.size
        if kind in (copy_frames.DATA, copy_frames.HOLE):
            self._add(index, entry, file, kind, body)
        elif kind == copy_frames.START and not self._sure:
            self._sure = True
            if start != file.size:
                self.found -= file.size
                file.restart()
        elif kind == copy_frames.END:
            if file.size != entry.size or file.hash.digest() != body:
                raise self._damaged(index, entry)
            self._end(index, entry, file)
            self._next(index, file)
        elif kind == copy_frames.BROKEN:
            self._break(entry, body)
            self._drop(index, entry)
            self._next(index, file)
        else:
            raise Malformed(f"a frame of kind {kind!r}")

    def _add(self, index: int, entry: Entry, file: Incoming, kind: int, body: bytes) -> None:
        size = copy_frames.bytes_of(kind, body)
        if not size:
            raise Malformed("a frame of nothing")  # which would go on for ever
        self._sure = True
        self.bytes += size
        if file.size + size > entry.size:
            raise self._refused(entry, "more bytes came than it has")
        try:
            file.take(kind, body)
        except OSError:
            self._drop(index, entry)  # a part that filled the disk must not keep it full
            raise

    def _begin(self, index: int, entry: Entry) -> Incoming:
        """Make the file that takes ``entry``, whose turn it is, from its first byte."""
        part = self._open_part(entry, make=True)
        if part is None:
            return Incoming(*self._place(entry)[0].create())
        part.restart()  # the sender does not know about bytes that the part may have
        self._parts[index] = part
        return part

    def _offer_part(self, index: int, entry: Entry) -> None:
        """Keep the part of a needed file, if an earlier copy has left one."""
        part = (
            self._open_part(entry, make=False)
            if len(self._parts) < copy_frames.MOST_PARTS
            else None
        )
        if part is not None and part.size:
            self._parts[index] = part
        elif part is not None:
            os.close(part.fd)

    def _open_part(self, entry: Entry, *, make: bool) -> Incoming | None:
        """The part of ``entry``, locked and read; None if it should not have one."""
        if entry.size < WORTH:
            return None
        place, parts = self._place(entry)
        known = copy_frames.sha256()
        known.update(os.fsencode(f"{'/'.join(parts)}\0{entry.size}\0{entry.mtime}"))
        name = disk.PART + known.hexdigest()[:24]
        fd = disk.open_part(name, place.root, make=make and self._resume)
        if fd is None:
            return None
        if not self._resume:
            place.drop_part(name)
            os.close(fd)
            return None
        part = Incoming(fd, name)
        part.resume()
        if part.size > entry.size:
            part.restart()
        return part

    def _next(self, index: int, file: Incoming) -> None:
        """Close the present file, and go on to the next."""
        self._parts.pop(index, None)
        if file.fd >= 0:
            os.close(file.fd)
        self._file, self._sure = None, False
        self._turn = next(self._turns, None)

    def _damaged(self, index: int, entry: Entry) -> Exception:
        self._drop(index, entry)
        return self._refused(entry, self.damaged)

    def _drop(self, index: int, entry: Entry) -> None:
        """Remove the file if it is a part; files in the stage go with the stage."""
        part = self._parts.pop(index, None)
        if part is not None:
            self._place(entry)[0].drop_part(part.name)

    def _close_files(self) -> None:
        for part in self._parts.values():
            os.close(part.fd)
        if self._file is not None and self._file.fd >= 0 and self._file not in self._parts.values():
            os.close(self._file.fd)
        self._parts.clear()
        self._turns, self._file = iter(()), None

    def _place(self, entry: Entry) -> tuple[OpenFolder, list[str]]:
        """The folder where ``entry`` comes, and the parts of its path there."""
        raise NotImplementedError

    def _end(self, index: int, entry: Entry, file: Incoming) -> None:
        """Keep a file of which all is here; it is closed afterwards."""

    def _break(self, entry: Entry, why: bytes) -> None:
        """Give up a file that cannot be sent to its end."""

    def _refused(self, entry: Entry, why: str) -> Exception:
        """An error about what came of ``entry``."""
        raise NotImplementedError
