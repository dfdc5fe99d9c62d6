"""The scenarios of more than one destination, of headers, and of what goes by time or by number."""

import time

from tests.clients.scenarios import (
    RefusedError,
    Scenarios,
    Session,
    await_takeover,
    bodies,
    refusal,
    seen,
    soon,
    tell,
)

SECONDS = 120


class MoreScenarios(Scenarios):
    """These, and all others."""

    def destinations(self) -> None:
        """A last value, an order that is diverted, a wildcard, a question with its answer."""
        session = self.connect(self.first)
        for price in ("1", "2"):
            session.send(f"/queue/prices.{self.prefix}", price, _AMQ_LVQ_NAME="gold")
        session.send(f"/queue/orders.{self.prefix}", "order", kind=self.prefix)
        session = self.successor(session)
        other = self.connect(self.last)
        session.subscribe(f"/queue/prices.{self.prefix}")
        tell(bodies(session, 1))
        session.subscribe("/queue/audit", selector=f"kind = '{self.prefix}'")
        copied = session.next()
        tell([copied.text, copied.headers["_AMQ_ORIG_ADDRESS"]])
        session.subscribe(f"/queue/orders.{self.prefix}")
        tell(bodies(session, 1))
        session.subscribe(f"/topic/news.{self.prefix}.#", **{"no-local": "true"})
        session.send(f"/topic/news.{self.prefix}.eu", "own")
        other.send(f"/topic/news.{self.prefix}.eu", "other")
        heard = session.next()
        tell([heard.text, heard.headers["destination"]])
        requests, answers = f"/queue/requests.{self.prefix}", "/temp-queue/answers"
        session.subscribe(answers)
        other.subscribe(requests)
        session.send(requests, "question", **{"reply-to": answers})
        other.send(other.next().headers["reply-to"], "answer")
        tell(bodies(session, 1))
        other.disconnect()
        session.disconnect()

    def passing(self) -> None:
        """Which of the headers that were sent came."""
        session, to = self.connect(self.first), self.queue("passing")
        headers = {
            "correlation-id": "c-1",
            "reply-to": f"/queue/answers.{self.prefix}",
            "type": "order",
            "priority": "7",
            "expires": soon(3_600_000),
            "persistent": "true",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        }
        session.send(to, "order", **{"content-type": "text/plain", **headers})
        session = self.successor(session)
        session.subscribe(to)
        came = session.next().headers
        told = {
            name: "as it was sent" for name, value in headers.items() if came.get(name) == value
        }
        for name in ("content-type", "destination-type"):
            told[name] = came[name]
        tell(told)
        session.disconnect()

    def expiry(self) -> None:
        """What nobody took in time, where it was moved to."""
        session, to = self.connect(self.first), self.queue("expiring")
        session.send(to, "gone", expires=soon(1_000), kind=self.prefix)
        session.send(to, "kept")
        session = self.successor(session)
        session.subscribe("/queue/ExpiryQueue", selector=f"kind = '{self.prefix}'")
        expired = session.next()
        tell([expired.text, expired.headers["_AMQ_ORIG_QUEUE"]])
        session.subscribe(to)
        tell(bodies(session, 1))
        session.disconnect()

    def flow(self) -> None:
        """One message at a time: what came before the first is acknowledged, and what after it."""
        session, to = self.connect(self.first), self.queue("flow")
        for body in ("first", "second"):
            session.send(to, body)
        session = self.successor(session)
        session.subscribe(to, "client-individual", **{"prefetch-count": "1"})
        first = session.next()
        session.send(self.queue("after"), "whose receipt comes behind all that was on its way")
        tell([first.text, session.waiting])
        session.ack(first)
        second = session.next()
        tell(second.text)
        session.ack(second)
        session.disconnect()

    def routing(self) -> None:
        """Headers that say what a name is, and the name of one queue of an address."""
        session = self.connect(self.first)
        typed, many = f"{self.prefix}-typed", f"{self.prefix}-many"
        session.send(typed, "to one", **{"destination-type": "ANYCAST"})
        session = self.successor(session)
        session.subscribe(f"{typed}::{typed}")
        tell(bodies(session, 1))
        for name in ("one", "two"):
            session.subscribe(many, name=name, **{"subscription-type": "MULTICAST"})
        topic = {"destination-type": "MULTICAST"}
        session.send(many, "to each", **topic)
        tell(bodies(session, 2))
        tell(refusal(lambda: session.send(f"/queue/{typed}", "wrong", **topic)))

    def redelivery(self) -> None:
        """How long a rejected message stays away."""
        session, to = self.connect(self.first), f"/queue/slow.{self.prefix}"
        session.send(to, "slow")
        session.subscribe(to, "client-individual")
        message = session.next()
        began = time.monotonic()
        session.nack(message)
        if self.moves:
            session = self.successor(session)
            session.subscribe(to, "client-individual")
        message = session.next()
        tell(int((time.monotonic() - began) * 1_000))
        tell(seen(message))
        session.ack(message)
        session.disconnect()

    def ring(self) -> None:
        """One more than it has room for; what went for that may come from a successor."""
        session, to = self.connect(self.first), f"/queue/newest.{self.prefix}"
        for body in ("1", "2", "3"):
            session.send(to, body)
        session = self.successor(session)
        session.subscribe(to)
        came = bodies(session, 1)
        while came[-1]["body"] != "3":
            came += bodies(session, 1)
        tell(came)
        session.disconnect()

    def takeover(self) -> None:
        """Numbers, sent to whichever node serves until each has its receipt, and taken."""
        count, to = 60, self.queue("kept")
        session = self._serving()
        for number in range(count):
            if number == count // 2:
                await_takeover()
            while True:
                try:
                    session.send(to, str(number), _AMQ_DUPL_ID=f"{self.prefix} {number}")
                except RefusedError:
                    session.drop()
                    session = self._serving()
                else:
                    break
        session.subscribe(to, "client-individual")
        texts = []
        for _ in range(count):
            message = session.next()
            texts.append(message.text)
            session.ack(message)
        tell(texts)
        session.disconnect()

    def _serving(self) -> Session:
        """Connect to whichever of the nodes answers."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for address in self.addresses:
                try:
                    return self.connect(address)
                except RefusedError:
                    time.sleep(0.05)
        raise RefusedError(f"none of {self.addresses} serves")
