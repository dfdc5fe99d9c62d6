"""What kinds of rows the journal writes, by the numbers Artemis gives them.

``record_type`` says what happened (a record was added), ``user_record_type`` what the record is.
Both columns keep Artemis' values, so that a person who knows its journal can read this one.
"""

from enum import IntEnum


class RecordType(IntEnum):
    """What happened; Artemis' ``JournalImpl`` markers. A delete is a DELETE, so it has no row."""

    ADD_RECORD = 11


class UserRecordType(IntEnum):
    """What a record is; Artemis' ``JournalRecordIds``."""

    QUEUE_BINDING = 21
    ID_COUNTER = 24
    ADD_MESSAGE = 31
    """A whole message: of one queue, or (``queue_id`` NULL) the body several references share."""
    ADD_REF = 32
    ADDRESS_BINDING = 44


ID_COUNTER_SEQ = 0
"""The row of BINDINGS whose ``id`` is the highest id that may have been given out; ids start at 1.
"""

FENCE_ROW_ID = 4
"""The row of NODE_MANAGER_STORE whose ``holder_token`` is the newest live node's."""
