"""The directory of a ``shared-file-locker``, and the proof that the nodes of a store share one.

Locks on files in two directories lock nobody out: each node would take the live lock of its own,
and the fence would have them evict each other for ever. So the directory has an identity, a UUID in
its file ``lock.id``, and the first node of a store writes that into the database, into row 7 of
NODE_MANAGER_STORE. A node whose directory has another one does not start. Nor does one without its
directory: an empty one in the place of one that is not mounted would be a directory of its own.
"""

import os
import socket
import uuid
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy import MetaData, insert, select

from orthia.config.errors import ConfigurationError
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import (
    Database,
    DuplicateKey,
    StoreUnavailable,
    translate_errors,
    write_transaction,
)
from orthia.database.file_lock import try_lock
from orthia.nodemanager.errors import LockDirectoryMissing
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.tables import node_manager_store

ID_FILE: Final = "lock.id"
DIRECTORY_ROW: Final = 7
_LONGEST_PLACE: Final = 128
_ID_BYTES: Final = 64


class KnownDirectory(NamedTuple):
    """What the database says of the directory its nodes lock in."""

    identity: str
    place: str
    """``HOST:PATH`` of whoever wrote it first."""


class DirectoryRow:
    """Row 7 of NODE_MANAGER_STORE; each call raises StoreError."""

    def __init__(self, database: Database, settings: DatabaseStoreSettings) -> None:
        self._engine = database.engine
        name = settings.node_manager_store_table_name
        self._table = node_manager_store(MetaData(), name, database.dialect)

    def read(self) -> KnownDirectory | None:
        """Return what is known; None if no node has locked in a directory yet."""
        c = self._table.c
        ask = select(c.node_id, c.holder_id).where(c.id == DIRECTORY_ROW)
        with translate_errors("read the lock directory"), self._engine.connect() as connection:
            row = connection.execute(ask).first()
        return None if row is None else KnownDirectory(row.node_id, row.holder_id)

    def is_store_new(self) -> bool:
        """Return whether no node was ever live on this store."""
        c = self._table.c
        ask = select(c.holder_token).where(c.id == int(Lock.LIVE))
        with translate_errors("read the live lock"), self._engine.connect() as connection:
            return not connection.execute(ask).scalar()

    def write(self, known: KnownDirectory) -> None:
        """Write what is known, unless another node was first."""
        row = insert(self._table).values(
            id=DIRECTORY_ROW, node_id=known.identity, holder_id=known.place, holder_token=0
        )
        try:
            with write_transaction(self._engine, "write the lock directory") as connection:
                connection.execute(row)
        except DuplicateKey:
            return


class LockDirectory:
    """One node's directory; without a ``row`` there is nothing to compare it with."""

    def __init__(self, path: Path, row: DirectoryRow | None = None) -> None:
        self.path = path
        self._row = row
        self._known: KnownDirectory | None = None

    def join(self) -> None:
        """Make sure that this is the directory in which the store's nodes lock.

        The first node of a new store makes it. Raises ConfigurationError if it is another one,
        LockDirectoryMissing, StoreError.
        """
        if self._row is None:
            return
        known = self._row.read()
        if known is None:
            self._row.write(KnownDirectory(self._found(self._row), self._place()))
            known = self._row.read()
        if known is not None:
            self._compare(known)
        self._known = known

    def check(self) -> None:
        """Raise StoreUnavailable if this is not, or not any more, the store's directory."""
        if self._known is None and self._row is not None:
            self._known = self._row.read()
        known = self._known
        if known is not None and self._read() != known.identity:
            raise StoreUnavailable(
                f"{self.path} is not the directory in which the nodes of this store lock: its"
                f" {ID_FILE} is not {known.identity} (first used as {known.place}); is it mounted?"
            )

    def _found(self, row: DirectoryRow) -> str:
        """Return the identity of the first directory of a store, made if need be."""
        if not self.path.is_dir():
            if not row.is_store_new():
                raise LockDirectoryMissing(
                    f"there is no directory {self.path} for the locks of shared-file-locker, and"
                    " this store was in use before: mount it, or make it and share it between the"
                    " nodes"
                )
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreUnavailable(
                    f"{self.path} cannot be made: {error.strerror or error}"
                ) from error
        return self._read_or_write()

    def _compare(self, known: KnownDirectory) -> None:
        mine = self._read()
        if mine is None:
            what = f"no {ID_FILE} in it" if self.path.is_dir() else "no such directory here"
            raise LockDirectoryMissing(
                f"the nodes of this store lock in the directory that was first used as"
                f" {known.place}, and {self.path} of this node is not it: there is {what}. Mount"
                " it, or name it in <shared-file-locker>; if its files are lost, stop all nodes and"
                f" write {known.identity} into {self.path / ID_FILE}"
            )
        if mine != known.identity:
            raise ConfigurationError(
                f"<shared-file-locker>: directory is {self.path} here, which has the id {mine}, and"
                f" the nodes of this store lock in the one with the id {known.identity}, first used"
                f" as {known.place}: locks in two directories lock nobody out, so that the nodes"
                " would evict each other; expected one directory that all nodes share"
            )

    def _place(self) -> str:
        place = f"{socket.gethostname()}:{self.path}"
        return place if len(place) <= _LONGEST_PLACE else f"...{place[3 - _LONGEST_PLACE :]}"

    def _read(self) -> str | None:
        path = self.path / ID_FILE
        try:
            return path.read_text(encoding="ascii", errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be read: {error.strerror}") from error

    def _read_or_write(self) -> str:
        """Return the identity; a directory without one gets it, whoever comes at the same time."""
        path = self.path / ID_FILE
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
            try:
                if not try_lock(descriptor):
                    raise StoreUnavailable(f"{path} is being written by another node")
                if not os.pread(descriptor, _ID_BYTES, 0).strip():
                    os.pwrite(descriptor, f"{uuid.uuid4()}\n".encode(), 0)
                    os.fsync(descriptor)
                return os.pread(descriptor, _ID_BYTES, 0).decode("ascii", "replace").strip()
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be written: {error.strerror}") from error
