"""A queue against a model of it, with all that clients say of messages and consumers together.

Selectors, groups, delays, expiry and duplicate ids, over restarts, with next to nothing in memory.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from orthia.broker.core.api import MessageReference
from orthia.config.address_settings import AddressSettings
from orthia.journal.model.message import DEFAULT_PRIORITY
from tests.core.support import SETTINGS
from tests.core.test_against_a_model import KINDS, ModelConsumer, QueueMachine
from tests.stomp.test_scheduled import Clock, send

EXPIRED: Final = "ExpiryQueue"
OPTIONS = replace(
    SETTINGS,
    address_settings=(
        AddressSettings("#", max_size_messages=4, max_delivery_attempts=-1, expiry_address=EXPIRED),
    ),
)
SCANS_MS: Final = 61_000
"""In which expired messages are looked for, whatever the queue does."""
LONGEST_DELAY_MS: Final = 30
EXAMPLES: Final = int(os.environ.get("QUEUE_EXAMPLES", "40"))


class MessagesMachine(QueueMachine):
    """The model's order is that of arrival in the queue, and of what is delayed when it is due."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(OPTIONS)
        self.core = self.clock.core
        self.due: dict[int, int] = {}
        """When a message comes into the queue, of those that have not yet."""
        self.arriving: list[int] = []
        """What is due at this moment, and comes into the queue one after the other."""
        self.expires: dict[int, int] = {}
        self.known: set[str] = set()

    def has_expired(self, number: int) -> bool:
        """Whether a message is not to be delivered any more."""
        return self.expires.get(number, self.clock.ms() + 1) <= self.clock.ms()

    def wanted_by(self, consumer: ModelConsumer) -> Iterator[int]:
        """Leave out what has expired."""
        return (one for one in super().wanted_by(consumer) if not self.has_expired(one))

    def judge(self, consumer: ModelConsumer, reference: MessageReference) -> None:
        """Of what is due at one moment no more need have come before what is delivered."""
        number = int(reference.record.body)
        while number in self.arriving:
            self.waiting.append(self.arriving.pop(0))
        super().judge(consumer, reference)

    # --- what happens

    @rule(
        kind=st.sampled_from(KINDS),
        group=st.sampled_from(["", "", "", "g", "h"]),
        delay_ms=st.sampled_from([0, 0, 1, 5, LONGEST_DELAY_MS]),
        lives_ms=st.sampled_from([0, 0, 0, 1, 7, LONGEST_DELAY_MS]),
        duplicate_id=st.sampled_from(["", "", "x", "y", "z"]),
        priority=st.sampled_from([4, 4, 4, 9, 0]),
        again=st.integers(1, 6),
    )
    def send(
        self,
        kind: str,
        group: str,
        delay_ms: int,
        lives_ms: int,
        duplicate_id: str,
        priority: int,
        again: int,
    ) -> None:
        """A producer sends one message after the other, each stored."""
        for _ in range(again):
            number = self.sent = self.sent + 1
            headers: dict[str, Any] = {"kind": kind}
            self.priorities[number] = priority
            if priority != DEFAULT_PRIORITY:
                headers["priority"] = priority
            if group:
                headers["JMSXGroupID"] = group
            if lives_ms:
                headers["expires"] = self.clock.ms() + lives_ms
            if delay_ms:
                headers["AMQ_SCHEDULED_DELAY"] = delay_ms
            if duplicate_id:
                headers["_AMQ_DUPL_ID"] = duplicate_id
            if duplicate_id not in self.known:
                self.expect(number, kind, group, delay_ms, lives_ms)
            if duplicate_id:
                self.known.add(duplicate_id)
            send(self.clock, str(number), **headers)

    def expect(self, number: int, kind: str, group: str, delay_ms: int, lives_ms: int) -> None:
        """Take note of a message that is no duplicate."""
        self.kinds[number] = kind
        if group:
            self.groups[number] = group
        if lives_ms:
            self.expires[number] = self.clock.ms() + lives_ms
        if delay_ms:
            self.due[number] = self.clock.ms() + delay_ms
        else:
            self.waiting.append(number)

    @rule(milliseconds=st.integers(1, LONGEST_DELAY_MS))
    def pass_ms(self, milliseconds: int) -> None:
        """Time passes; what is due comes to the end of the queue."""
        for _ in range(milliseconds):
            now_ms = self.clock.ms() + 1
            due = sorted((at, number) for number, at in self.due.items() if at <= now_ms)
            self.arriving = [number for _, number in due]
            for number in self.arriving:
                del self.due[number]
            self.clock.pass_ms(1)
            self.waiting += self.arriving
            self.arriving = []

    @rule()
    def take_over(self) -> None:
        """The node is gone; the next one opens the same store."""
        self.clock.takeover(OPTIONS)
        self.core = self.clock.core
        self.consumers.clear()
        self.held.clear()
        self.owners.clear()
        self.maybe_seen.update(self.waiting)

    # --- what always holds

    @invariant()
    def depth_is_right(self) -> None:
        """What has expired may have left already, unless a consumer has it."""
        depths = self.core.broker.depths()
        left = {one for one in self.waiting if one not in self.held and self.has_expired(one)}
        assert len(self.waiting) - len(left) <= depths.get("orders", 0) <= len(self.waiting)

    def teardown(self) -> None:
        """Take the rest: each message is once where it belongs."""
        while self.consumers:
            self.lose(self.consumers[0])
        self.pass_ms(LONGEST_DELAY_MS)
        self.clock.pass_ms(SCANS_MS)
        expired = {one for one in self.waiting if self.has_expired(one)}
        there = self.in_order(one for one in self.waiting if one not in expired)
        assert numbers(self.core.consume("/queue/orders").texts) == there
        assert sorted(numbers(self.core.consume(f"/queue/{EXPIRED}").texts)) == sorted(expired)
        schedule = "orthia.scheduled.anycast.orders"
        assert self.core.broker.depths().get(schedule, 0) == 0


def numbers(texts: list[str]) -> list[int]:
    """Return which messages these are."""
    return [int(text) for text in texts]


def test_a_queue_does_what_its_model_says() -> None:
    """QUEUE_EXAMPLES says how often; ``make queue-model`` often."""
    run_state_machine_as_test(
        MessagesMachine,
        settings=hypothesis_settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None),
    )
