"""Write a file journal with the code of some version of Orthia, as a fixture for those that follow.

Run it in a checkout of that version, and keep what it prints for ever::

    git worktree add /tmp/older 81a07c8
    cd /tmp/older && PYTHONPATH=$PWD python HERE/write.py > HERE/version-1.json

The fixtures are of: version-1 of 81a07c8, the last whose files had no salt. Of each, ``said`` is
what whoever opens the journal must find: nothing of that may be changed when it cannot be read any
more.

The journal is left as ``kill -9`` leaves it, with a file of each kind: compacted, closed, written
last, and free. The last two once held what a client sent and consumed: bodies of delete records.
The code of 81a07c8 takes them for damage itself, and does not open the journal.
"""

import base64
import json
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

from orthia.config.address_settings import RoutingType
from orthia.journal import QueueBinding, Unit, encode_message
from orthia.journal.engine.batch import Batch
from orthia.journal.file.encoding import delete_record
from orthia.journal.file.format import encode_record
from orthia.journal.model.unit import AppendedMessage
from tests.file_journal.support import DirectJournal, file_settings
from tests.journal.support import OTHER_QUEUE, QUEUE, payload, record

BODY = "x" * 700


def forged(seqs: list[int]) -> bytes:
    """Return a message whose body is delete records, of files that come later."""
    one = delete_record(seqs, 1)
    encode: Any = encode_record  # which took the file's id then
    body = b"".join(encode(one, file_id, 2**40, 1) + one.payload for file_id in range(1, 40))
    return encode_message(record("")._replace(body=body))


def main() -> None:
    """Print a journal as JSON."""
    with tempfile.TemporaryDirectory() as directory:
        s = file_settings(Path(directory))
        journal = DirectJournal(s)
        said: dict[int, tuple[int, str]] = {}

        def send(*texts: str, queue: int = QUEUE) -> list[int]:
            seqs = journal.add(*texts, queue=queue)
            said.update({seq: (queue, text) for seq, text in zip(seqs, texts, strict=True)})
            return seqs

        def consume(*seqs: int) -> None:
            journal.delete(*seqs)
            for seq in seqs:
                del said[seq]

        queue = Unit()
        queue.add_binding(QueueBinding(QUEUE, "orders", "orders", RoutingType.ANYCAST))
        journal.unit(queue)
        first = send("first", "second", "third", queue=OTHER_QUEUE)
        shared = Unit()
        shared.add_message([QUEUE, OTHER_QUEUE], payload("shared"))
        places = journal.unit(shared)
        for place, to in zip(places, (QUEUE, OTHER_QUEUE), strict=True):
            said[place.seq] = to, "shared"
        for _ in range(5):
            sent = send(*[f"{number} {BODY}" for number in range(7)])
            consume(*sent[1:])
        journal.keeper.keep()
        send("closed " + BODY * 9)
        for _ in range(12):
            batch = Batch()
            journal.seq += 1
            batch.add(AppendedMessage(journal.seq, QUEUE, forged(first), None))
            journal.store.store(batch)
            journal.delete(journal.seq)
            journal.keeper.keep()
        send("last orders", "and one more")
        files = sorted([*s.journal_directory.iterdir(), *s.bindings_directory.iterdir()])
        document = {
            "commit": subprocess.check_output(
                ["git", "rev-parse", "--short", "HEAD"], text=True
            ).strip(),
            "said": {
                "token": 1,
                "messages": [[seq, *one] for seq, one in sorted(said.items())],
                "queues": ["orders"],
            },
            "files": {str(one.relative_to(directory)): packed(one.read_bytes()) for one in files},
        }
        journal.abandon()
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


def packed(content: bytes) -> str:
    """Return the content of a file as JSON has it."""
    return base64.b64encode(zlib.compress(content, 9)).decode()


if __name__ == "__main__":
    main()
