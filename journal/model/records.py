"""What kinds of rows the journal writes, by the numbers Artemis gives them.

``record_type`` says what happened (a record was added), ``user_record_type`` what the record is.
Both keep Artemis' values, so that a person who knows its journal can read this one.
"""

from enum import IntEnum, StrEnum, unique


class RecordType(IntEnum):
    """What happened; Artemis' ``JournalImpl`` markers.

    Tables hold ADD_RECORD only: there a delete is a DELETE, and a transaction is the database's.
    The file journal writes all of them.
    """

    ADD_RECORD = 11
    UPDATE_RECORD = 12
    ADD_RECORD_TX = 13
    UPDATE_RECORD_TX = 14
    DELETE_RECORD_TX = 15
    DELETE_RECORD = 16
    PREPARE_RECORD = 17
    COMMIT_RECORD = 18
    ROLLBACK_RECORD = 19


@unique
class UserRecordType(IntEnum):
    """What a record is; Artemis' ``JournalRecordIds``."""

    QUEUE_BINDING = 21
    ID_COUNTER = 24
    ADD_LARGE_MESSAGE = 30
    """As ADD_MESSAGE, with the body outside the journal."""
    ADD_MESSAGE = 31
    """A whole message: of one queue, or (``queue_id`` NULL) the body several references share."""
    ADD_REF = 32
    DUPLICATE_ID = 37
    """That a message with this id was stored; its ``queue_id`` is that of its address' id cache."""
    ADDRESS_BINDING = 44
    OPERATOR_RECORD = 104
    """What an operator asked for: a pause, or how far an operation on many messages is. Orthia's
    own; a node that knows none refuses the journal, and does not deliver what is paused."""
    DELIVERY_ATTEMPTS = 103
    """How often delivery of a message, the record's ``id``, failed; in files only. Orthia's own:
    Artemis updates the message's record, which an older node would take for damage."""
    PREPARED_TRANSACTION = 100
    """A transaction in doubt, whole, in BINDINGS. Orthia's own: in Artemis' journal a transaction's
    records lie among the others, here its messages must not have a place in a queue yet."""
    RECORD_VERSION = 101
    """That messages of a version of records may be in the journal. Orthia's own: by it a node that
    does not read them refuses the journal as a whole, and not each of the messages."""
    ID_CACHE = 102
    """That duplicate ids of an address are kept. Orthia's own, and in the place of a queue to the
    rows of these ids: a node that knows none refuses the journal, and stores no duplicates."""


class RemovalReason(StrEnum):
    """Why a message left its queue, as the history table says it."""

    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"
    DEAD_LETTERED = "dead-lettered"
    DELETED = "deleted"
    """By an operator, with its queue or alone."""
    DUE = "due"
    """It was to be delivered later, and goes to the queue that it was sent to. The history keeps
    nothing of that."""


ID_COUNTER_SEQ = 0
"""The row of BINDINGS whose ``id`` is the highest id that may have been given out; ids start at 1.
"""

FENCE_ROW_ID = 4
"""The row of NODE_MANAGER_STORE whose ``holder_token`` is the newest live node's."""
