"""Transactions in two phases, on every store."""

import pytest

from orthia.journal import MessageLocation, RecordTooLarge, Unit
from orthia.journal.errors import TransactionError
from orthia.journal.model.message import decode_message
from orthia.journal.model.xid import Xid
from orthia.journal.xa import XaTransactions
from tests.journal.support import OTHER_QUEUE, QUEUE, THIRD_QUEUE, JournalStore, payload

XID = Xid(1, b"global", b"branch")


def prepared(store: JournalStore) -> tuple[int, int]:
    """Prepare to send to one queue and to two, and to acknowledge; return the seqs acknowledged."""
    journal = store.open()
    (seq,) = store.append(journal, "acknowledged")
    both = Unit()
    both.add_message([QUEUE, OTHER_QUEUE], payload("shared"))
    reference, _ = journal.append_unit(both)
    unit = Unit()
    unit.add_message([THIRD_QUEUE], payload("sent"))
    unit.add_message([QUEUE, THIRD_QUEUE], payload("sent to two"))
    unit.delete(MessageLocation(seq))
    unit.delete(reference)
    done: list[bool] = []
    XaTransactions(journal).prepare(XID, unit, lambda: done.append(True))
    store.loop.run_until(lambda: done, "the prepare")
    assert journal.close(drain=True)
    return seq, reference.seq


def queues(store: JournalStore) -> dict[int, list[str]]:
    """Return the bodies of each queue."""
    store.advance_fence(9)
    journal = store.open(token=9)
    return {queue: store.bodies(journal, queue) for queue in (QUEUE, OTHER_QUEUE, THIRD_QUEUE)}


def test_a_prepared_transaction_outlives_its_node_and_shows_nothing(store: JournalStore) -> None:
    """A successor finds it in doubt: its messages are in no queue, its acknowledged ones are."""
    seqs = prepared(store)
    store.advance_fence(2)
    (found,) = XaTransactions(store.open(token=2)).in_doubt
    assert found.xid == XID
    assert tuple(seq for seq, *_ in found.deletes) == seqs
    assert [decode_message(data, 0).body for _, data in found.messages] == [b"sent", b"sent to two"]
    assert queues(store) == {
        QUEUE: ["acknowledged", "shared"],
        OTHER_QUEUE: ["shared"],
        THIRD_QUEUE: [],
    }


RESOLVED = {
    "commit": {
        QUEUE: ["sent to two"],
        OTHER_QUEUE: ["shared"],
        THIRD_QUEUE: ["sent", "sent to two"],
    },
    "rollback": {QUEUE: ["acknowledged", "shared"], OTHER_QUEUE: ["shared"], THIRD_QUEUE: []},
}


@pytest.mark.parametrize("how", RESOLVED)
def test_a_successor_resolves_it_whole(store: JournalStore, how: str) -> None:
    """Its messages are there and what it acknowledged is gone, or all is as if it had not been."""
    prepared(store)
    store.advance_fence(2)
    journal = store.open(token=2)
    done: list[bool] = []
    getattr(XaTransactions(journal), how)(XID, lambda: done.append(True))
    store.loop.run_until(lambda: done, how)
    assert journal.close(drain=True)
    store.advance_fence(3)
    assert not XaTransactions(store.open(token=3)).in_doubt
    assert queues(store) == RESOLVED[how]


def test_what_cannot_be_prepared_or_resolved_is_refused(store: JournalStore) -> None:
    """A name twice, one too long, one unknown, and more than a record takes."""
    journal = store.open()
    xa = XaTransactions(journal)
    xa.prepare(XID, Unit())
    with pytest.raises(TransactionError, match="prepared already"):
        xa.prepare(XID, Unit())
    with pytest.raises(TransactionError, match="over 64 bytes"):
        xa.prepare(Xid(1, b"x" * 65, b""), Unit())
    with pytest.raises(TransactionError, match="not in doubt"):
        xa.commit(Xid(2, b"", b""))
    large = Unit()
    large.add_message([QUEUE], payload("x" * 100))
    journal.max_record_bytes = 100
    with pytest.raises(RecordTooLarge):
        xa.prepare(Xid(3, b"", b""), large)
    assert [one.xid for one in xa.in_doubt] == [XID]
    xa.rollback(XID)
    assert not xa.in_doubt
