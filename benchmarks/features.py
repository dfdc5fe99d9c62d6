"""What priorities, groups, selectors, delays and durable subscriptions cost.

    python -m benchmarks.features [--dbms postgresql] [--only groups] [--messages 100000]
    python -m benchmarks.features --only delays --messages 1000000
    python -m benchmarks.features --only durable --subscriptions 10000
    python -m benchmarks.features --only selectors --messages 10000

One node does both halves of each comparison: it fills and empties a queue of plain 1 KiB messages,
then a queue of messages with the feature. It stores all delayed messages before the first is due,
and delivers them from the moment when the last is due. Messages go one by one to durable
subscriptions, and to as many volatile ones of another topic; then the durable ones detach and
attach again. Consumers with selectors each select other messages of one queue, which wait there or
arrive a few at a time.
"cpu us" is what a message, or a delivery, costs the node's process.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from benchmarks.floors import BODY, EVERY_DBMS, started
from benchmarks.stomp_load import Client, consume, fill, pump
from benchmarks.throughput import cpu_seconds, resident_mib
from orthia.config.settings import Role
from tests.process.nodes import NodeProcess, cluster
from tests.support.servers import StoreServer, url_with_password

GROUPS = 1_000
PRIORITIES = 10
SELECTORS = (1, 10, 100, 300)
AT_ONCE = 100
"""How many messages come at a time to consumers that wait."""
CONNECTIONS = 10
TOLD = 20
"""How many messages each subscription is sent."""
Say = Callable[[str], None]


def timed(node: NodeProcess, work: Callable[[], object], count: int) -> str:
    """Return operations a second and what one costs, for ``count`` operations."""
    used, began = cpu_seconds(node), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    cost_us = (cpu_seconds(node) - used) / count * 1e6
    return f"{count / seconds:,.0f}/s, {cost_us:.1f} cpu us"


def beside(
    node: NodeProcess, name: str, messages: int, headers: Callable[[int], str], say: Say
) -> None:
    """Fill and empty a queue without ``headers``, then one with them."""
    said: str | Callable[[int], str]
    for kind, said in (("plain", ""), (name, headers)):
        queue = f"{name}-{kind}"
        sent = timed(node, partial(fill, node.port, queue, messages, headers=said), messages)
        take = timed(node, partial(consume, node.port, queue, messages, ack="client"), messages)
        say(f"{kind:12} sent {sent:28} consumed {take}")


def priorities(node: NodeProcess, messages: int, say: Say) -> None:
    """Measure messages of every priority in turn."""
    beside(node, "priorities", messages, lambda number: f"priority:{number % PRIORITIES}\n", say)


def groups(node: NodeProcess, messages: int, say: Say) -> None:
    """Measure messages of a thousand groups in turn."""
    beside(node, "groups", messages, lambda number: f"JMSXGroupID:g{number % GROUPS}\n", say)


def selectors(node: NodeProcess, messages: int, say: Say) -> None:
    """Measure consumers of one queue whose selectors differ; each message matches one of them."""
    for many in SELECTORS:
        queue = f"selectors-{many}"

        def kind(number: int, many: int = many) -> str:
            return f"kind:k{number % many}\n"

        def send(count: int, queue: str = queue, kind: Callable[[int], str] = kind) -> None:
            fill(node.port, queue, count, headers=kind)

        send(messages)
        client = Client(node.port)
        asked = "".join(
            f"SUBSCRIBE\ndestination:/queue/{queue}\nid:{one}\nselector:kind = 'k{one}'\n\n\0"
            for one in range(many)
        )

        def take(client: Client = client, asked: str = asked) -> None:
            client.send(asked.encode())
            receive([client], messages)

        waiting = timed(node, take, messages)

        def come(
            client: Client = client, send: Callable[[int], None] = send, count: int = messages
        ) -> None:
            for _ in range(count // AT_ONCE):
                send(AT_ONCE)
                receive([client], AT_ONCE)

        coming = timed(node, come, messages)
        close([client])
        say(f"{many:4} selectors: that wait {waiting:28} that come, sent too {coming}")


def delays(node: NodeProcess, messages: int, say: Say) -> None:
    """Measure delayed messages that are all due at one moment, after the last is stored."""
    began = time.perf_counter()
    sent = timed(node, lambda: fill(node.port, "delays-plain", messages), messages)
    filling = time.perf_counter() - began
    take = timed(node, lambda: consume(node.port, "delays-plain", messages, ack="client"), messages)
    say(f"{'plain':12} sent {sent:28} consumed {take}")
    due = time.time() + 8 * filling + 10
    header = f"AMQ_SCHEDULED_TIME:{1000 * due:.0f}\n"
    sent = timed(node, lambda: fill(node.port, "delays", messages, headers=header), messages)
    early = due - time.time()
    say(f"{'delayed':12} sent {sent:28} {resident_mib(node, 'VmHWM'):.0f} MiB at most")
    if early < 0:
        raise RuntimeError(f"some were due {-early:.1f} s before the last of them was stored")
    time.sleep(early)
    take = timed(node, lambda: consume(node.port, "delays", messages, ack="client"), messages)
    say(f"{'':12} from their moment on moved and consumed {take}")


def connect(port: int, prefix: str = "") -> list[Client]:
    """Connect the subscribers, with client ids that begin with ``prefix``."""
    ids = [f"{prefix}{number}" if prefix else "" for number in range(CONNECTIONS)]
    return [Client(port, client_id=one) for one in ids]


def subscribe(connected: list[Client], each: int, topic: str, durable: str) -> None:
    """Subscribe every client the given number of times; wait for all receipts."""
    for client in connected:
        client.send(
            b"".join(
                f"SUBSCRIBE\nid:{number}\ndestination:/topic/{topic}\nreceipt:r\n"
                f"{f'durable-subscription-name:{durable}{number}' + chr(10) if durable else ''}"
                "\n\0".encode()
                for number in range(each)
            )
        )
    receive(connected, each * len(connected))


def receive(connected: Iterable[Client], frames: int) -> None:
    """Read the given number of frames from all clients together."""
    received = 0

    def answered(_: Client, data: bytes) -> None:
        nonlocal received
        received += data.count(b"\0")

    pump(list(connected), answered, lambda: received >= frames, silence_seconds=600)


def close(connected: list[Client]) -> None:
    """Close the connections; return once the broker has noticed."""
    for client in connected:
        client.send(b"DISCONNECT\nreceipt:bye\n\n\0")
        receive([client], 1)
        client.socket.close()


def publish(port: int, topic: str, messages: int) -> None:
    """Send the messages for the subscriptions; wait for all receipts."""
    head = f"SEND\ndestination:/topic/{topic}\nreceipt:r\ncontent-length:{len(BODY)}\n\n".encode()
    sender = Client(port)
    sender.send((head + BODY + b"\0") * messages)
    receive([sender], messages)
    sender.socket.close()


def durable(node: NodeProcess, subscriptions: int, say: Say) -> None:
    """Measure subscriptions of a topic without and with a durable name."""
    each = subscriptions // CONNECTIONS
    told = TOLD * each * CONNECTIONS

    def published(connected: list[Client], topic: str) -> str:
        def work() -> None:
            for _ in range(TOLD):
                publish(node.port, topic, 1)
                receive(connected, each * CONNECTIONS)

        return timed(node, work, told)

    for kind, name in (("plain", ""), ("durable", "d")):
        connected = connect(node.port, name)
        made = timed(node, partial(subscribe, connected, each, kind, name), subscriptions)
        say(f"{kind:12} subscribed {made:28} told {published(connected, kind)}")
        close(connected)
    stored = timed(node, lambda: publish(node.port, "durable", TOLD), told)
    say(f"{'detached':12} stored for each {stored}; {resident_mib(node, 'VmHWM'):.0f} MiB at most")
    connected = connect(node.port, "d")

    def attach() -> None:
        for client in connected:
            client.send(
                b"".join(
                    f"SUBSCRIBE\nid:{number}\ndestination:/topic/durable\n"
                    f"durable-subscription-name:d{number}\n\n\0".encode()
                    for number in range(each)
                )
            )
        receive(connected, told)

    say(f"{'':12} attached again and told {timed(node, attach, told)}")
    close(connected)


def measure(
    server: StoreServer, wanted: list[str], arguments: argparse.Namespace, say: Say
) -> None:
    """Measure one store."""
    url = url_with_password(server.settings(server.create_database()))
    with tempfile.TemporaryDirectory() as directory, cluster(url, Path(directory)) as nodes:
        live = nodes.node(Role.LIVE, "live").start().wait_serving()
        for work in wanted:
            many = arguments.subscriptions if work == "durable" else arguments.messages
            WORKS[work](live, many, say)


WORKS: dict[str, Callable[[NodeProcess, int, Say], None]] = {
    "priorities": priorities,
    "groups": groups,
    "selectors": selectors,
    "delays": delays,
    "durable": durable,
}


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbms", nargs="+", choices=EVERY_DBMS, default=["postgresql"])
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--subscriptions", type=int, default=10_000)
    arguments = parser.parse_args()
    for dbms in arguments.dbms:
        with started(dbms) as server:
            measure(
                server,
                arguments.only,
                arguments,
                lambda line, dbms=dbms: print(f"{dbms:12}{line}", flush=True),  # type: ignore[misc]
            )


if __name__ == "__main__":
    main()
