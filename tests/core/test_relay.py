"""What the relay does with rows of the outbox, whatever the store says of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from orthia.broker.core.sending.relay import MOST_LOCKED
from orthia.broker.protocols.stomp.outbox import OutboxMessages
from orthia.config.address_settings import AddressFullPolicy, AddressSettings
from orthia.config.addresses import DROP
from orthia.config.errors import OrthiaError
from orthia.config.secrets import Secret
from orthia.config.security_settings import SecuritySetting, User
from orthia.config.settings import ClientLimits, OutboxSettings, Settings
from orthia.journal.engine.abc import OutboxRow
from orthia.journal.engine.batch import batch_of
from orthia.journal.engine.outbox import OutboxReader, Rows, UnreadRows
from orthia.journal.errors import HeldElsewhere, OutboxRowsGone, StoreFull, UnitRefused
from orthia.journal.model.unit import AppendedMessage
from tests.core.support import SETTINGS, CoreUnderTest, settings


class FakeReader:
    """A reader of rows that a test gives it."""

    def __init__(self) -> None:
        self.unread = UnreadRows()
        self.failure: str | None = None
        self._rows: list[OutboxRow] = []
        self._done: Rows | None = None
        self._ids = 0

    def ask(self, limit: int, max_bytes: int, done: Rows) -> None:
        """Answer once there are rows."""
        del limit, max_bytes
        assert self._done is None, "it is asked once at a time"
        self._done = done
        self._answer(())

    def come(self, *bodies: str, to: str = "q", headers: str | None = None) -> None:
        """Commit rows."""
        for body in bodies:
            self._ids += 1
            self._rows.append(OutboxRow(self._ids, to, headers, body.encode(), 1_000 + self._ids))
        self._answer(())

    def again(self, rows: Sequence[OutboxRow]) -> None:
        """Return rows that were returned before."""
        self._answer(rows)

    def is_asked(self) -> bool:
        """Whether it is to return rows."""
        return self._done is not None

    def _answer(self, rows: Sequence[OutboxRow]) -> None:
        if self._done is not None and (self._rows or rows):
            done, self._done, found = self._done, None, [*rows, *self._rows]
            self._rows = []
            done(found)


class Relayed(CoreUnderTest):
    """A core with a relay."""

    def __init__(self, options: Settings = SETTINGS) -> None:
        super().__init__(replace(options, outbox=OutboxSettings(user="app")), auto_commit=False)
        self.reader = FakeReader()
        self.journal.outbox = cast("OutboxReader", self.reader)
        self.broker.start_relay(OutboxMessages(ClientLimits(), lambda: 0))

    def come(self, *bodies: str, to: str = "q", headers: str | None = None) -> None:
        """Commit rows, and let the relay send them."""
        self.reader.come(*bodies, to=to, headers=headers)
        self.settle()

    @property
    def waiting(self) -> int:
        """Rows that wait, by the relay's own account."""
        assert self.broker.relay is not None
        return self.broker.relay.status.waiting

    @property
    def held(self) -> str | None:
        """Why rows wait."""
        assert self.broker.relay is not None
        return self.broker.relay.status.held

    def refuse(self, error: OrthiaError, count: int = 1) -> None:
        """Have the store refuse units."""
        for _ in range(count):
            self.journal.refuse(error)
            self.settle()


def test_each_row_is_deleted_by_the_unit_that_stores_its_message() -> None:
    """And counts as waiting until then."""
    core = Relayed()
    core.come("a", "b")
    core.settle()
    assert [one for one in core.journal.waiting if isinstance(one, AppendedMessage)]
    assert batch_of(core.journal.waiting).outbox_rows == [1, 2]
    assert core.waiting == 2
    core.store_all()
    assert core.waiting == 0
    assert core.consume("/queue/q").texts == ["a", "b"]


def test_a_row_that_is_read_again_is_sent_once() -> None:
    """A reader whose connection was lost reads from the front."""
    core = Relayed()
    core.come("a", "b")
    rows = [OutboxRow(1, "q", None, b"a", 0), OutboxRow(2, "q", None, b"b", 0)]
    core.reader.again(rows)
    core.store_all()
    assert core.consume("/queue/q").texts == ["a", "b"]


def test_a_row_that_was_stored_while_it_was_read_once_more_is_sent_once() -> None:
    """The read began before the commit that deleted the row."""
    core = Relayed()
    core.come("a")
    core.store_all()
    core.reader.again([OutboxRow(1, "q", None, b"a", 0)])
    core.store_all()
    assert core.consume("/queue/q").texts == ["a"]


@pytest.mark.parametrize(("address", "letters"), [("DLQ", ["bad"]), (DROP, [])])
def test_a_row_is_deleted_with_its_dead_letter(address: str, letters: list[str]) -> None:
    """By the unit that stores that, or, where dead letters are dropped, stores nothing."""
    core = Relayed(settings("q", dead_letter_address=address))
    core.come("bad", headers="[]")
    assert batch_of(core.journal.waiting).outbox_rows == [1]
    core.store_all()
    assert core.stored_texts() == letters
    assert core.waiting == 0


def test_rows_create_more_queues_than_a_connection_may() -> None:
    """They are of many applications, and the relay never connects anew."""
    core = Relayed(replace(SETTINGS, stomp_limits=ClientLimits(max_queues_per_connection=2)))
    for name in "abc":
        core.come(name, to=f"/queue/{name}")
    core.store_all()
    assert {name: core.consume(f"/queue/{name}").texts for name in "abc"} == {
        name: [name] for name in "abc"
    }


def test_no_more_is_read_than_there_is_room_for() -> None:
    """While nothing can be stored, by bytes."""
    core = Relayed()
    core.come("x" * 1_000_000, "y")
    assert core.reader.is_asked()
    core.come(*["x" * 1_000_000] * 7)
    assert not core.reader.is_asked()
    core.store_all()
    assert core.reader.is_asked()


def test_others_wait_when_too_many_rows_are_locked() -> None:
    """An operator is told so, as of a table that cannot be read."""
    core = Relayed()
    core.come("first")
    core.store_all()
    core.come(*map(str, range(MOST_LOCKED)))
    core.refuse(HeldElsewhere(), MOST_LOCKED)
    core.come("next")
    assert not core.journal.waiting
    assert f"other sessions have locked {MOST_LOCKED} rows" in str(core.held)
    core.pass_time(2)
    core.store_all()
    assert core.waiting == 0
    assert core.held is None
    core.reader.failure = "reading the outbox failed"
    assert core.held == "reading the outbox failed"


def test_what_the_full_store_refuses_is_sent_again_in_order() -> None:
    """With all that was sent behind it, once there is room."""
    core = Relayed()
    core.come("first")
    core.store_all()
    core.come("a", "b", "c")
    core.refuse(StoreFull("for a test"), 3)
    assert core.held is not None
    assert core.waiting == 3
    core.come("d")
    core.pass_time(10)
    core.store_all()
    assert core.consume("/queue/q").texts == ["first", "a", "b", "c", "d"]
    assert core.held is None


def test_a_row_that_is_gone_or_locked_does_not_hold_the_next() -> None:
    """The one is forgotten, the other is tried again."""
    core = Relayed()
    core.come("first")
    core.store_all()
    core.come("gone")
    core.refuse(OutboxRowsGone(all_of_them=True))
    core.come("locked")
    core.refuse(HeldElsewhere())
    core.come("next")
    core.store_all()
    assert core.waiting == 1
    core.pass_time(2)
    core.store_all()
    assert core.consume("/queue/q").texts == ["first", "next", "locked"]
    assert core.waiting == 0


def test_a_row_that_is_too_long_to_be_read_stays_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Those behind it are sent; once it is deleted nobody speaks of it any more."""
    core = Relayed()
    row = OutboxRow(9, "q", None, b"", 1, unread_bytes=5_000_000_000)
    core.reader.again([row])
    core.come("next")
    core.store_all()
    assert core.consume("/queue/q").texts == ["next"]
    assert core.waiting == 1
    named = "row 9 of the outbox, for destination 'q', cannot be sent: its body has 5000000000 byte"
    assert caplog.text.count(named) == 1
    core.pass_time(61)
    core.settle()
    core.reader.again([row])
    core.settle()
    assert caplog.text.count(named) == 2
    core.pass_time(1_000)
    core.settle()
    assert core.waiting == 0
    assert caplog.text.count(named) == 2


def test_what_the_store_never_takes_becomes_a_dead_letter_or_stays() -> None:
    """It is refused by the database itself, and so may be its dead letter."""
    core = Relayed()
    letters = core.consume("/queue/DLQ")
    core.come("first")
    core.store_all()
    core.come("poison")
    core.refuse(UnitRefused("for a test"), 2)
    core.come("next")
    core.store_all()
    assert core.waiting == 1
    assert core.consume("/queue/q").texts == ["first", "next"]
    core.pass_time(61)
    core.refuse(UnitRefused("for a test"))
    core.store_all()
    assert letters.texts == ["poison"]
    assert core.waiting == 0


def test_large_rows_that_others_have_locked_do_not_hold_the_next() -> None:
    """They count by themselves, however large they are together."""
    core = Relayed()
    core.come("first")
    core.store_all()
    for number in range(8):
        core.come(str(number) * 1_000_000)
        core.refuse(HeldElsewhere())
    core.come("next")
    core.store_all()
    consumer = core.consume("/queue/q")
    assert consumer.texts == ["first", "next"]
    core.pass_time(2)
    core.store_all()
    assert len(consumer.texts) == 10
    assert core.waiting == 0


def test_what_was_refused_is_sent_again_though_the_last_one_behind_it_is_held() -> None:
    """That one was waiting for room when the store refused the first."""
    full = AddressSettings("full", max_size_messages=1, address_full_policy=AddressFullPolicy.FAIL)
    slow = replace(full, match="slow", address_full_policy=AddressFullPolicy.BLOCK)
    core = Relayed(replace(SETTINGS, address_settings=(full, slow)))
    core.send("/queue/slow", "x")
    core.come("first")
    core.store_all()
    core.come("a")
    core.come("b", to="/queue/slow,/queue/full")
    core.send("/queue/full", "x")
    core.refuse(StoreFull("for a test"))
    core.store_all()
    core.consume("/queue/slow", auto=True)
    core.store_all()
    assert "full" in str(core.held)
    core.pass_time(10)
    core.store_all()
    assert core.consume("/queue/q").texts == ["first", "a"]


def test_an_address_that_blocks_is_named_where_it_holds_the_relay_for_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A moment of it is back-pressure; the log says once that rows wait, and that they go on."""
    core = Relayed(settings("q", max_size_messages=1, address_full_policy=AddressFullPolicy.BLOCK))
    core.come(*"abcd")
    core.store_all()
    core.pass_time(0.5)
    assert core.held is None
    core.pass_time(2)
    assert "address 'q' is full (address-full-policy BLOCK): it holds" in str(core.held)
    core.pass_time(60)
    assert caplog.text.count("rows of the outbox wait: address 'q' is full") == 1
    consumer = core.consume("/queue/q", auto=True)
    for _ in range(4):
        core.store_all()
    assert consumer.texts == [*"abcd"]
    assert core.held is None
    assert caplog.text.count("rows of the outbox are sent again") == 1


def test_a_store_that_takes_nothing_for_long_is_named() -> None:
    """The relay waits as soon as the journal has enough to store."""
    core = Relayed()
    core.come("first")
    core.store_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(core.journal), "is_full", property(lambda _: True))
        core.come("a")
        core.pass_time(2)
        assert "the database has not stored yet what was sent before" in str(core.held)
    assert core.broker.relay is not None
    core.broker.relay._has_room()
    core.settle()
    core.store_all()
    assert core.held is None
    assert core.consume("/queue/q").texts == ["first", "a"]


def test_rows_wait_for_a_full_address_and_are_counted() -> None:
    """The oldest of them is told."""
    core = Relayed(settings("q", max_size_messages=1, address_full_policy=AddressFullPolicy.FAIL))
    core.come("a", "b", "c")
    core.store_all()
    assert core.broker.relay is not None
    status = core.broker.relay.status
    assert (status.waiting, status.oldest_ms, status.relayed) == (2, 1_002, 1)
    assert "max-size-messages" in str(status.held)
    consumer = core.consume("/queue/q", auto=True)
    for _ in range(3):
        core.store_all()
        core.pass_time(10)
    assert consumer.texts == ["a", "b", "c"]


def test_rows_are_sent_with_the_rights_of_the_configured_user() -> None:
    """As they are now; without that user they wait."""
    user = User("app", Secret("secret"), frozenset({"senders"}))
    permissions = {
        one: frozenset({"senders"}) for one in ("send", "createAddress", "createDurableQueue")
    }
    secured = replace(
        SETTINGS,
        security_enabled=True,
        security_settings=(SecuritySetting("q", permissions),),
    )
    core = Relayed(secured)
    core.come("a")
    core.store_all()
    assert "there is no user 'app'" in str(core.held)
    core.broker.security.users.replace((user,))
    core.pass_time(10)
    core.come("b", to="other")
    core.store_all()
    assert core.held is None
    core.broker.security.users.replace((replace(user, roles=frozenset()),))
    core.come("c")
    core.store_all()
    assert core.waiting == 0
    assert sorted(core.stored_texts()) == ["a", "b", "c"]
    assert core.broker.depths() == {"q": 1, "DLQ": 2}
    core.broker.security.users.replace(())
    core.come("d")
    core.store_all()
    assert core.waiting == 1
    assert "there is no user 'app'" in str(core.held)
