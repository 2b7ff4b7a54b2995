"""The receiving end of ``put``: which files of a list it needs, and how they get their names.

Files wait for their names in the stage until all of them are here; a tree that is new gets its
name in one step (``docs/design/copy.md``).
"""

from __future__ import annotations

import errno
import os

from dispatcher.remote.copy import disk
from dispatcher.remote.copy.arriving import Arriving, OpenFolder
from dispatcher.remote.copy.disk import OURS, Incoming, NotTaken, is_ours, kind_of
from dispatcher.remote.protocol.copy_frames import FILE, FOLDER, LINK, Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


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


class DestFolder(OpenFolder):
    """The folder where the ``names`` of one destination ``dest`` go; or one, by the name ``to``."""

    def __init__(self, dest: str, names: list[str], alone: bool) -> None:
        dest = disk.at_home(dest)
        is_folder = dest.endswith("/") or len(names) > 1 or os.path.isdir(dest)
        folder, self.to = (dest, "") if is_folder else os.path.split(dest)
        root = disk.open_way(folder or ".", alone=alone)
        super().__init__(folder.rstrip("/") or folder[:1], root, disk.STAGE)
        disk.sweep_stages(root)


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


class Receiver(Arriving):
    """Takes the files of ``entries``, whose paths are ``GROUP/NAME/...``, to their destinations.

    groups: (destination, names). checksum: compare contents, not size and time. resume: read
    what is there of a file, keep parts. owner: see ``owner_of``; of files, links and new folders.
    alone: see ``open_way``; of all folders. fixed: give a file that is there the list's mode.
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
        super().__init__(resume)
        self._checksum = checksum
        self._owner = owner_of(owner)
        self._alone = alone
        self._fixed = fixed or alone
        _check(entries, groups)
        self._groups = [DestFolder(dest, names, alone) for dest, names in groups]
        self._entries = entries
        self._new: set[str] = set()  # folders to make, by their paths in the list
        self._about: dict[int, os.stat_result] = {}  # of the files that are equal but for the time
        self._wants: set[int] = set()
        self._staged: dict[int, str] = {}  # names in the stage of files that are here
        self._whole: dict[int, str] = {}  # parts of these that still have their first name
        self._shut: list[tuple[OpenFolder, list[str], int]] = []  # folders, their modes to come

    # -- what is needed -----------------------------------------------------------------

    def needs(self) -> dict[str, Any]:
        """Which entries' bytes must be sent, and the bytes of them that are there already."""
        wanted = bytearray(len(self._entries))
        for index, entry in enumerate(self._entries):
            if self._is_needed(index, entry):
                wanted[index] = True
                self._wants.add(index)
                if index not in self._equal:
                    self._offer_part(index, entry)
        turns = [(index, self._entries[index]) for index in sorted(self._wants)]
        return self._answer(bytes(wanted), iter(turns))

    def _is_needed(self, index: int, entry: Entry) -> bool:
        """Whether bytes of ``entry`` must be sent. Raises: NotTaken if it has no place."""
        group, parts = self._place(entry)
        above, _, _ = entry.path.rpartition("/")
        there = None if above in self._new else group.status(parts)
        kind = kind_of(there)
        if entry.kind == FOLDER:
            if there is None or kind == LINK:  # a link may lead anywhere: it is replaced
                self._new.add(entry.path)
            elif kind != FOLDER:
                raise NotTaken(f"{group.path_of(parts)}: is not a folder")
            elif self._alone:
                disk.check_owner(group.path_of(parts), there, disk.FOLDER_OF_ANOTHER)
            return False
        disk.check_place(group.path_of(parts), there)
        if entry.kind == LINK:
            return False
        return there is None or kind != FILE or not self._same(index, entry, there)

    def _place(self, entry: Entry) -> tuple[DestFolder, list[str]]:
        number, top, *rest = entry.path.split("/")
        group = self._groups[int(number)]
        return group, [group.to or top, *rest]

    def _same(self, index: int, entry: Entry, there: os.stat_result) -> bool:
        trusted = is_ours(there) or there.st_uid == self._owner[0]
        if there.st_size != entry.size or not (trusted or (os.geteuid() == 0 and not self._alone)):
            return False  # of another user's even what is the same may change any time
        group, parts = self._place(entry)
        if self._checksum:
            if disk.digest(parts[-1], group.enter(parts[:-1])) != entry.more:
                return False
        elif not (trusted and disk.same_time(there.st_mtime_ns, entry.mtime)):
            if self._resume and os.geteuid() in (0, there.st_uid):  # else it could get no time
                self._offer_equal(index, entry, there)
            return False
        return self._settle(entry, there, time=self._checksum)

    def _offer_equal(self, index: int, entry: Entry, there: os.stat_result) -> None:
        """Offer a file of the right size, but another time, as a part that has all bytes."""
        group, parts = self._place(entry)
        try:
            file = Incoming(group.read(parts), "")
            try:
                file.resume()
            finally:
                os.close(file.fd)
        except OSError:
            return  # it cannot be read: it is sent
        file.fd = -1
        if file.size == entry.size:
            self._equal[index], self._about[index] = file, there

    def _settle(self, entry: Entry, there: os.stat_result, *, time: bool) -> bool:
        """Set owner, mode and ``time`` of a file that stays; False if it may not be changed."""
        uid, gid = self._owner
        gives = uid not in (-1, there.st_uid) or gid not in (-1, there.st_gid)
        mode = self._mode(entry, there, 0o777 if gives else 0o7777)
        if not (gives or time or there.st_mode & 0o7777 != mode):
            return True
        group, parts = self._place(entry)
        try:
            fd = group.read_again(parts, there)
            try:
                if time:
                    os.utime(fd, ns=(entry.mtime, entry.mtime))
                if gives:
                    self._own(fd)
                if gives or there.st_mode & 0o7777 != mode:
                    os.fchmod(fd, mode)
            finally:
                os.close(fd)
        except PermissionError:
            return False
        return True

    def _mode(self, entry: Entry, there: os.stat_result, kept: int) -> int:
        """The mode for the file at ``there``: its own, executable if the sent file is."""
        if self._fixed:
            return entry.mode
        mode = there.st_mode & kept
        return mode | (mode & 0o444) >> 2 if entry.mode & 0o100 else mode

    def _keep(
        self, name: str, stage: int, folder: int, entry: Entry, there: os.stat_result
    ) -> None:
        """Give a file owner, group and mode of the file that it replaces, as scp leaves them.

        The exception is another user's file, if that user may have put it there to get ours.
        """
        is_open = os.geteuid() or os.fstat(folder).st_mode & 0o002
        if is_open and not is_ours(there):
            return
        uid, gid = self._owner
        uid, gid = there.st_uid if uid < 0 else uid, there.st_gid if gid < 0 else gid
        for owner in uid, -1:  # the group at least
            try:
                os.chown(name, owner, gid, dir_fd=stage)
                break
            except OSError:
                pass
        os.chmod(name, self._mode(entry, there, 0o777), dir_fd=stage)

    def _own(self, file: int, name: str = "") -> None:
        """Give the open ``file``, or link ``name`` in it, to its owner; before its mode is set."""
        if self._owner == OURS:
            return
        try:
            if name:
                os.chown(name, *self._owner, dir_fd=file, follow_symlinks=False)
            else:
                os.fchown(file, *self._owner)
        except PermissionError:
            raise NotTaken("--owner: only root may give files away; try --sudo") from None

    # -- what arrives -------------------------------------------------------------------

    @property
    def now(self) -> Entry:
        """The file whose turn it is."""
        assert self._turn is not None
        return self._turn[1]

    def _end(self, index: int, entry: Entry, file: Incoming) -> None:
        if index in self._equal:
            return self._stay(index, entry)
        if entry.more not in ("", file.hash.hexdigest()):
            raise self._damaged(index, entry)
        self._own(file.fd)
        os.fchmod(file.fd, entry.mode)
        os.utime(file.fd, ns=(entry.mtime, entry.mtime))
        self._staged[index] = file.name
        if index in self._parts:
            self._stage_too(index, entry, file)
        return None

    def _stage_too(self, index: int, entry: Entry, part: Incoming) -> None:
        """Give a part that is whole a second name, in the stage.

        Two names keep other copies from it as a lock does (``open_part``), and take no descriptor.
        """
        group, _ = self._place(entry)
        stage, name = group.in_stage(), os.urandom(6).hex()
        try:
            os.link(part.name, name, src_dir_fd=group.root, dst_dir_fd=stage)
        except OSError:  # a file system without
            os.rename(part.name, name, src_dir_fd=group.root, dst_dir_fd=stage)
        if not disk.same_file(os.fstat(part.fd), name, stage):  # others may write there, too
            raise self._damaged(index, entry)
        self._staged[index], self._whole[index] = name, part.name

    def _stay(self, index: int, entry: Entry) -> None:
        """Keep a file that equals the sent one in all but its time."""
        group, parts = self._place(entry)
        before, now = self._about[index], group.status(parts)
        still = now is not None and now.st_mtime_ns == before.st_mtime_ns
        if not still or not self._settle(entry, before, time=True):
            raise NotTaken(f"{entry.path}: changed while it was compared")
        self._wants.discard(index)

    def _break(self, entry: Entry, why: bytes) -> None:
        raise NotTaken(os.fsdecode(why))

    def _refused(self, entry: Entry, why: str) -> Exception:
        return NotTaken(f"{entry.path}: {why}")

    # -- for those whom we pass files on to ---------------------------------------------

    def available(self, index: int) -> int:
        """How many bytes of a file are here for certain; -1: it has not begun to come."""
        if index in self._staged or index not in self._wants:
            return self._entries[index].size
        if self._turn is None or self._turn[0] != index or self._file is None:
            return -1
        return self._file.size if self._sure else -1

    def source(self, index: int) -> tuple[str, int]:
        """Where a file is or comes, and its size; until ``commit``."""
        entry = self._entries[index]
        group, parts = self._place(entry)
        if index in self._parts:
            return group.path_of([self._parts[index].name]), entry.size
        if index not in self._wants or index in self._equal:
            return group.path_of(parts), entry.size
        name = self._staged.get(index, self._file.name if self._file else "")
        return group.path_of([group.stage, name]) if name else "", entry.size

    # -- the names ----------------------------------------------------------------------

    def commit(self) -> None:
        """Give every file its name; all files must have come. Raises: NotTaken, OSError."""
        at = 0
        try:
            while at < len(self._entries):
                group, parts = self._place(self._entries[at])
                if self._entries[at].kind == FOLDER and kind_of(group.status(parts)) != FOLDER:
                    at = self._name_tree(at, group, parts)
                else:
                    self._name(at, at + 1, group)
                    at += 1
        finally:
            for place, parts, mode in reversed(self._shut):
                os.fchmod(place.enter(parts), mode)
            self._shut.clear()

    def _name_tree(self, first: int, group: DestFolder, parts: list[str]) -> int:
        """Make the new folder ``first``, with all in it, in the stage; then give it its name.

        If it cannot have that in one step, its files get theirs one by one. Returns the number of
        the next entry.
        """
        above, last = self._entries[first].path + "/", first + 1
        while last < len(self._entries) and self._entries[last].path.startswith(above):
            last += 1
        root, name = group.create(folder=True)
        tree = OpenFolder(group.path_of(parts), root, "")
        made = self._name(first, last, tree, len(parts), name)
        tree.close()
        folder = self._enter(group, parts[:-1])
        try:
            if kind_of(group.status(parts)) == LINK:
                os.unlink(parts[-1], dir_fd=folder)
            os.rename(name, parts[-1], src_dir_fd=group.in_stage(), dst_dir_fd=folder)
        except OSError as error:
            # it is on another file system, or another copy has just made it
            if error.errno not in (errno.EXDEV, errno.ENOTEMPTY, errno.EEXIST):
                raise group.named(error, parts) from None
            made = self._name(first, last, group)
        for entry in reversed(made):
            if entry.mode & 0o700 != 0o700:
                os.fchmod(group.enter(self._place(entry)[1]), entry.mode)
        return last

    def _name(
        self, first: int, last: int, place: OpenFolder, cut: int = 0, tree: str = ""
    ) -> list[Entry]:
        """Give entries their names in ``place``; returns the folders that were made.

        cut: how many parts of their paths lead to ``place``; tree: its name if it is in the stage.
        """
        made = []
        for index in range(first, last):
            entry = self._entries[index]
            if entry.kind == FILE and index not in self._staged:
                continue
            parts = self._place(entry)[1][cut:]
            there = place.status(parts) if parts else None
            if kind_of(there) == entry.kind == FOLDER:
                continue
            folder = self._enter(place, parts[:-1])
            try:
                if entry.kind != FOLDER:
                    disk.check_place(place.path_of(parts), there)
                    self._move(index, folder, parts[-1], there)
                    self._staged[index] = "/".join([tree, *parts])
                    continue
                if kind_of(there) == LINK:
                    os.unlink(parts[-1], dir_fd=folder)
                if not parts or disk.make_folder(parts[-1], folder, 0o700):
                    made.append((entry, parts))
            except OSError as error:
                raise place.named(error, parts) from None
        for entry, parts in reversed(made):
            fd = place.enter(parts)
            self._own(fd)
            os.fchmod(fd, entry.mode | 0o700)  # one that we may not write to stays
            os.utime(fd, ns=(entry.mtime, entry.mtime))
        return [entry for entry, _ in made]

    def _move(self, index: int, folder: int, final: str, there: os.stat_result | None) -> None:
        """Give a file or link its name ``final``, in place of the file ``there``."""
        entry = self._entries[index]
        group, _ = self._place(entry)
        stage = group.in_stage()
        if entry.kind == FILE:
            name = self._only_staged(index)
            if there and kind_of(there) == FILE and not self._alone:
                self._keep(name, stage, folder, entry, there)
        elif kind_of(there) == LINK and os.readlink(final, dir_fd=folder) == entry.more:
            self._own(folder, final)
            return
        else:
            name = os.urandom(6).hex()
            os.symlink(entry.more, name, dir_fd=stage)
            self._own(stage, name)
        disk.move(name, stage, final, folder, self._owner)

    def _only_staged(self, index: int) -> str:
        """The name in the stage of a file that is here; it has no other any more."""
        group, _ = self._place(self._entries[index])
        name, part = self._staged[index], self._whole.pop(index, None)
        if part and disk.same_file(os.stat(name, dir_fd=group.in_stage()), part, group.root):
            group.drop_part(part)
        return name

    def _enter(self, place: OpenFolder, parts: list[str]) -> int:
        """Enter a folder to write to it; if it is ours and shut by its mode, open that for now."""
        folder = place.enter(parts)
        about = os.fstat(folder)
        if parts and about.st_uid == os.geteuid() != 0 and about.st_mode & 0o300 != 0o300:
            self._shut.append((place, parts, about.st_mode & 0o7777))
            os.fchmod(folder, about.st_mode & 0o7777 | 0o300)
        return folder

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
        for index, part in self._parts.items():
            group, _ = self._place(self._entries[index])
            if disk.same_file(os.fstat(part.fd), part.name, group.root):  # it has not got its name
                if keep and os.fstat(part.fd).st_size:
                    os.utime(part.fd)
                else:
                    group.drop_part(part.name)
        for index, name in list(self._whole.items()):
            if keep:
                group, _ = self._place(self._entries[index])
                staged, stage = self._staged[index], group.in_stage()
                os.utime(staged, dir_fd=stage)
                os.rename(staged, name, src_dir_fd=stage, dst_dir_fd=group.root)
            else:
                self._only_staged(index)
        self._whole.clear()
        self._close_files()
        for group in self._groups:
            group.close()
