"""Faults that an audit is to find: each spoils rows of a sound store in its own place.

A store is made by the journal itself: two nodes one after the other, several queues, messages of
one queue and of several, large bodies, transactions in doubt, and what left its queue. A fault then
changes what is stored, as a bad disk, a bad restore or a hand in the database does, and says which
findings are expected, at which rows. Nothing else may be blamed.
"""

# ruff: noqa: D103  (the name of a fault says what is wrong)

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import MetaData, Table, delete, func, insert, select, text, update

from orthia.config.address_settings import RoutingType
from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.journal import MessageJournal, MessageLocation, QueueBinding, Unit, encode_message
from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.model.codec import ReferenceRecord, encode_queue_binding, encode_reference
from orthia.journal.model.message import LargeBody
from orthia.journal.model.xid import Xid
from orthia.journal.sql.tables import times_table
from orthia.journal.xa import XaTransactions
from tests.journal.keeping import KeepingStore
from tests.journal.large_support import DATA, bodies_of, table_of, upload
from tests.journal.support import record

ORDERS, FIRST, SECOND, SPARE, SPOILED, GONE, MOVED = range(7, 14)
"""Queues: ORDERS and SPARE are of their own addresses, FIRST and SECOND of one."""
QUEUES = {
    ORDERS: ("orders", "orders"),
    FIRST: ("first", "shop"),
    SECOND: ("second", "shop"),
    SPARE: ("spare", "spare"),
    SPOILED: ("spoiled", "spoiled"),
    GONE: ("gone", "gone"),
    MOVED: ("moved", "moved"),
}
UNFENCED = 99
FAR_SEQ = 50_000_000

Expected = set[tuple[str, str, int | None, int | None]]
"""Fault, table, seq of the row (for a body without a message its id), position of a piece."""


@dataclass
class Scene:
    """A sound store, and which of its rows no fault has been put into yet."""

    store: KeepingStore
    orders: list[int] = field(default_factory=list)
    """Messages of ORDERS that the first node stored."""
    late: list[int] = field(default_factory=list)
    """The same of the second node; the first and the last few are left alone."""
    shared: list[int] = field(default_factory=list)
    """Bodies of messages of FIRST and SECOND, whose references follow."""
    large: list[tuple[int, LargeBody]] = field(default_factory=list)
    """Large messages of ORDERS."""
    shared_large: list[tuple[int, LargeBody]] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    """What left ORDERS, of the first node."""
    kept_large: list[tuple[int, LargeBody]] = field(default_factory=list)
    in_queue: dict[int, list[int]] = field(default_factory=dict)
    """Messages of the queues whose bindings are spoiled."""
    in_doubt: list[tuple[int, int]] = field(default_factory=list)
    """Transactions, each with a message that it acknowledges."""

    def table(self, name: str) -> Table:
        """Return a table by the name an audit gives it."""
        store = self.store
        return {
            "messages": store.messages,
            "bindings": store.bindings,
            "history": store.history,
            "large": table_of(store),
            "node_manager": store.fence,
            "times": times_table(
                MetaData(),
                store.settings.message_times_table_name,
                store.database.dialect,
            ),
        }[name]

    def do(self, statement: Any) -> Any:
        """Change the store behind everybody's back."""
        with self.store.database.engine.begin() as connection:
            return connection.execute(statement)

    def change(self, seq: int, table: str = "messages", /, **values: Any) -> None:
        """Change the row of this seq."""
        target = self.table(table)
        changed = self.do(update(target).where(target.c.seq == seq).values(**values))
        assert changed.rowcount == 1

    def row(self, seq: int, table: str = "messages") -> dict[str, Any]:
        """Return a row."""
        target = self.table(table)
        with self.store.database.engine.connect() as connection:
            found = connection.execute(select(target).where(target.c.seq == seq)).one()
        return dict(found._mapping)

    def add(self, table: str = "messages", **values: Any) -> None:
        """Insert a row."""
        self.do(insert(self.table(table)).values(**values))

    def remove(self, *seqs: int, table: str = "messages") -> None:
        """Delete rows."""
        target = self.table(table)
        self.do(delete(target).where(target.c.seq.in_(seqs)))

    def record(self, seq: int, table: str = "messages") -> bytes:
        """Return the record of a row."""
        return bytes(self.row(seq, table)["record"])

    def flip(self, seq: int, at: int = 20, table: str = "messages") -> None:
        """Change one byte of a row's record."""
        self.change(seq, table, record=flipped(self.record(seq, table), at))

    def piece(self, body: LargeBody, position: int) -> dict[str, Any]:
        """Return a row of LARGE_MESSAGES."""
        table = self.table("large")
        ask = select(table).where(table.c.id == body.id, table.c.position == position)
        with self.store.database.engine.connect() as connection:
            return dict(connection.execute(ask).one()._mapping)

    def change_piece(self, body: LargeBody, position: int, **values: Any) -> None:
        """Change a row of LARGE_MESSAGES."""
        table = self.table("large")
        at = (table.c.id == body.id, table.c.position == position)
        assert self.do(update(table).where(*at).values(**values)).rowcount == 1

    def remove_pieces(self, body: LargeBody, *positions: int) -> None:
        """Delete rows of LARGE_MESSAGES."""
        table = self.table("large")
        self.do(delete(table).where(table.c.id == body.id, table.c.position.in_(positions)))

    def now(self) -> datetime:
        """Return when the newest message was written."""
        with self.store.database.engine.connect() as connection:
            written_at = self.store.messages.c.written_at
            ask = select(func.max(written_at)).where(written_at < datetime.now(UTC))
            found: datetime = connection.execute(ask).scalar_one()
        return found


def flipped(data: bytes, at: int) -> bytes:
    """Return ``data`` with one byte changed."""
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def sound(settings: DatabaseStoreSettings) -> Scene:
    """Make a store: two nodes, each with what it stored."""
    store = KeepingStore(settings)
    scene = Scene(store)
    journal = store.open(1)
    for queue_id, (name, address) in QUEUES.items():
        kind = RoutingType.MULTICAST if address == "shop" else RoutingType.ANYCAST
        journal.add_binding(QueueBinding(queue_id, name, address, kind))
    scene.orders = _send(store, journal, ORDERS, 70)
    for queue_id in (SPARE, SPOILED, GONE, MOVED):
        scene.in_queue[queue_id] = _send(store, journal, queue_id, 5)
    scene.shared = [_send_shared(store, journal) for _ in range(22)]
    scene.large = [_send_large(store, journal, ORDERS) for _ in range(16)]
    scene.shared_large = [_send_large(store, journal, FIRST, SECOND) for _ in range(2)]
    acknowledged = [_send_large(store, journal, ORDERS) for _ in range(2)]
    kept = _send(store, journal, ORDERS, 24)
    places = [MessageLocation(seq, None, body.id) for seq, body in acknowledged]
    journal.delete([*map(MessageLocation, kept), *places])
    store.settle(journal)
    scene.kept, scene.kept_large = kept, acknowledged
    transactions = XaTransactions(journal)
    for number, seq in enumerate(_send(store, journal, ORDERS, 3)):
        unit = Unit()
        unit.add_message([ORDERS], _payload("orders"))
        unit.delete(MessageLocation(seq))
        xid = Xid(1, b"transaction", bytes([number]))
        transactions.prepare(xid, unit)
        (prepared,) = [one for one in transactions.in_doubt if one.xid == xid]
        scene.in_doubt.append((prepared.transaction_id, seq))
    store.settle(journal)
    journal.close(drain=True)
    store.advance_fence(2)
    journal = store.open(2)
    late = _send(store, journal, ORDERS, 40)
    scene.late = late[5:-5]
    _send_shared(store, journal)
    # A body that is on its way, of the node that is live.
    upload(store, journal)
    journal.close(drain=True)
    return scene


def _payload(address: str, large: LargeBody | None = None) -> bytes:
    return encode_message(record("")._replace(address=address, body=b"x" * 40, large=large))


def _send(store: KeepingStore, journal: MessageJournal, queue: int, count: int) -> list[int]:
    _, address = QUEUES[queue]
    payload = _payload(address)
    seqs = [journal.append_message(queue, payload, None) for _ in range(count)]
    store.settle(journal)
    return seqs


def _send_shared(store: KeepingStore, journal: MessageJournal) -> int:
    unit = Unit()
    unit.add_message([FIRST, SECOND], _payload("shop"))
    first, _ = journal.append_unit(unit)
    store.settle(journal)
    return first.seq - 1


def _send_large(
    store: KeepingStore, journal: MessageJournal, *queues: int
) -> tuple[int, LargeBody]:
    # Each body is another: pieces that are put into a wrong one are wrong there.
    body = upload(store, journal, bytes([len(stored_bodies(store)) % 250]) + DATA[1:])
    unit = Unit()
    unit.add_message(queues, _payload(QUEUES[queues[0]][1], body))
    first, *_ = journal.append_unit(unit)
    store.settle(journal)
    bodies_of(journal).unpin(body.id)
    return (first.seq if len(queues) == 1 else first.seq - 1), body


def stored_bodies(store: KeepingStore) -> list[int]:
    """Return the ids of all bodies."""
    table = table_of(store)
    with store.database.engine.connect() as connection:
        return list(connection.execute(select(table.c.id).distinct()).scalars())


@dataclass(frozen=True)
class Injected:
    """A fault by what is done, and what is expected to be said of it."""

    name: str
    inject: Callable[[Scene], Expected]


FAULTS: list[Injected] = []


def injects(function: Callable[[Scene], Expected]) -> Callable[[Scene], Expected]:
    """Add a fault to the table."""
    FAULTS.append(Injected(function.__name__, function))
    return function


def at(fault: str, seq: int, table: str = "messages") -> Expected:
    """Return a finding at a row."""
    return {(fault, table, seq, None)}


# --- records


@injects
def a_record_with_a_flipped_byte(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.flip(seq)
    return at("corrupt-record", seq)


@injects
def a_record_that_is_cut_off(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, record=scene.record(seq)[:30])
    return at("corrupt-record", seq)


@injects
def an_empty_record(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, record=b"")
    return at("corrupt-record", seq)


@injects
def a_record_of_an_unknown_version(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, record=b"\x09" + scene.record(seq)[1:])
    return at("corrupt-record", seq)


@injects
def an_address_that_is_no_text(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    spoiled = scene.record(seq)[:-4].replace(b"orders", b"\xff\xff\xff\xff\xff\xff")
    scene.change(seq, record=spoiled + struct.pack(">I", zlib.crc32(spoiled)))
    return at("corrupt-record", seq)


@injects
def headers_that_are_none(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    headless = record("x")._replace(address="orders", head=b"no colon\n")
    scene.change(seq, record=encode_message(headless))
    return at("corrupt-record", seq)


@injects
def a_reference_with_a_flipped_byte(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.flip(body + 1, 7)
    return at("corrupt-record", body + 1)


@injects
def the_only_reference_that_is_left_with_a_flipped_byte(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.remove(body + 1)
    scene.flip(body + 2, 7)
    return at("corrupt-record", body + 2)


@injects
def a_reference_with_another_ones_record(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.change(body + 2, record=scene.record(body + 1))
    return at("wrong-id", body + 2)


@injects
def a_reference_with_a_place_behind_the_last(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.change(body + 2, record=encode_reference(ReferenceRecord(2, 1)))
    return at("corrupt-record", body + 2)


@injects
def references_that_do_not_agree(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.change(body + 2, record=encode_reference(ReferenceRecord(2, 5)))
    return at("uneven-references", body + 2)


@injects
def a_body_with_a_flipped_byte(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.flip(body)
    return at("corrupt-record", body)


# --- keys


@injects
def a_message_with_another_id(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, id=seq - 1)
    return at("wrong-id", seq)


@injects
def a_reference_with_another_id(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.change(body + 2, id=body - 30)
    return at("wrong-id", body + 2)


@injects
def a_negative_id(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, id=-seq)
    return at("wrong-id", seq) | at("impossible-key", seq)


@injects
def a_negative_seq(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, seq=-seq, id=-seq)
    return at("impossible-key", -seq)


@injects
def a_seq_of_zero(scene: Scene) -> Expected:
    scene.change(scene.orders.pop(), seq=0, id=0)
    return at("impossible-key", 0)


@injects
def the_last_seq_there_is(scene: Scene) -> Expected:
    seq = 2**63 - 1
    scene.change(scene.late.pop(), seq=seq, id=seq)
    return at("unreserved-id", seq)


@injects
def a_negative_epoch(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, epoch=-1)
    return at("impossible-key", seq)


@injects
def an_epoch_of_zero(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, epoch=0)
    return at("impossible-key", seq)


@injects
def a_negative_queue_id(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, queue_id=-3)
    return at("impossible-key", seq)


@injects
def a_reference_of_no_queue(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.change(body + 1, queue_id=None)
    return at("impossible-key", body + 1)


@injects
def a_message_of_no_queue(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, queue_id=None)
    return at("orphaned-body", seq)


@injects
def a_seq_above_the_reserved_ones(scene: Scene) -> Expected:
    seq = FAR_SEQ
    scene.change(scene.late.pop(), seq=seq, id=seq)
    return at("unreserved-id", seq)


@injects
def an_id_that_is_no_number(scene: Scene) -> Expected:
    if scene.store.database.dialect is not Dialect.SQLITE:
        return set()
    seq = scene.orders.pop()
    scene.do(text(f"UPDATE MESSAGES SET id = 'abc' WHERE seq = {seq}"))
    return at("impossible-key", seq)


@injects
def a_record_that_is_a_number(scene: Scene) -> Expected:
    if scene.store.database.dialect is not Dialect.SQLITE:
        return set()
    seq = scene.orders.pop()
    scene.do(text(f"UPDATE MESSAGES SET record = 7 WHERE seq = {seq}"))
    return at("corrupt-record", seq)


# --- kinds


@injects
def an_update_record(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, record_type=12)
    return at("wrong-record-type", seq)


@injects
def a_record_type_that_is_none(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, record_type=99)
    return at("wrong-record-type", seq)


@injects
def a_transaction_of_a_record_that_is_in_none(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, tx_id=5)
    return at("wrong-record-type", seq)


@injects
def a_record_of_a_transaction_that_has_no_number(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, record_type=13)
    return at("wrong-record-type", seq)


@injects
def a_message_of_an_unknown_kind(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, user_record_type=98)
    return at("wrong-record-type", seq)


@injects
def a_small_message_that_is_called_large(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, user_record_type=30)
    return at("wrong-record-type", seq)


@injects
def a_large_message_that_is_called_small(scene: Scene) -> Expected:
    seq, _ = scene.large.pop()
    scene.change(seq, user_record_type=31)
    return at("wrong-record-type", seq)


@injects
def a_reference_that_is_called_a_message(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.change(body + 1, user_record_type=31)
    return at("corrupt-record", body + 1) | at("wrong-id", body + 1)


@injects
def a_body_that_is_called_a_reference(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.change(body, user_record_type=32)
    return at("corrupt-record", body) | at("impossible-key", body)


# --- bodies and references


@injects
def references_without_their_body(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.remove(body)
    return at("orphaned-reference", body + 1) | at("orphaned-reference", body + 2)


@injects
def a_body_without_references(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.remove(body + 1, body + 2)
    return at("orphaned-body", body)


@injects
def a_body_in_a_queue(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.change(body, queue_id=FIRST)
    return at("body-in-queue", body)


@injects
def two_references_of_one_queue(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.change(body + 2, queue_id=FIRST)
    return at("duplicate-id", body + 2)


# --- queues and addresses


@injects
def a_message_of_an_unknown_queue(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, queue_id=999)
    return at("unknown-queue", seq)


@injects
def a_queue_that_lost_its_binding(scene: Scene) -> Expected:
    scene.remove(GONE, table="bindings")
    return at("unknown-queue", scene.in_queue[GONE][0])


@injects
def a_message_in_another_queue_than_its_record_says(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, queue_id=SPARE)
    return at("wrong-address", seq)


@injects
def a_share_of_a_body_in_a_queue_of_another_address(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.change(body + 2, queue_id=SPARE)
    return at("wrong-address", body + 2)


@injects
def a_body_with_another_messages_record(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.change(body, record=_payload("orders"))
    return at("wrong-address", body)


@injects
def a_queue_that_is_bound_to_another_address(scene: Scene) -> Expected:
    binding = QueueBinding(MOVED, "moved", "elsewhere", RoutingType.ANYCAST)
    # Its name is that of its messages' address: a dead letter would be right there.
    renamed = QueueBinding(MOVED, "renamed", binding.address, RoutingType.ANYCAST)
    scene.change(MOVED, "bindings", record=encode_queue_binding(renamed))
    return at("wrong-address", MOVED, "bindings")


@injects
def a_binding_with_a_flipped_byte(scene: Scene) -> Expected:
    scene.flip(SPOILED, 9, "bindings")
    return at("corrupt-binding", SPOILED, "bindings")


def _queue(seq: int, name: str, **changes: Any) -> dict[str, Any]:
    binding = QueueBinding(seq, name, name, RoutingType.ANYCAST)
    values = {
        "seq": seq,
        "id": seq,
        "record_type": 11,
        "user_record_type": 21,
        "queue_id": seq,
        "epoch": 1,
        "record": encode_queue_binding(binding),
    }
    return values | changes


@injects
def two_queues_of_one_name(scene: Scene) -> Expected:
    scene.add("bindings", **_queue(20, "orders", written_at=_early(scene)))
    return at("duplicate-binding", 20, "bindings")


@injects
def a_binding_of_an_unknown_kind(scene: Scene) -> Expected:
    row = _queue(21, "q21", user_record_type=55, written_at=_early(scene))
    scene.add("bindings", **row)
    return at("wrong-record-type", 21, "bindings")


@injects
def a_binding_of_another_record_type(scene: Scene) -> Expected:
    scene.add("bindings", **_queue(22, "q22", record_type=13, tx_id=3, written_at=_early(scene)))
    return at("wrong-record-type", 22, "bindings")


@injects
def a_binding_with_another_id(scene: Scene) -> Expected:
    scene.add("bindings", **_queue(23, "q23", id=24, written_at=_early(scene)))
    return at("wrong-id", 23, "bindings")


@injects
def a_binding_with_another_queue_id(scene: Scene) -> Expected:
    scene.add("bindings", **_queue(25, "q25", queue_id=26, written_at=_early(scene)))
    return at("wrong-id", 25, "bindings")


@injects
def a_binding_with_a_negative_seq(scene: Scene) -> Expected:
    scene.add("bindings", **_queue(-4, "q-4", written_at=_early(scene)))
    return at("impossible-key", -4, "bindings")


@injects
def a_binding_above_the_fence(scene: Scene) -> Expected:
    scene.add("bindings", **_queue(27, "q27", epoch=UNFENCED, written_at=_early(scene)))
    return at("unfenced-epoch", 27, "bindings")


@injects
def a_binding_above_the_reserved_ids(scene: Scene) -> Expected:
    row = _queue(FAR_SEQ + 1, "far", epoch=2)
    scene.add("bindings", **row)
    return at("unreserved-id", FAR_SEQ + 1, "bindings")


@injects
def a_binding_of_the_future(scene: Scene) -> Expected:
    scene.add("bindings", **_queue(28, "q28", written_at=_future()))
    return at("wrong-time", 28, "bindings")


@injects
def a_binding_of_a_newer_epoch_among_older_ones(scene: Scene) -> Expected:
    scene.add("bindings", **_queue(29, "q29", epoch=2, written_at=_early(scene)))
    return at("early-epoch", 29, "bindings")


@injects
def a_counter_of_another_kind(scene: Scene) -> Expected:
    scene.change(0, "bindings", user_record_type=21)
    return at("wrong-record-type", 0, "bindings")


@injects
def a_transaction_in_doubt_with_a_flipped_byte(scene: Scene) -> Expected:
    seq, _ = scene.in_doubt.pop()
    scene.flip(seq, 30, "bindings")
    return at("corrupt-binding", seq, "bindings")


@injects
def a_transaction_in_doubt_whose_message_is_gone(scene: Scene) -> Expected:
    transaction, seq = scene.in_doubt.pop()
    scene.remove(seq)
    return at("broken-transaction", transaction, "bindings")


def _early(scene: Scene) -> datetime:
    """Return when the first message was written."""
    with scene.store.database.engine.connect() as connection:
        c = scene.store.messages.c
        ask = select(c.written_at).where(c.seq > 0).order_by(c.seq).limit(1)
        found: datetime = connection.execute(ask).scalar_one()
    return found


def _future() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)


# --- epochs and times


@injects
def an_epoch_above_the_fence(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, epoch=UNFENCED)
    return at("unfenced-epoch", seq)


@injects
def a_row_of_the_older_epoch_after_the_newer_ones(scene: Scene) -> Expected:
    seq = scene.late.pop()
    scene.change(seq, epoch=1)
    return at("stale-epoch", seq)


@injects
def a_row_of_the_newer_epoch_among_the_older_ones(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, epoch=2)
    return at("early-epoch", seq)


@injects
def a_row_of_the_older_epoch_written_after_the_newer_began(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    # Later than all of the newer: they may have been written within one millisecond.
    scene.change(seq, written_at=scene.now() + timedelta(milliseconds=1))
    return at("stale-epoch", seq)


@injects
def a_row_of_the_newer_epoch_written_long_ago(scene: Scene) -> Expected:
    seq = scene.late.pop()
    scene.change(seq, written_at=datetime(2020, 1, 1, tzinfo=UTC))
    return at("early-epoch", seq)


@injects
def a_message_of_the_future(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, written_at=_future())
    return at("wrong-time", seq)


@injects
def a_time_that_no_clock_says(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    no_time = {
        Dialect.SQLITE: ("MESSAGES", "'noon'"),
        Dialect.POSTGRESQL: ("messages", "'infinity'"),
        Dialect.MYSQL: ("MESSAGES", "'0000-00-00'"),
    }
    table, literal = no_time[scene.store.database.dialect]
    with scene.store.database.engine.begin() as connection:
        if scene.store.database.dialect is Dialect.MYSQL:
            connection.execute(text("SET SESSION sql_mode = ''"))
        connection.execute(text(f"UPDATE {table} SET written_at = {literal} WHERE seq = {seq}"))
        if scene.store.database.dialect is Dialect.MYSQL:
            connection.execute(text("SET SESSION sql_mode = DEFAULT"))
    return at("wrong-time", seq)


# --- transactions of the journal


@injects
def a_transaction_without_an_end(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, record_type=13, tx_id=700)
    return at("unfinished-transaction", seq)


@injects
def an_end_without_a_transaction(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    scene.change(seq, record_type=18, tx_id=701, queue_id=None)
    return at("end-without-transaction", seq)


@injects
def a_transaction_with_its_end(scene: Scene) -> Expected:
    scene.change(scene.orders.pop(), record_type=13, tx_id=702)
    scene.change(scene.orders.pop(), record_type=18, tx_id=702, queue_id=None)
    return set()


# --- large bodies


def piece_at(fault: str, seq: int, position: int | None) -> Expected:
    """Return a finding of a body, at the message that needs it."""
    return {(fault, "large", seq, position)}


@injects
def a_large_body_that_is_gone(scene: Scene) -> Expected:
    seq, body = scene.large.pop()
    scene.remove_pieces(body, 0, 1, 2)
    return piece_at("large-body-missing", seq, None)


@injects
def a_piece_that_is_gone(scene: Scene) -> Expected:
    seq, body = scene.large.pop()
    scene.remove_pieces(body, 1)
    return piece_at("large-piece-missing", seq, 1)


@injects
def a_last_piece_that_is_gone(scene: Scene) -> Expected:
    seq, body = scene.large.pop()
    scene.remove_pieces(body, 2)
    return piece_at("large-piece-missing", seq, 2)


@injects
def a_piece_that_is_cut_off(scene: Scene) -> Expected:
    seq, body = scene.large.pop()
    scene.change_piece(body, 1, piece=b"short")
    return piece_at("large-piece-size", seq, 1)


@injects
def a_last_piece_that_is_too_long(scene: Scene) -> Expected:
    seq, body = scene.large.pop()
    scene.change_piece(body, 2, piece=b"x" * 100)
    return piece_at("large-piece-size", seq, 2)


@injects
def a_piece_too_many(scene: Scene) -> Expected:
    seq, body = scene.large.pop()
    scene.add("large", **(scene.piece(body, 2) | {"position": 3}))
    return piece_at("large-piece-surplus", seq, 3)


@injects
def a_piece_with_a_flipped_byte(scene: Scene) -> Expected:
    seq, body = scene.large.pop()
    scene.change_piece(body, 1, piece=flipped(bytes(scene.piece(body, 1)["piece"]), 1_000))
    return piece_at("large-body-corrupt", seq, None)


@injects
def two_pieces_that_are_swapped(scene: Scene) -> Expected:
    seq, body = scene.large.pop()
    one, other = (scene.piece(body, at) for at in (0, 1))
    scene.change_piece(body, 0, piece=other["piece"])
    scene.change_piece(body, 1, piece=one["piece"])
    return piece_at("large-body-corrupt", seq, None)


@injects
def two_bodies_with_a_piece_of_each_other(scene: Scene) -> Expected:
    (seq, body), (other_seq, other_body) = scene.large.pop(), scene.large.pop()
    one, other = scene.piece(body, 0), scene.piece(other_body, 0)
    scene.change_piece(body, 0, piece=other["piece"])
    scene.change_piece(other_body, 0, piece=one["piece"])
    return piece_at("large-body-corrupt", seq, None) | piece_at(
        "large-body-corrupt", other_seq, None
    )


@injects
def a_piece_twice(scene: Scene) -> Expected:
    seq, body = scene.large.pop()
    scene.change_piece(body, 1, piece=scene.piece(body, 0)["piece"])
    return piece_at("large-body-corrupt", seq, None)


@injects
def a_shared_body_with_a_flipped_byte(scene: Scene) -> Expected:
    seq, body = scene.shared_large.pop()
    scene.change_piece(body, 0, piece=flipped(bytes(scene.piece(body, 0)["piece"]), 5))
    return piece_at("large-body-corrupt", seq + 1, None)


@injects
def a_body_that_is_not_noted_with_its_message(scene: Scene) -> Expected:
    seq, body = scene.large.pop()
    scene.remove_pieces(body, -seq)
    return piece_at("large-body-unlinked", seq, None)


@injects
def a_share_that_its_body_is_not_noted_with(scene: Scene) -> Expected:
    seq, body = scene.shared_large.pop()
    scene.remove_pieces(body, -(seq + 2))
    return piece_at("large-body-unlinked", seq + 2, None)


@injects
def two_large_messages_with_each_others_records(scene: Scene) -> Expected:
    (seq, _), (other, _) = scene.large.pop(), scene.large.pop()
    one, two = scene.record(seq), scene.record(other)
    scene.change(seq, record=two)
    scene.change(other, record=one)
    return piece_at("large-body-unlinked", seq, None) | piece_at("large-body-unlinked", other, None)


@injects
def attempts_of_a_message_that_is_gone(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    for one in (seq, scene.orders[0]):
        attempts = {"kind": 0, "at_ms": 0, "attempts": 2, "retry_ms": 0}
        scene.add("times", seq=one, queue_id=ORDERS, **attempts)
    scene.remove(seq)
    return at("orphaned-attempts", seq, "times")


@injects
def a_body_that_a_former_node_left(scene: Scene) -> Expected:
    scene.add("large", id=600_000, position=0, epoch=1, piece=b"left over")
    return {("large-body-orphaned", "large", 600_000, None)}


# --- history


@injects
def a_message_that_is_kept_and_waits(scene: Scene) -> Expected:
    row = scene.row(scene.orders.pop())
    kept = {name: row[name] for name in ("seq", "id", "queue_id", "epoch", "written_at", "record")}
    scene.add("history", **kept, size=len(row["record"]), reason="acknowledged")
    return at("kept-and-waiting", row["seq"], "history")


@injects
def a_message_that_is_kept_twice(scene: Scene) -> Expected:
    first, second = scene.kept.pop(), scene.kept.pop()
    low, high = sorted((first, second))
    scene.change(high, "history", id=low)
    return at("kept-twice", high, "history")


@injects
def a_message_that_left_before_it_was_written(scene: Scene) -> Expected:
    seq = scene.kept.pop()
    scene.change(seq, "history", removed_at=datetime(2020, 1, 1, tzinfo=UTC))
    return at("kept-before-written", seq, "history")


@injects
def a_kept_record_with_a_flipped_byte(scene: Scene) -> Expected:
    seq = scene.kept.pop()
    scene.flip(seq, 20, "history")
    return at("corrupt-record", seq, "history")


@injects
def a_kept_message_that_left_for_no_reason(scene: Scene) -> Expected:
    seq = scene.kept.pop()
    scene.change(seq, "history", reason="because")
    return at("wrong-reason", seq, "history")


@injects
def a_kept_message_of_another_size(scene: Scene) -> Expected:
    seq = scene.kept.pop()
    scene.change(seq, "history", size=1)
    return at("wrong-size", seq, "history")


@injects
def a_kept_message_above_the_fence(scene: Scene) -> Expected:
    seq = scene.kept.pop()
    scene.change(seq, "history", epoch=UNFENCED)
    return at("unfenced-epoch", seq, "history")


@injects
def a_kept_message_of_a_newer_epoch_among_older_ones(scene: Scene) -> Expected:
    seq = scene.kept.pop()
    scene.change(seq, "history", epoch=2)
    return at("early-epoch", seq, "history")


@injects
def a_kept_message_of_a_negative_epoch(scene: Scene) -> Expected:
    seq = scene.kept.pop()
    scene.change(seq, "history", epoch=-2)
    return at("impossible-key", seq, "history")


@injects
def a_kept_message_of_no_queue(scene: Scene) -> Expected:
    seq = scene.kept.pop()
    scene.change(seq, "history", queue_id=0)
    return at("impossible-key", seq, "history")


@injects
def a_kept_message_with_an_id_above_its_seq(scene: Scene) -> Expected:
    seq = scene.kept.pop()
    scene.change(seq, "history", id=seq + 1)
    return at("wrong-id", seq, "history")


@injects
def a_kept_message_that_is_to_leave_in_the_future(scene: Scene) -> Expected:
    seq = scene.kept.pop()
    scene.change(seq, "history", removed_at=_future())
    return at("wrong-time", seq, "history")


@injects
def a_kept_message_of_the_future(scene: Scene) -> Expected:
    seq = scene.kept.pop()
    scene.change(seq, "history", written_at=_future())
    return at("wrong-time", seq, "history") | at("kept-before-written", seq, "history")


@injects
def a_kept_message_of_another_queue_than_its_record_says(scene: Scene) -> Expected:
    seq = scene.kept.pop()
    scene.change(seq, "history", queue_id=SPARE)
    return at("wrong-address", seq, "history")


@injects
def a_kept_message_above_the_reserved_ids(scene: Scene) -> Expected:
    seq = scene.kept.pop()
    far, now = FAR_SEQ + 3, scene.now()
    scene.change(seq, "history", seq=far, id=far, epoch=2, written_at=now, removed_at=now)
    return at("unreserved-id", FAR_SEQ + 3, "history")


@injects
def a_kept_large_message_without_its_body(scene: Scene) -> Expected:
    seq, body = scene.kept_large.pop()
    scene.remove_pieces(body, 0, 1, 2)
    return piece_at("large-body-missing", seq, None)


@injects
def a_kept_large_message_that_its_body_is_not_noted_with(scene: Scene) -> Expected:
    seq, body = scene.kept_large.pop()
    scene.remove_pieces(body, -seq)
    return piece_at("large-body-unlinked", seq, None)


assert PIECE_BYTES * 2 < len(DATA) < PIECE_BYTES * 3
