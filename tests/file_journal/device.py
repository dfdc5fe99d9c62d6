"""A disk that loses power: of what was not synced it keeps what it likes.

It watches the system calls that change files below a directory, and knows of each file and
directory what is durable and what only came after. When the power fails, each sector of a file
has what was synced or any later write; each name made, moved or removed since its directory was
synced is as before or as after; and nothing keeps an order.

A process may end before the machine does: what it wrote and did not sync is then in the page cache,
where the next one finds it. A sync that fails leaves of each write what it likes, and has the rest
forgotten: in the cache it still is, and no later sync is about it.
"""

import errno
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from orthia.journal.file import disk
from orthia.journal.file.opening import PROBE_FILE
from tests.file_journal import steps

SECTOR: Final = 512
NEVER: Final = sys.maxsize
_LUCK: Final = 0.3
"""How likely a write is durable though its sync has failed."""
SYNCS: Final = {"fsync", "fdatasync", "msync"}
WRITES: Final = {"pwrite", "store"}
_ASYNCHRONOUS: Final = {"_unless_interrupted", "_run"}
"""What is between an asynchronous sync and who asks for it."""


class PowerFailure(BaseException):
    """Ends whatever runs."""


class Killed(BaseException):
    """Ends a process; the machine goes on."""


@dataclass
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes]] = field(default_factory=list)

    def sync(self, begin: int = 0, end: int = sys.maxsize) -> None:
        """Make durable what was written between ``begin`` and ``end``."""
        pending, self.pending = self.pending, []
        for offset, data in pending:
            first, last = max(offset, begin), min(offset + len(data), end)
            if first >= last:
                self.pending.append((offset, data))
                continue
            _put(self.durable, first, data[first - offset : last - offset])
            for at, rest in ((offset, data[: first - offset]), (last, data[last - offset :])):
                if rest:
                    self.pending.append((at, rest))

    def fail_to_sync(self, chance: random.Random) -> None:
        """Make some of what was written durable; nobody will write the rest."""
        for offset, data in self.pending:
            if chance.random() < _LUCK:
                _put(self.durable, offset, data)
        self.pending.clear()

    def after_failure(self, chance: random.Random, likely: float) -> bytes:
        """Return what is left: of each sector some version that was written since the last sync."""
        kept = bytearray(self.durable)
        versions: dict[int, list[tuple[int, bytes]]] = {}
        for offset, data in self.pending:
            for at in range(offset // SECTOR * SECTOR, offset + len(data), SECTOR):
                begin = max(at, offset)
                piece = data[begin - offset : at + SECTOR - offset]
                versions.setdefault(at, []).append((begin, piece))
        for pieces in versions.values():
            # Seldom one in the middle: mostly all of them or none.
            count = len(pieces) if chance.random() < likely else chance.randrange(len(pieces))
            for offset, piece in pieces[:count]:
                _put(kept, offset, piece)
        return bytes(kept)


@dataclass
class _Directory:
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[dict[str, int | None]] = field(default_factory=list)
    """Names and their files, None where a name is gone; each entry happens or does not."""

    def sync(self) -> None:
        for change in self.pending:
            _rename(self.durable, change)
        self.pending.clear()

    def after_failure(self, chance: random.Random, likely: float) -> dict[str, int]:
        """Return the names that are left."""
        kept = dict(self.durable)
        for change in self.pending:
            if chance.random() < likely:
                _rename(kept, change)
        return kept


class Device:
    """Holds everything below ``root``, which was empty or is durable."""

    def __init__(self, root: Path, *, fails_at: int, forgets: str = "") -> None:
        """Fail at the ``fails_at``-th change, counted from 1.

        A sync that is made for ``forgets`` is left out.
        """
        self.root = root
        self.changes = 0
        self._fails_at = fails_at
        self._forgets = forgets
        self.syncs: list[str] = []
        """Who has asked for a sync."""
        self._dies_at = self._errs_at = 0
        self._is_dead = False
        self._chance = random.Random()
        self.made: list[str] = []
        """What the process that runs has changed: who asked for a sync, or the names of calls."""
        self._files: dict[int, _File] = {}
        self._directories: dict[Path, _Directory] = {root: _Directory()}
        self._open: list[int] = []
        """Keeps the system from giving the number of a removed file to another."""
        self._load(root)

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._open:
            os.close(descriptor)

    def process(
        self,
        chance: random.Random,
        *,
        dies_at: int = 0,
        errs_at: int = 0,
        fails_at: int = NEVER,
    ) -> None:
        """Have another process work here, which sees what the one before it has written.

        It dies at a change, counted from 1, or that one fails with an error, or the power does.
        """
        self.changes, self._fails_at = 0, fails_at
        self._dies_at, self._errs_at, self._is_dead = dies_at, errs_at, False
        self._chance = chance
        self.made = []

    def call(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Make a call and take note of what it changes; see ``steps.Observer``."""
        self._meet(name, _asked_by(sys._getframe(1)) if name in SYNCS else name, arguments)
        self.changes += 1
        has_power = self.changes < self._fails_at
        if name in SYNCS:
            if has_power:
                descriptor, *part = arguments
                self._sync(descriptor, self.made[-1], *part)
        elif name in WRITES:
            descriptor, data, offset = arguments
            # What was under way when the power failed may be there too.
            if not _is_probe(descriptor):
                number = os.fstat(descriptor).st_ino
                self._files[number].pending.append(_sectors(descriptor, data, offset))
        if not has_power:
            raise PowerFailure
        if name in SYNCS:
            return None
        return self._change(name, real, arguments)

    def _meet(self, name: str, change: str, arguments: tuple[Any, ...]) -> None:
        """Take note of a change; raise what the process meets there."""
        if self._is_dead:
            raise Killed
        self.made.append(change)
        if self._dies_at == len(self.made):
            self._is_dead = True
            raise Killed
        if self._errs_at == len(self.made):
            if name in SYNCS:
                written = self._files.get(os.fstat(arguments[0]).st_ino)
                if written is not None:
                    written.fail_to_sync(self._chance)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            number = self._chance.choice([errno.EIO, errno.ENOSPC])
            raise OSError(number, os.strerror(number))

    def fail(self, target: Path, chance: random.Random) -> None:
        """Write to ``target`` what is left."""
        likely = chance.choice([0.0, 0.3, 0.7, 1.0])
        for directory, names in self._directories.items():
            if not self._is_left(directory):
                continue
            copy = target / directory.relative_to(self.root)
            copy.mkdir(parents=True, exist_ok=True)
            for name, number in names.after_failure(chance, likely).items():
                if number in self._files:
                    content = self._files[number].after_failure(chance, likely)
                    (copy / name).write_bytes(content)

    def _is_left(self, directory: Path) -> bool:
        return directory == self.root or (
            directory.name in self._directories[directory.parent].durable
            and self._is_left(directory.parent)
        )

    def _load(self, directory: Path) -> None:
        for path in directory.iterdir():
            number = path.stat().st_ino
            self._directories[directory].durable[path.name] = number
            if path.is_dir():
                self._directories[path] = _Directory()
                self._load(path)
            else:
                self._know(path)
                self._files[number].durable += path.read_bytes()

    def _know(self, path: Path) -> int:
        number = path.stat().st_ino
        if number not in self._files:
            self._files[number] = _File()
            self._open.append(os.open(path, os.O_RDONLY))
        return number

    def _sync(self, descriptor: int, asked_by: str, *part: int) -> None:
        self.syncs.append(asked_by)
        if asked_by == self._forgets:
            return
        number = os.fstat(descriptor).st_ino
        if number in self._files:
            self._files[number].sync(*part)
            return
        for directory, names in self._directories.items():
            if directory.stat().st_ino == number:
                names.sync()

    def _change(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        paths = [Path(one) for one in arguments if isinstance(one, str | Path)]
        existed = paths and paths[-1].exists()
        number = paths[0].stat().st_ino if name in {"link", "rename"} else 0
        result = real(*arguments)
        match name:
            case "open":
                if not existed:
                    self._note(paths[0], {paths[0].name: self._know(paths[0])})
            case "mkdir":
                self._directories[paths[0]] = _Directory()
                self._note(paths[0], {paths[0].name: paths[0].stat().st_ino})
            case "link":
                self._note(paths[1], {paths[1].name: number})
            case "rename":
                self._note(paths[1], {paths[0].name: None, paths[1].name: number})
            case "unlink":
                self._note(paths[0], {paths[0].name: None})
        return result

    def _note(self, path: Path, change: dict[str, int | None]) -> None:
        self._directories[path.parent].pending.append(change)


def _asked_by(frame: Any) -> str:
    """Return the functions that ask for a sync: the nearest, and beyond those that only sync."""
    while frame.f_code.co_filename == steps.__file__ or frame.f_code.co_name in _ASYNCHRONOUS:
        frame = frame.f_back
    asking = [frame.f_code.co_name]
    while frame.f_code.co_filename == disk.__file__ or asking[-1] in {"sync", "_put"}:
        frame = frame.f_back
        asking.append(frame.f_code.co_name)
    return "<".join(asking)


def _is_probe(descriptor: int) -> bool:
    """Tell a file that only shows whether asynchronous IO is to be had: nothing is kept in it."""
    return Path(f"/proc/self/fd/{descriptor}").readlink().name.split(" ")[0] == PROBE_FILE


def _sectors(descriptor: int, data: bytes, offset: int) -> tuple[int, bytes]:
    """Return what a write has written to the disk, which is whole sectors, and where they begin."""
    begin = offset // SECTOR * SECTOR
    end = -(-(offset + len(data)) // SECTOR) * SECTOR
    # By another way than the descriptor: it may be for writing only.
    with Path(f"/proc/self/fd/{descriptor}").open("rb") as file:
        content = bytearray(os.pread(file.fileno(), end - begin, begin))
    _put(content, offset - begin, data)
    return begin, bytes(content)


def _put(content: bytearray, offset: int, data: bytes) -> None:
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


def _rename(names: dict[str, int], change: dict[str, int | None]) -> None:
    for name, number in change.items():
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number
