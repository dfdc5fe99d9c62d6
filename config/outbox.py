"""What the outbox's table, the functions beside it and its reader agree on."""

from typing import Final

OUTBOX_LOCK: Final = 0x6F727468
"""The first key of PostgreSQL's advisory lock by which the reader says that it sleeps; the second
is the table's oid. Whoever inserts tries to share it until the end of the transaction; if that
fails, the reader has it, and is to be woken by NOTIFY."""
MAX_BODY_BYTES: Final = 1_048_576
"""The longest body of a message that is sent by SQL."""
MAX_HEADERS_BYTES: Final = 1_048_576
"""The longest headers of a row, before ``max-header-bytes`` is asked: a database looks at all of
them several times."""
MAX_DESTINATION_LENGTH: Final = 1_024
READ_BODY_BYTES: Final = 4 * MAX_BODY_BYTES
"""A longer body is never read into memory, where a constraint is missing that refuses it; one up to
this is, to become a dead letter."""
READ_HEADERS: Final = 1_048_576
"""The number of characters of headers that are read, where a constraint is missing that refuses
longer ones; those are cut, and become dead letters."""
RESERVED_PREFIXES: Final = ("_AMQ_", "AMQ_", "JMSX")
"""What names of headers begin with that only the known ones may have."""
KNOWN_HEADERS: Final = (
    *("AMQ_SCHEDULED_CRON", "AMQ_SCHEDULED_DELAY", "AMQ_SCHEDULED_PERIOD"),
    *("AMQ_SCHEDULED_REPEAT", "AMQ_SCHEDULED_TIME", "JMSXGroupID", "JMSXGroupSeq"),
    *("_AMQ_DUPL_ID", "_AMQ_GROUP_ID", "_AMQ_GROUP_SEQUENCE", "_AMQ_LVQ_NAME"),
    "_AMQ_SCHED_DELIVERY",
)
"""Those of reserved names that a row may have."""
REFUSED_HEADERS: Final = (
    *("ack", "content-length", "destination", "ingress-timestamp", "message-id"),
    *("original-destination", "orthia-replay-mac", "orthia-replay-probe", "orthia-replayed-from"),
    *("orthia-replayed-through", "receipt", "redelivered", "subscription", "timestamp"),
    "transaction",
)
"""Others that a row may not have: columns say them, or the broker does, or they mean nothing."""
_OF_TABLE: Final = "_OUTBOX"


def send_function(table: str) -> str:
    """Return the name of the function that sends, given the table's: ``ORTHIA_SEND``."""
    prefix = table[: -len(_OF_TABLE)] if table.upper().endswith(_OF_TABLE) else table
    return f"{prefix}_SEND" if prefix == prefix.upper() else f"{prefix}_send"
