"""The routine by which an application acknowledges a message in its own transaction.

``orthia_ack(message_id)`` inserts a row in the table of acknowledgements, and then locks the
message's row in MESSAGES for sharing until the application's transaction ends. From this follows:

- A second transaction that acknowledges the message waits for the first, and fails by the primary
  key if that commits.
- Nobody removes the message before the transaction has ended: neither the live node for another
  consumer, nor its expiry, nor an operator. So whoever holds a delivery of a message that is gone
  fails, however late, and an acknowledgement is needed only while its message is there.

On MySQL and MariaDB an error of a statement leaves a transaction open that could still be
committed, and with it a second processing. So there the routine rolls the transaction back before
it raises, as PostgreSQL does by itself.
"""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated, and numbers)

from typing import Final

from orthia.database import Dialect
from orthia.migrations.names import TableNames
from orthia.migrations.outbox import IF_NOT_EXISTS

_MESSAGES: Final = "(30, 31, 32)"
"""``user_record_type`` of rows that are a queue's copy of a message."""
_DIGITS: Final = "^[1-9][0-9]{0,17}$"
_EXPECTED: Final = "expected the message-id header of a MESSAGE"
_DONE: Final = "was acknowledged before"
_GONE: Final = "is in no queue: it was acknowledged before, has expired, or was removed or moved"


def ack_routine_sql(names: TableNames) -> str:
    """Return the statement that creates the routine; an empty text where there is none."""
    match names.dialect:
        case Dialect.POSTGRESQL:
            return _postgresql(names)
        case Dialect.MYSQL:
            return _mysql(names)
        case Dialect.SQLITE:
            return ""


def _postgresql(names: TableNames) -> str:
    """Return a block that creates the function in the schema of MESSAGES.

    PostgreSQL lets everybody call a new function; here only those who are granted it. The message
    is looked up in the order of its key, so that no other index is taken: see
    ``orthia.journal.sql.postgresql_keys``.
    """
    routine = names.ack_routine
    return f"""DO $create$
DECLARE
    place text := (SELECT relnamespace::regnamespace::text FROM pg_class
        WHERE oid = to_regclass('"{names.messages}"'));
BEGIN
    EXECUTE format($format$
CREATE OR REPLACE FUNCTION %1$s.{routine}(message_id text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = %1$s, pg_temp
SET enable_sort = off
AS $function$
BEGIN
    IF message_id IS NULL OR message_id !~ '{_DIGITS}' THEN
        RAISE EXCEPTION '{routine}: %% is no message id; {_EXPECTED}', quote_nullable(message_id)
            USING ERRCODE = 'invalid_text_representation';
    END IF;
    INSERT INTO "{names.acks}" AS acks (message_id) VALUES (message_id::bigint)
        ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION '{routine}: message %% {_DONE}', message_id
            USING ERRCODE = 'unique_violation';
    END IF;
    PERFORM 1 FROM "{names.messages}" AS messages
        WHERE messages.seq BETWEEN message_id::bigint AND message_id::bigint
            AND messages.queue_id IS NOT NULL AND messages.user_record_type IN {_MESSAGES}
        ORDER BY messages.seq
        FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION '{routine}: message %% {_GONE}', message_id
            USING ERRCODE = 'unique_violation';
    END IF;
END
$function$
    $format$, place);
    EXECUTE format('REVOKE ALL ON FUNCTION %1$s.{routine}(text) FROM PUBLIC', place);
END
$create$"""


def _mysql(names: TableNames) -> str:
    """Return the statement that creates the procedure.

    The insert comes first: a row of MESSAGES that is not there is locked as a gap, which keeps the
    live node from storing others until the transaction is rolled back.
    """
    routine = names.ack_routine
    return f"""CREATE PROCEDURE {IF_NOT_EXISTS} `{routine}`(IN message_id TEXT)
MODIFIES SQL DATA
SQL SECURITY DEFINER
BEGIN
    DECLARE told VARCHAR(128);
    DECLARE is_stored INT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    IF message_id IS NULL OR message_id NOT REGEXP '{_DIGITS}' THEN
        SET told = LEFT(CONCAT('{routine}: ', LEFT(QUOTE(message_id), 30), ' is no message id;',
            ' {_EXPECTED}'), 128);
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = told;
    END IF;
    BEGIN
        DECLARE EXIT HANDLER FOR 1062
        BEGIN
            SET told = LEFT(CONCAT('{routine}: message ', message_id, ' {_DONE}'), 128);
            SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 1062, MESSAGE_TEXT = told;
        END;
        INSERT INTO `{names.acks}` (message_id) VALUES (CAST(message_id AS SIGNED));
    END;
    SELECT COUNT(*) INTO is_stored FROM `{names.messages}` AS messages
        WHERE messages.seq = CAST(message_id AS SIGNED) AND messages.queue_id IS NOT NULL
            AND messages.user_record_type IN {_MESSAGES}
        LOCK IN SHARE MODE;
    IF is_stored = 0 THEN
        SET told = LEFT(CONCAT('{routine}: message ', message_id, ' {_GONE}'), 128);
        SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 1062, MESSAGE_TEXT = told;
    END IF;
END"""
