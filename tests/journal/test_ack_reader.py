"""What the reader of acknowledgements tells the loop, and how often."""

import threading
from collections.abc import Callable, Sequence

import pytest
from typing_extensions import override

from orthia.journal.engine import acks
from orthia.journal.engine.abc import ApplicationAck, ApplicationAcks
from orthia.journal.engine.acks import READ_AT_ONCE, AckReader
from tests.support.waiting import wait_until


class FakeAcks(ApplicationAcks):
    """A table of acknowledgements whose messages are all there."""

    def __init__(self, count: int) -> None:
        self.rows = [ApplicationAck(seq, 7) for seq in range(1, count + 1)]
        self.position = 0

    @override
    def read(self, limit: int) -> Sequence[ApplicationAck]:
        found = self.rows[self.position : self.position + limit]
        self.position += len(found)
        return found

    @override
    def prune(self, seqs: Sequence[int]) -> set[int]:
        del seqs
        return set()

    @override
    def start_over(self) -> None:
        self.position = 0

    @override
    def close(self) -> None:
        pass


class Reading:
    """A reader whose looks the test makes."""

    def __init__(self, count: int) -> None:
        self.table = FakeAcks(count)
        self.now = 0.0
        self.told: list[int] = []
        self.most = 0
        self.reader = AckReader(self.table, post=self._post, clock=lambda: self.now)
        self.reader.listen(self._listen)

    def _post(self, callback: Callable[[], None]) -> None:
        callback()

    def _listen(self, new: Sequence[ApplicationAck], again: Sequence[ApplicationAck]) -> None:
        self.most = max(self.most, len(new) + len(again))
        self.told += [one.seq for one in (*new, *again)]

    def look(self, count: int = 1) -> None:
        """Look, some times."""
        for _ in range(count):
            self.reader._look(self.now)


def test_what_is_not_settled_is_told_again_in_portions_and_ever_later() -> None:
    """The loop reads the messages of all that it is told, with their bodies."""
    reading = Reading(3 * READ_AT_ONCE)
    reading.look(4)
    assert len(reading.told) == 3 * READ_AT_ONCE
    for seconds in (0.25, 0.5, 1.0):
        reading.told.clear()
        reading.now += seconds / 2
        reading.look(4)
        assert not reading.told
        reading.now += seconds / 2
        reading.look(4)
        assert sorted(reading.told) == [one.seq for one in reading.table.rows]
    assert reading.most <= 2 * READ_AT_ONCE


def test_what_stays_is_told_again_at_least_twice_a_minute_and_its_age_is_known() -> None:
    """However long it has been there; the age is that of the first, and 0 without any."""
    reading = Reading(1)
    reading.reader._say(None)
    assert reading.reader.status.oldest_seconds == 0
    reading.look()
    for _ in range(10):
        reading.now += 32.0
        reading.look()
    reading.told.clear()
    reading.now += 32.0
    reading.look()
    assert reading.told == [1]
    reading.reader._say(None)
    assert reading.reader.status.oldest_seconds == 11 * 32.0


def test_an_error_that_nobody_expects_is_told_and_reading_goes_on() -> None:
    """As of a row of a type that a driver does not know: it names the error, and begins anew."""

    class Strange(FakeAcks):
        failures = 2

        @override
        def read(self, limit: int) -> Sequence[ApplicationAck]:
            if self.failures:
                self.failures -= 1
                raise TypeError("what is that")
            return super().read(limit)

    table, told = Strange(3), threading.Event()
    failures: list[str | None] = []
    reader = AckReader(table, post=lambda callback: callback())

    def listen(new: Sequence[ApplicationAck], _: Sequence[ApplicationAck]) -> None:
        if len(new) == 3:
            told.set()

    reader.listen(listen)
    table.start_over = lambda: failures.append(reader.status.failure)  # type: ignore[method-assign]
    reader.start()
    assert told.wait(60)
    wait_until(lambda: reader.status.failure is None, what="it is over")
    reader.stop()
    reader.join(60)
    assert failures == [None, "reading acknowledgements failed: TypeError: what is that"]


def test_an_acknowledgement_waits_for_a_small_part_of_the_time_since_the_one_before() -> None:
    """And for no longer than the longest pause; while there are any, for the shortest."""
    now = pause = acks.pause_after(acks.LONGEST_PAUSE_SECONDS, 0.0, is_busy=True)
    assert pause == acks.SHORTEST_PAUSE_SECONDS
    for _ in range(40):
        since, pause = now, acks.pause_after(pause, 0.0, is_busy=False)
        assert pause <= max(since / 2, 2 * acks.SHORTEST_PAUSE_SECONDS)
        assert pause <= since / 4 + 1.1 * acks.SHORTEST_PAUSE_SECONDS
        now += pause
    assert pause == acks.LONGEST_PAUSE_SECONDS
    assert acks.pause_after(pause, 0.2, is_busy=False) == 0.8, "a look may take a part of the time"


def test_acknowledgements_that_stay_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of messages that a queue keeps; now and then all are looked at again."""
    monkeypatch.setattr(acks, "MOST_WAITING", 3 * READ_AT_ONCE)
    reading = Reading(acks.MOST_WAITING + 1)
    reading.look(acks.MOST_WAITING // READ_AT_ONCE + 1)
    assert len(reading.told) == acks.MOST_WAITING
    reading.reader.leave(reading.told)
    reading.look()
    assert reading.told[-1] == acks.MOST_WAITING + 1
    reading.told.clear()
    reading.table.start_over()
    reading.look(2)
    assert not reading.told, "what was left is known"
    reading.now += 3_600
    reading.look(2)
    assert 2 in reading.told
