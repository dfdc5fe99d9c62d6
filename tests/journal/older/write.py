"""Write a journal with the code of some version of Orthia, as a fixture for those that follow.

Run it in a checkout of that version, and keep what it prints for ever::

    git worktree add /tmp/older f803bef
    cd /tmp/older && python HERE/write.py > HERE/version-1.json

The fixtures are of: version-1 of f803bef, the last that had no other; version-2 of 4b861a4, which
brought large messages; version-2-users of 8312cad, whose queues say who created them; version-3 of
the commit that brought the fixtures. version-4 is version-3 with one message more, of AMQP, and the
binding that says so: both by the code of the commit that brought it. Of each, ``said`` is what the
rows must say to whoever reads them: nothing of that may be changed when a fixture cannot be read
any more.
"""

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TEXT = b"content-type:text/plain\ncolour:red\nwith\\ccolon:a\\nb\npersistent:true\n"
SENT: list[dict[str, Any]] = [
    {"queues": [1], "address": "orders", "head": TEXT.hex(), "body": b"plain".hex()},
    {"queues": [1, 2], "address": "news", "head": b"a:b\n".hex(), "body": b"shared\0\xff".hex()},
    {"queues": [2], "address": "\u00fcber", "head": "", "body": "", "expires": 1_800_000_000_000},
]
LARGE = {
    "queues": [1],
    "address": "orders",
    "head": b"a:b\n".hex(),
    "body": "",
    "large": [99, 5, 6],
}
STATED = {
    "queues": [1],
    "address": "orders",
    "head": "",
    "body": b"neutral".hex(),
    "encoding": 0,
    "stated": {"id": "m-1", "group": "g", "properties": {"n": 1, "x": 0.5, "yes": True, "t": "a"}},
}
TIMESTAMP = 1_700_000_000_000


def module(name: str) -> Any:
    """Import a module of the checkout, by whatever name it goes there."""
    return importlib.import_module(f"orthia.{name}" if Path("orthia").is_dir() else name)


def encoded(message: dict[str, Any], record: Any, codec: Any) -> bytes:
    """Return a message's record."""
    fields = [message["address"], bytes.fromhex(message["head"]), bytes.fromhex(message["body"])]
    more: dict[str, Any] = {}
    if "large" in message:
        more["large"] = codec.LargeBody(*message["large"])
    if "stated" in message:
        fields_of = module("journal.fields")
        stated = fields_of.Fields(**message["stated"])
        more |= {"encoding": message["encoding"], "stated": fields_of.encode_fields(stated)}
    expires = message.get("expires", 0)
    data: bytes = codec.encode_message(record(*fields, TIMESTAMP, expires, 4, **more))
    return data


def main() -> None:
    """Print a journal as JSON."""
    sys.path.insert(0, str(Path.cwd()))
    journal, codec, memory = module("journal"), module("journal.codec"), module("journal.memory")
    unit, xa, routing = module("journal.unit"), module("journal.xa"), module("config.settings")
    messages = codec if hasattr(codec, "encode_message") else module("journal.message")
    record = messages.MessageRecord if messages is codec else messages.Message
    sent = list(SENT)
    if hasattr(messages, "LargeBody"):
        sent.append(LARGE)
    if messages is not codec:
        sent.append(STATED)
    store = memory.MemoryStore()
    opened = memory.MemoryJournal(store)
    named = {"user": "ann"} if "user" in inspect.signature(codec.QueueBinding).parameters else {}
    queues = [
        codec.QueueBinding(
            opened.next_id(), "orders", "orders", routing.RoutingType.ANYCAST, **named
        ),
        codec.QueueBinding(
            opened.next_id(), "news.1", "news", routing.RoutingType.MULTICAST, auto_created=True
        ),
    ]
    for queue in queues:
        opened.add_binding(queue)
    kinds = frozenset({routing.RoutingType.MULTICAST})
    opened.add_binding(codec.AddressBinding(opened.next_id(), "news", kinds))
    for one in sent:
        whole = unit.Unit()
        whole.add_message(one["queues"], encoded(one, record, messages))
        opened.append_unit(whole)
    doubtful = unit.Unit()
    doubtful.add_message([1], encoded(sent[0], record, messages))
    doubtful.delete(journal.MessageLocation(1_000_000))
    xid = codec.Xid(1, b"global", b"branch")
    xa.XaTransactions(opened, lambda: TIMESTAMP).prepare(xid, doubtful)
    opened.run_posted()
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
    rows = [(*row, epoch) for row, epoch in store.messages.values()]
    document = {
        "commit": commit,
        "said": {"messages": sent, "timestamp": TIMESTAMP, "user": named.get("user")},
        "messages": [shown(*row) for row in rows],
        "bindings": [shown(*(*row, 1)) for row in store.bindings.values()],
    }
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


def shown(
    seq: int, row_id: int, kind: int, queue_id: int | None, record: bytes, epoch: int
) -> dict[str, Any]:
    """Return a row of a table as JSON has it."""
    return {
        "seq": seq,
        "id": row_id,
        "user_record_type": int(kind),
        "queue_id": queue_id,
        "epoch": epoch,
        "record": bytes(record).hex(),
    }


if __name__ == "__main__":
    main()
