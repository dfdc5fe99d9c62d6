"""Faults that an audit is to find: each spoils rows of a sound store in its own place.

A store is made by the journal itself: two nodes one after the other, several queues, messages of
one queue and of several, large bodies, transactions in doubt, and what left its queue. A fault then
changes what is stored, as a bad disk, a bad restore or a hand in the database does, and says which
findings are expected, at which rows. Nothing else may be blamed.
"""

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
from orthia.journal.model.fields import Fields, encode_fields
from orthia.journal.model.message import LargeBody, decode_message
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
    scene.orders = _send(store, journal, ORDERS, 80)
    for queue_id in (SPARE, SPOILED, GONE, MOVED):
        scene.in_queue[queue_id] = _send(store, journal, queue_id, 5)
    scene.shared = [_send_shared(store, journal) for _ in range(22)]
    scene.large = [_send_large(store, journal, ORDERS) for _ in range(16)]
    scene.shared_large = [_send_large(store, journal, FIRST, SECOND) for _ in range(2)]
    acknowledged = [_send_large(store, journal, ORDERS) for _ in range(2)]
    kept = _send(store, journal, ORDERS, 26)
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


Inject = Callable[[Scene], Expected]


@dataclass(frozen=True)
class Injected:
    """A fault by what is done, and what is expected to be said of it."""

    name: str
    inject: Inject


def at(fault: str, seq: int, table: str = "messages") -> Expected:
    """Return a finding at a row."""
    return {(fault, table, seq, None)}


# --- rows that are changed

Row = dict[str, Any]
Change = Row | Callable[[Scene, Row], Row]
"""The columns that are set, or what makes them of the row."""


def _record(change: Callable[[bytes], bytes]) -> Change:
    return lambda _, row: {"record": change(bytes(row["record"]))}


def _flip(at: int) -> Change:
    return _record(lambda record: flipped(record, at))


def _no_text(old: bytes) -> bytes:
    """Return a record whose address is no UTF-8, with the checksum that it then has."""
    spoiled = old[:-4].replace(b"orders", b"\xff\xff\xff\xff\xff\xff")
    return spoiled + struct.pack(">I", zlib.crc32(spoiled))


def _future() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)


_HEADLESS = record("x")._replace(address="orders", head=b"no colon\n")
_SIXTIES = datetime(1960, 1, 1, tzinfo=UTC)
_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
_LAST_SEQ = 2**63 - 1


def _stored_as(**values: Any) -> Change:
    """Return a change of a message's own values, under a checksum that is right."""
    return _record(lambda old: encode_message(decode_message(old, 1)._replace(**values)))


_CHANGED: list[tuple[str, str, str, Change]] = [
    # Records.
    ("a flipped byte", "orders", "corrupt-record", _flip(20)),
    ("a cut record", "orders", "corrupt-record", _record(lambda old: old[:30])),
    ("an empty record", "orders", "corrupt-record", {"record": b""}),
    ("an unknown version", "orders", "corrupt-record", _record(lambda old: b"\x09" + old[1:])),
    ("an address that is no text", "orders", "corrupt-record", _record(_no_text)),
    ("headers that are none", "orders", "corrupt-record", {"record": encode_message(_HEADLESS)}),
    ("a reference with a flipped byte", "shared+1", "corrupt-record", _flip(7)),
    (
        "a reference with a place behind the last",
        "shared+2",
        "corrupt-record",
        {"record": encode_reference(ReferenceRecord(2, 1))},
    ),
    (
        "references that do not agree",
        "shared+2",
        "uneven-references",
        {"record": encode_reference(ReferenceRecord(2, 5))},
    ),
    ("a body with a flipped byte", "shared", "corrupt-record", _flip(20)),
    # Values, under right checksums.
    ("a priority of 200", "orders", "impossible-value", _stored_as(priority=200)),
    ("a time after all calendars", "orders", "impossible-value", _stored_as(timestamp_ms=2**62)),
    ("a negative time", "orders", "impossible-value", _stored_as(timestamp_ms=-1)),
    ("an expiry that nobody can ask for", "orders", "impossible-value", _stored_as(expires_ms=-5)),
    (
        "a delivery after the year 9999",
        "orders",
        "impossible-value",
        _stored_as(stated=encode_fields(Fields(delivery_ms=2**62))),
    ),
    ("a row written before 1970", "orders", "wrong-time", {"written_at": _SIXTIES}),
    # Keys.
    ("another id", "orders", "wrong-id", lambda _, row: {"id": row["seq"] - 1}),
    ("another id of a reference", "shared+2", "wrong-id", lambda _, row: {"id": row["id"] - 30}),
    ("a negative id", "orders", "wrong-id impossible-key", lambda _, row: {"id": -row["seq"]}),
    (
        "a negative seq",
        "orders",
        "impossible-key",
        lambda _, row: {"seq": -row["seq"], "id": -row["seq"]},
    ),
    ("a seq of zero", "orders", "impossible-key", {"seq": 0, "id": 0}),
    ("the last seq there is", "late", "unreserved-id", {"seq": _LAST_SEQ, "id": _LAST_SEQ}),
    ("a seq above the reserved ones", "late", "unreserved-id", {"seq": FAR_SEQ, "id": FAR_SEQ}),
    ("a negative epoch", "orders", "impossible-key", {"epoch": -1}),
    ("an epoch of zero", "orders", "impossible-key", {"epoch": 0}),
    ("a negative queue id", "orders", "impossible-key", {"queue_id": -3}),
    ("a reference of no queue", "shared+1", "impossible-key", {"queue_id": None}),
    ("a message of no queue", "orders", "orphaned-body", {"queue_id": None}),
    # Kinds.
    ("an update record", "orders", "wrong-record-type", {"record_type": 12}),
    ("a record type that is none", "orders", "wrong-record-type", {"record_type": 99}),
    ("a transaction of a record in none", "orders", "wrong-record-type", {"tx_id": 5}),
    ("a transaction without a number", "orders", "wrong-record-type", {"record_type": 13}),
    ("a message of an unknown kind", "orders", "wrong-record-type", {"user_record_type": 98}),
    ("a small message called large", "orders", "wrong-record-type", {"user_record_type": 30}),
    ("a large message called small", "large", "wrong-record-type", {"user_record_type": 31}),
    (
        "a reference called a message",
        "shared+1",
        "corrupt-record wrong-id",
        {"user_record_type": 31},
    ),
    (
        "a body called a reference",
        "shared",
        "corrupt-record impossible-key",
        {"user_record_type": 32},
    ),
    # Bodies, queues and addresses.
    ("a body in a queue", "shared", "body-in-queue", {"queue_id": FIRST}),
    ("two references of one queue", "shared+2", "duplicate-id", {"queue_id": FIRST}),
    ("a message of an unknown queue", "orders", "unknown-queue", {"queue_id": 999}),
    ("a queue of another address", "orders", "wrong-address", {"queue_id": SPARE}),
    ("a share in a queue of another address", "shared+2", "wrong-address", {"queue_id": SPARE}),
    (
        "a body with another message's record",
        "shared",
        "wrong-address",
        lambda *_: {"record": _payload("orders")},
    ),
    # Epochs and times.
    ("an epoch above the fence", "orders", "unfenced-epoch", {"epoch": UNFENCED}),
    ("an older epoch after the newer", "late", "stale-epoch", {"epoch": 1}),
    ("a newer epoch among the older", "orders", "early-epoch", {"epoch": 2}),
    (
        "an older epoch that wrote after the newer began",
        "orders",
        "stale-epoch",
        # Later than all of the newer: they may have been written within one millisecond.
        lambda scene, _: {"written_at": scene.now() + timedelta(milliseconds=1)},
    ),
    ("a newer epoch that wrote long ago", "late", "early-epoch", {"written_at": _LONG_AGO}),
    (
        "a message of the future",
        "orders",
        "wrong-time",
        lambda *_: {"written_at": _future()},
    ),
    # Transactions of the journal.
    (
        "a transaction without an end",
        "orders",
        "unfinished-transaction",
        {"record_type": 13, "tx_id": 700},
    ),
    (
        "an end without a transaction",
        "orders",
        "end-without-transaction",
        {"record_type": 18, "tx_id": 701, "queue_id": None},
    ),
    ("the beginning of a transaction", "orders", "", {"record_type": 13, "tx_id": 702}),
    ("its end", "orders", "", {"record_type": 18, "tx_id": 702, "queue_id": None}),
    # Bindings.
    ("a binding with a flipped byte", "binding SPOILED", "corrupt-binding", _flip(9)),
    ("a counter of another kind", "counter", "wrong-record-type", {"user_record_type": 21}),
    ("a transaction in doubt with a flipped byte", "in_doubt", "corrupt-binding", _flip(30)),
    # What is kept.
    ("a kept record with a flipped byte", "kept", "corrupt-record", _flip(20)),
    (
        "one that left before it was written",
        "kept",
        "kept-before-written",
        {"removed_at": _LONG_AGO},
    ),
    ("a kept message of priority 10", "kept", "impossible-value", _stored_as(priority=10)),
    ("one that left for no reason", "kept", "wrong-reason", {"reason": "because"}),
    ("a kept message of another size", "kept", "wrong-size", {"size": 1}),
    ("a kept message above the fence", "kept", "unfenced-epoch", {"epoch": UNFENCED}),
    ("a kept message of a newer epoch", "kept", "early-epoch", {"epoch": 2}),
    ("a kept message of a negative epoch", "kept", "impossible-key", {"epoch": -2}),
    ("a kept message of no queue", "kept", "impossible-key", {"queue_id": 0}),
    ("a kept message of another queue", "kept", "wrong-address", {"queue_id": SPARE}),
    ("a kept id above its seq", "kept", "wrong-id", lambda _, row: {"id": row["seq"] + 1}),
    ("one that leaves in the future", "kept", "wrong-time", lambda *_: {"removed_at": _future()}),
    (
        "a kept message of the future",
        "kept",
        "wrong-time kept-before-written",
        lambda *_: {"written_at": _future()},
    ),
    (
        "a kept message above the reserved ids",
        "kept",
        "unreserved-id",
        lambda scene, _: {
            **dict.fromkeys(("seq", "id"), FAR_SEQ + 3),
            **dict.fromkeys(("written_at", "removed_at"), scene.now()),
            "epoch": 2,
        },
    ),
]
"""What is spoiled, whose row it is, the faults that are found there, and the change.

``shared`` is the body of a message of two queues, ``shared+1`` the first reference to it.
"""


def _victim(scene: Scene, kind: str) -> tuple[int, str]:
    """Return a row that is sound still, and its table."""
    match kind.partition("+"):
        case "binding SPOILED", *_:
            return SPOILED, "bindings"
        case "counter", *_:
            return 0, "bindings"
        case "in_doubt", *_:
            return scene.in_doubt.pop()[0], "bindings"
        case "large", *_:
            return scene.large.pop()[0], "messages"
        case pool, _, more:
            seqs: list[int] = getattr(scene, pool)
            return seqs.pop() + int(more or 0), "history" if pool == "kept" else "messages"


def _changing(kind: str, faults: str, change: Change) -> Inject:
    def inject(scene: Scene) -> Expected:
        seq, table = _victim(scene, kind)
        values = change if isinstance(change, dict) else change(scene, scene.row(seq, table))
        scene.change(seq, table, **values)
        found = values.get("seq", seq)
        return {(fault, table, found, None) for fault in faults.split()}

    return inject


# --- bindings that are added

_BINDINGS: list[tuple[str, int, str, Row]] = [
    ("two queues of one name", 20, "duplicate-binding", {"name": "orders"}),
    ("a binding of an unknown kind", 21, "wrong-record-type", {"user_record_type": 55}),
    ("a binding in a transaction", 22, "wrong-record-type", {"record_type": 13, "tx_id": 3}),
    ("a binding with another id", 23, "wrong-id", {"id": 24}),
    ("a binding with another queue id", 25, "wrong-id", {"queue_id": 26}),
    ("a binding with a negative seq", -4, "impossible-key", {}),
    ("a binding above the fence", 27, "unfenced-epoch", {"epoch": UNFENCED}),
    ("a binding of a newer epoch among older ones", 29, "early-epoch", {"epoch": 2}),
    ("a binding above the reserved ids", FAR_SEQ + 1, "unreserved-id", {"epoch": 2}),
    ("a binding of the future", 28, "wrong-time", {"written_at": None}),
]


def _adding(seq: int, fault: str, changes: Row) -> Inject:
    def inject(scene: Scene) -> Expected:
        name = changes.get("name", f"q{seq}")
        values = {
            "seq": seq,
            "id": seq,
            "record_type": 11,
            "user_record_type": 21,
            "queue_id": seq,
            "epoch": 1,
            "written_at": _early(scene),
            "record": encode_queue_binding(QueueBinding(seq, name, name, RoutingType.ANYCAST)),
        }
        values |= {one: value for one, value in changes.items() if one != "name"}
        if values["written_at"] is None:
            values["written_at"] = _future()
        if seq > FAR_SEQ:
            del values["written_at"]  # the newest there is
        scene.add("bindings", **values)
        return at(fault, seq, "bindings")

    return inject


def _early(scene: Scene) -> datetime:
    """Return when the first message was written."""
    with scene.store.database.engine.connect() as connection:
        c = scene.store.messages.c
        ask = select(c.written_at).where(c.seq > 0).order_by(c.seq).limit(1)
        found: datetime = connection.execute(ask).scalar_one()
    return found


# --- large bodies

Pieces = Callable[[Scene, LargeBody, int], None]


def _without(*positions: int) -> Pieces:
    return lambda scene, body, _: scene.remove_pieces(body, *positions)


def _unlinked(scene: Scene, body: LargeBody, seq: int) -> None:
    scene.remove_pieces(body, -seq)


def _one_more(scene: Scene, body: LargeBody, _: int) -> None:
    scene.add("large", **(scene.piece(body, 2) | {"position": 3}))


def _piece(position: int, change: Callable[[bytes], bytes]) -> Pieces:
    def inject(scene: Scene, body: LargeBody, _: int) -> None:
        old = bytes(scene.piece(body, position)["piece"])
        scene.change_piece(body, position, piece=change(old))

    return inject


def _swapped(scene: Scene, body: LargeBody, _: int) -> None:
    one, other = (scene.piece(body, at)["piece"] for at in (0, 1))
    scene.change_piece(body, 0, piece=other)
    scene.change_piece(body, 1, piece=one)


def _twice(scene: Scene, body: LargeBody, _: int) -> None:
    scene.change_piece(body, 1, piece=scene.piece(body, 0)["piece"])


_PIECES: list[tuple[str, str, str, int | None, Pieces]] = [
    ("a large body that is gone", "large", "large-body-missing", None, _without(0, 1, 2)),
    ("a piece that is gone", "large", "large-piece-missing", 1, _without(1)),
    ("a last piece that is gone", "large", "large-piece-missing", 2, _without(2)),
    ("a piece that is cut off", "large", "large-piece-size", 1, _piece(1, lambda _: b"short")),
    ("a last piece too long", "large", "large-piece-size", 2, _piece(2, lambda _: b"x" * 100)),
    ("a piece too many", "large", "large-piece-surplus", 3, _one_more),
    (
        "a piece with a flipped byte",
        "large",
        "large-body-corrupt",
        None,
        _piece(1, lambda old: flipped(old, 1_000)),
    ),
    ("two pieces that are swapped", "large", "large-body-corrupt", None, _swapped),
    ("a piece twice", "large", "large-body-corrupt", None, _twice),
    (
        "a shared body with a flipped byte",
        "shared_large+1",
        "large-body-corrupt",
        None,
        _piece(0, lambda old: flipped(old, 5)),
    ),
    ("a body not noted with its message", "large", "large-body-unlinked", None, _unlinked),
    ("a share not noted with its body", "shared_large+2", "large-body-unlinked", None, _unlinked),
    ("a kept body that is gone", "kept_large", "large-body-missing", None, _without(0, 1, 2)),
    ("a kept body not noted", "kept_large", "large-body-unlinked", None, _unlinked),
]
"""What is spoiled, whose body it is, the fault and the piece it is found at, and the change."""


def _spoiling(pool: str, fault: str, position: int | None, change: Pieces) -> Inject:
    def inject(scene: Scene) -> Expected:
        name, _, more = pool.partition("+")
        seq, body = getattr(scene, name).pop()
        seq += int(more or 0)
        change(scene, body, seq)
        return {(fault, "large", seq, position)}

    return inject


# --- what is of several rows


def _another_ones_record(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.change(body + 2, record=scene.record(body + 1))
    return at("wrong-id", body + 2)


def _only_reference_that_is_left(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.remove(body + 1)
    scene.flip(body + 2, 7)
    return at("corrupt-record", body + 2)


def _references_without_their_body(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.remove(body)
    return at("orphaned-reference", body + 1) | at("orphaned-reference", body + 2)


def _body_without_references(scene: Scene) -> Expected:
    body = scene.shared.pop()
    scene.remove(body + 1, body + 2)
    return at("orphaned-body", body)


def _of_another_type(column: str, value: str, fault: str) -> Inject:
    """SQLite keeps anything in any column."""

    def inject(scene: Scene) -> Expected:
        if scene.store.database.dialect is not Dialect.SQLITE:
            return set()
        seq = scene.orders.pop()
        scene.do(text(f"UPDATE MESSAGES SET {column} = {value} WHERE seq = {seq}"))
        return at(fault, seq)

    return inject


def _queue_that_lost_its_binding(scene: Scene) -> Expected:
    scene.remove(GONE, table="bindings")
    return at("unknown-queue", scene.in_queue[GONE][0])


def _queue_that_is_bound_to_another_address(scene: Scene) -> Expected:
    # Its name is that of its messages' address: a dead letter would be right there.
    renamed = QueueBinding(MOVED, "renamed", "elsewhere", RoutingType.ANYCAST)
    scene.change(MOVED, "bindings", record=encode_queue_binding(renamed))
    return at("wrong-address", MOVED, "bindings")


def _transaction_whose_message_is_gone(scene: Scene) -> Expected:
    transaction, seq = scene.in_doubt.pop()
    scene.remove(seq)
    return at("broken-transaction", transaction, "bindings")


def _time_that_no_clock_says(scene: Scene) -> Expected:
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


def _bodies_with_a_piece_of_each_other(scene: Scene) -> Expected:
    (seq, body), (other_seq, other_body) = scene.large.pop(), scene.large.pop()
    one, other = scene.piece(body, 0), scene.piece(other_body, 0)
    scene.change_piece(body, 0, piece=other["piece"])
    scene.change_piece(other_body, 0, piece=one["piece"])
    return {("large-body-corrupt", "large", one, None) for one in (seq, other_seq)}


def _large_messages_with_each_others_records(scene: Scene) -> Expected:
    (seq, _), (other, _) = scene.large.pop(), scene.large.pop()
    one, two = scene.record(seq), scene.record(other)
    scene.change(seq, record=two)
    scene.change(other, record=one)
    return {("large-body-unlinked", "large", one, None) for one in (seq, other)}


def _attempts_of_a_message_that_is_gone(scene: Scene) -> Expected:
    seq = scene.orders.pop()
    for one in (seq, scene.orders[0]):
        attempts = {"kind": 0, "at_ms": 0, "attempts": 2, "retry_ms": 0}
        scene.add("times", seq=one, queue_id=ORDERS, **attempts)
    scene.remove(seq)
    return at("orphaned-attempts", seq, "times")


def _body_that_a_former_node_left(scene: Scene) -> Expected:
    scene.add("large", id=600_000, position=0, epoch=1, piece=b"left over")
    return {("large-body-orphaned", "large", 600_000, None)}


def _message_that_is_kept_and_waits(scene: Scene) -> Expected:
    row = scene.row(scene.orders.pop())
    kept = {name: row[name] for name in ("seq", "id", "queue_id", "epoch", "written_at", "record")}
    scene.add("history", **kept, size=len(row["record"]), reason="acknowledged")
    return at("kept-and-waiting", row["seq"], "history")


def _message_that_is_kept_twice(scene: Scene) -> Expected:
    low, high = sorted((scene.kept.pop(), scene.kept.pop()))
    scene.change(high, "history", id=low)
    return at("kept-twice", high, "history")


_SEVERAL: list[Inject] = [
    _another_ones_record,
    _only_reference_that_is_left,
    _references_without_their_body,
    _body_without_references,
    _queue_that_lost_its_binding,
    _queue_that_is_bound_to_another_address,
    _transaction_whose_message_is_gone,
    _time_that_no_clock_says,
    _bodies_with_a_piece_of_each_other,
    _large_messages_with_each_others_records,
    _attempts_of_a_message_that_is_gone,
    _body_that_a_former_node_left,
    _message_that_is_kept_and_waits,
    _message_that_is_kept_twice,
]

FAULTS: list[Injected] = [
    *(Injected(name, _changing(kind, faults, how)) for name, kind, faults, how in _CHANGED),
    *(Injected(name, _adding(seq, fault, row)) for name, seq, fault, row in _BINDINGS),
    *(
        Injected(name, _spoiling(pool, fault, position, how))
        for name, pool, fault, position, how in _PIECES
    ),
    *(Injected(one.__name__.strip("_"), one) for one in _SEVERAL),
    Injected("an id that is no number", _of_another_type("id", "'abc'", "impossible-key")),
    Injected("a record that is a number", _of_another_type("record", "7", "corrupt-record")),
]

assert PIECE_BYTES * 2 < len(DATA) < PIECE_BYTES * 3
