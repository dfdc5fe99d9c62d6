"""A non-destructive queue against a model: consumers of every kind, over and over."""

import random
from dataclasses import dataclass, field, replace

import pytest

from orthia.broker.core.queue import showing
from orthia.config.address_settings import (
    AddressConfiguration,
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.settings import Settings
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, FakeConsumer, message

QUEUE = "/queue/q"
KINDS = {None: "abc", "kind = 'a'": "a", "kind <> 'a'": "bc"}
"""What messages say of themselves, by the selectors that match them."""


@dataclass(eq=False)
class Watcher(FakeConsumer):
    """A consumer, with what it has not answered."""

    kinds: str = ""
    open: list[str] = field(default_factory=list)


class Run:
    """One random run; a message is its kind, its priority, and its number."""

    def __init__(self, seed: int, *, is_last_value: bool) -> None:
        self.random = random.Random(seed)
        self.is_last_value = is_last_value
        self.core = CoreUnderTest(self._settings())
        self.kept: list[str] = []
        self.watchers: list[Watcher] = []
        self.sent = 0

    def _settings(self) -> Settings:
        options = {"non_destructive": True, "last_value": self.is_last_value}
        queue = QueueSettings("q", RoutingType.ANYCAST, options=options)
        address = AddressConfiguration("q", frozenset({RoutingType.ANYCAST}), (queue,))
        once = AddressSettings("#", max_delivery_attempts=1)
        return replace(SETTINGS, addresses=(address,), address_settings=(once,))

    def send(self) -> None:
        """Send some, of which those of one value replace one another."""
        for _ in range(self.random.randrange(1, 8)):
            kind, priority = self.random.choice("abc"), self.random.choice((4, 4, 4, 9, 1))
            text = f"{kind}{priority}-{self.sent}"
            value = self.sent % 5
            self.sent += 1
            headers = f"kind:{kind}\n_AMQ_LVQ_NAME:{value}\n".encode()
            is_persistent = self.random.random() < 0.5
            sent = message(text, headers=headers, priority=priority, persistent=is_persistent)
            self.core.broker.send(ANYONE, QUEUE, sent, None)
            if self.is_last_value:
                self.kept = [one for one in self.kept if number(one) % 5 != value]
            self.kept.append(text)
            if self.random.random() < 0.5:
                self.core.settle()

    def consume(self) -> None:
        """Subscribe."""
        selector = self.random.choice([*KINDS])
        watcher = Watcher(kinds=KINDS[selector])
        watcher.subscription = self.core.broker.subscribe(
            ANYONE, QUEUE, watcher, prefetch=self.random.choice((0, 1, 3)), selector=selector
        )
        self.watchers.append(watcher)
        watcher.end.resume()

    def answer(self) -> None:
        """Acknowledge or reject some of what somebody has, or let a slow socket be so."""
        if not self.watchers:
            return
        watcher = self.random.choice(self.watchers)
        answered = {one.seq for one in watcher.received[len(watcher.open) :]}
        waiting = [one for one in watcher.received if one.seq in answered]
        some = waiting[: self.random.randrange(1, 9)]
        watcher.open += [one.record.body.decode() for one in some]
        if self.random.random() < 0.5:
            watcher.end.acknowledge(some, None)
        else:
            watcher.end.reject(some, None)
        watcher.is_writable = self.random.random() < 0.8
        if watcher.is_writable:
            watcher.end.resume()

    def leave(self) -> None:
        """Unsubscribe, or be lost."""
        if self.watchers and self.random.random() < 0.3:
            watcher = self.watchers.pop(self.random.randrange(len(self.watchers)))
            watcher.end.close(attempted=watcher.received)
            assert watcher.held == 0

    def take_over(self) -> None:
        """Have the next node serve."""
        if self.random.random() < 0.1:
            self.core.settle()
            self.watchers.clear()
            self.core = self.core.takeover(self._settings())
            self.core.broker.count_backlogs()

    def look(self) -> None:
        """Have every consumer take all, and judge what it got."""
        self.core.settle()
        for watcher in self.watchers:
            watcher.auto = watcher.is_writable = True
            watcher.end.acknowledge(watcher.received, None)
            watcher.end.resume()
        self.core.settle()
        for watcher in self.watchers:
            got = watcher.texts
            assert len(got) == len(set(got))
            wanted = [one for one in self.kept if one[0] in watcher.kinds]
            assert set(wanted) <= set(got)
            assert all(one[0] in watcher.kinds for one in got)
            for priority in "149" if not self.is_last_value else ():
                of_one = [number(one) for one in got if one[1] == priority]
                assert of_one == sorted(of_one)
            if self.is_last_value:
                assert [number(one) for one in got] == sorted(number(one) for one in got)
            watcher.end.close()
            assert watcher.held == 0
        self.watchers.clear()
        late = self.core.consume(QUEUE)
        order = sorted(self.kept, key=number if self.is_last_value else by_priority)
        assert late.texts == order
        late.end.close()
        assert self.core.broker.depths() == {"q": len(self.kept)}
        assert len(self.core.journal.store.messages) == len(self.kept)
        assert self.core.broker.parts.factory.budget.used == 0
        assert self.core.broker.parts.factory.budget.claimed == 0


def number(text: str) -> int:
    """Return the place of a message in what was sent."""
    return int(text[3:])


def by_priority(text: str) -> tuple[int, int]:
    """Return by what messages are sorted that wait together."""
    return -int(text[1]), number(text)


@pytest.mark.parametrize("is_last_value", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_each_sees_all_once_and_in_order(
    seed: int, is_last_value: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever others do, and over takeovers; nothing is left in memory."""
    monkeypatch.setattr(showing, "_WINDOW_MESSAGES", 3)
    run = Run(seed, is_last_value=is_last_value)
    for _ in range(6):
        for _ in range(25):
            step = run.random.choice((run.send, run.consume, run.answer, run.answer, run.leave))
            step()
            if run.random.random() < 0.5:
                run.core.settle()
        run.take_over()
        run.look()
