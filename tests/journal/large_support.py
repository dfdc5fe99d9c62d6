"""Large bodies in journals that a test drives: uploads, messages that need them, what is left."""

from collections.abc import Sequence

from sqlalchemy import MetaData, Table, insert, select

from orthia.config.errors import OrthiaError
from orthia.journal import MessageJournal, MessageLocation, Unit, encode_message
from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.engine.large import LargeMessages, Upload
from orthia.journal.file.bodies import list_bodies
from orthia.journal.model.message import LargeBody
from orthia.journal.sql.tables import large_messages_table
from tests.journal.support import QUEUE, FileJournalStore, JournalStore, SqlJournalStore, record
from tests.support.waiting import wait_until

DATA = bytes(range(256)) * (PIECE_BYTES // 128) + b"the last piece"


def bodies_of(journal: MessageJournal) -> LargeMessages:
    """Return the journal's large bodies."""
    assert journal.large is not None
    return journal.large


def begin(journal: MessageJournal, outcomes: list[LargeBody | OrthiaError]) -> Upload:
    """Begin an upload."""
    return bodies_of(journal).upload(lambda: None, outcomes.append)


def upload(store: JournalStore, journal: MessageJournal, data: bytes = DATA) -> LargeBody:
    """Store a body and return it, pinned."""
    outcomes: list[LargeBody | OrthiaError] = []
    uploading = begin(journal, outcomes)
    for at in range(0, len(data), 100_000):
        uploading.add(data[at : at + 100_000])
    uploading.finish()
    store.loop.run_until(lambda: outcomes, "the body is stored")
    (body,) = outcomes
    assert isinstance(body, LargeBody)
    return body


def put(
    store: JournalStore, journal: MessageJournal, body: LargeBody, queues: Sequence[int] = (QUEUE,)
) -> list[MessageLocation]:
    """Store a message with this body, which it then needs alone."""
    unit = Unit()
    unit.add_message(queues, encode_message(record("")._replace(large=body)))
    locations = journal.append_unit(unit)
    store.settle(journal)
    bodies_of(journal).unpin(body.id)
    return locations


def remove(store: JournalStore, journal: MessageJournal, *locations: MessageLocation) -> None:
    """Delete messages and wait until that is stored."""
    journal.delete(locations)
    store.settle(journal)


def read(store: JournalStore, journal: MessageJournal, body: LargeBody) -> bytes:
    """Read a body to its end; raises what reading it raises."""
    data, checksum, position = b"", 0, 0
    while len(data) < body.size:
        answers: list[tuple[bytes, int] | OrthiaError] = []
        bodies_of(journal).read(body.id, position, checksum, answers.append)
        store.loop.run_until(lambda answers=answers: answers, "a piece")  # type: ignore[misc]
        (answer,) = answers
        if isinstance(answer, OrthiaError):
            raise answer
        data, checksum, position = data + answer[0], answer[1], position + 1
    assert checksum == body.checksum
    return data


def table_of(store: SqlJournalStore) -> Table:
    """Return LARGE_MESSAGES."""
    name = store.settings.large_message_table_name
    return large_messages_table(MetaData(), name, store.database.dialect)


def stored(store: JournalStore) -> set[int]:
    """Return the ids of the bodies of which anything is stored."""
    if isinstance(store, FileJournalStore):
        return set(list_bodies(store.settings.large_messages_directory))
    assert isinstance(store, SqlJournalStore)
    table = table_of(store)
    with store.database.engine.connect() as connection:
        return set(connection.execute(select(table.c.id).distinct()).scalars())


def wait_gone(store: JournalStore, *ids: int) -> None:
    """Wait until bodies are removed."""
    wait_until(lambda: not stored(store) & set(ids), what=f"bodies {ids} are removed")


def leave_an_orphan(store: JournalStore, body_id: int) -> None:
    """Put a piece into the store that no upload of this node made."""
    if isinstance(store, FileJournalStore):
        (store.settings.large_messages_directory / f"{body_id}.msg").write_bytes(b"left over")
        return
    assert isinstance(store, SqlJournalStore)
    table = table_of(store)
    row = {"id": body_id, "position": 0, "epoch": 1, "piece": b"left over"}
    with store.database.engine.begin() as connection:
        connection.execute(insert(table).values(row))
