"""A journal that works, and a client that knows in which states it may be afterwards."""

import contextlib
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orthia.config.address_settings import RoutingType
from orthia.config.store_settings import JournalType
from orthia.journal import MessageLocation, QueueBinding, Unit, encode_message
from orthia.journal.engine.abc import Piece
from orthia.journal.errors import JournalIOError
from orthia.journal.file.bodies import FileBodies, list_bodies
from orthia.journal.file.opening import OpenedFiles
from orthia.journal.model.message import LargeBody
from tests.file_journal.support import BODY, DirectJournal, file_settings
from tests.journal.support import QUEUE, payload, record

State = frozenset[int]
"""Seqs of messages, and ids of bindings as negative numbers."""


@dataclass
class Client:
    """Knows what it was told, and in which states a journal may be that was cut off."""

    told: State = frozenset()
    possible: set[State] = field(default_factory=lambda: {frozenset()})

    def does(self, call: Callable[[], object], *changes: State) -> None:
        """Make a call that makes changes in this order, each whole or not at all.

        A change names what it adds and what it deletes: what is there goes, what is not comes.
        """
        state = self.told
        self.possible = {state, *(state := state ^ change for change in changes)}
        call()
        self.finds(state)

    def finds(self, state: State) -> None:
        """Look what there is."""
        assert state in self.possible
        self.told, self.possible = state, {state}


def body_of(body_id: int) -> bytes:
    """Return the one content that a large body of this id ever has."""
    return b"%d " % body_id * (body_id * 37 % 400 + 1)


class Life:
    """A journal, its client, and what both may do."""

    def __init__(
        self,
        directory: Path,
        client: Client,
        chance: random.Random,
        token: int,
        journal_type: JournalType,
    ) -> None:
        self._settings = file_settings(directory, journal_type=journal_type)
        self._client = client
        self._chance = chance
        self._token = token
        self.journal: DirectJournal | None = None
        self._bodies: FileBodies | None = None
        self._large: dict[int, int] = {}
        """The large body of each message that has one."""

    def open(self) -> DirectJournal:
        """Open the journal: it is what was told, and perhaps what was being done."""
        self.abandon()
        self.journal = journal = DirectJournal(self._settings, self._token)
        bound = {-one.queue_id for one in journal.opened.bound if isinstance(one, QueueBinding)}
        self._client.finds(frozenset(journal.live()) | bound)
        opened = journal.opened
        self._large = {seq: one for one, seq in opened.contents.messages.large_references()}
        if self._large or self._settings.large_messages_directory.exists():
            self._check_bodies(self._open_bodies(opened))
        return journal

    def _open_bodies(self, opened: OpenedFiles) -> FileBodies:
        """Open the directory of large bodies, which the first of them makes."""
        if self._bodies is None:
            self._bodies = FileBodies(
                self._settings, opened.large_references, opened.fence, opened.horizon
            )
        return self._bodies

    def _check_bodies(self, bodies: FileBodies) -> None:
        """Each body that a message needs is whole; what nothing needs goes."""
        for body_id in self._large.values():
            assert bodies.read(body_id, 0) == body_of(body_id)
        for body_id in bodies.sweep(0, 1_000)[0]:
            bodies.remove(body_id)
        assert set(list_bodies(self._settings.large_messages_directory)) <= {*self._large.values()}

    def work(self, steps: list[str]) -> None:
        """Open the journal and take the steps."""
        journal = self.open()
        for step in steps:
            if step == "reopen":
                journal.close()
                self.journal = None
                self._token += 1
                journal = self.open()
            else:
                getattr(self, step)(journal)

    def abandon(self) -> None:
        """Let go of the files, as a machine without power does."""
        if self._bodies is not None:
            self._bodies.close()
        if self.journal is not None:
            self.journal.abandon()
        self.journal = self._bodies = None

    def add(self, journal: DirectJournal) -> None:
        """Send some messages: each counts for itself, in their order."""
        texts = [self._text() for _ in range(self._chance.randrange(1, 8))]
        seqs = range(journal.seq + 1, journal.seq + len(texts) + 1)
        self._client.does(lambda: journal.add(*texts), *(frozenset([seq]) for seq in seqs))

    def delete(self, journal: DirectJournal) -> None:
        """Acknowledge most messages, all at once."""
        seqs = [seq for seq in self._messages() if self._chance.random() < 0.7]
        if seqs:
            self._client.does(lambda: journal.delete(*seqs), frozenset(seqs))

    def transact(self, journal: DirectJournal) -> None:
        """Acknowledge a message and send two at once; perhaps for a queue that is new."""
        unit, first = Unit(), journal.seq + 1
        change = {first, first + 1}
        for _ in range(2):
            unit.add_message([QUEUE], payload(self._text()))
        for seq in self._messages()[:1]:
            unit.delete(MessageLocation(seq))
            change.add(seq)
        if self._chance.random() < 0.6:
            unit.add_binding(QueueBinding(first, "queue", "address", RoutingType.ANYCAST))
            change.add(-first)
        bound = sorted(-number for number in self._client.told if number < 0)
        if bound and self._chance.random() < 0.5:
            unit.delete_binding(bound[0])
            change.add(-bound[0])
        self._client.does(lambda: journal.unit(unit), frozenset(change))

    def upload(self, journal: DirectJournal) -> None:
        """Store a large body, then a message that refers to it."""
        bodies = self._open_bodies(journal.opened)
        journal.seq = body_id = journal.seq + 1
        data = body_of(body_id)
        bodies.write([Piece(body_id, 0, data)])
        bodies.finish(body_id)
        unit = Unit()
        body = LargeBody(body_id, len(data), zlib.crc32(data))
        unit.add_message([QUEUE], encode_message(record("")._replace(large=body)))
        self._client.does(lambda: journal.unit(unit), frozenset([body_id + 1]))
        self._large[body_id + 1] = body_id

    def consume(self, journal: DirectJournal) -> None:
        """Acknowledge a large message; its body goes."""
        for seq, body_id in list(self._large.items())[:1]:
            unit = Unit()
            unit.delete(MessageLocation(seq, None, body_id))
            self._client.does(lambda unit=unit: journal.unit(unit), frozenset([seq]))  # type: ignore[misc]
            del self._large[seq]
            self._open_bodies(journal.opened).remove(body_id)

    def keep(self, journal: DirectJournal) -> None:
        """Prepare files, use them again, and compact when it is time; errors end nothing."""
        with contextlib.suppress(JournalIOError):
            journal.keeper.keep()

    def compact(self, journal: DirectJournal) -> None:
        """Compact whether it is time or not; likewise."""
        for files in journal.opened.instances:
            with contextlib.suppress(JournalIOError):
                files.compact()

    def close(self) -> None:
        """Stop in good order."""
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    def _messages(self) -> list[int]:
        """Return the messages that have no large body."""
        return sorted(n for n in self._client.told if n > 0 and n not in self._large)

    def _text(self) -> str:
        return BODY[: self._chance.randrange(len(BODY))]
