"""Finds rows that another session of PostgreSQL has locked.

``SELECT ... FOR UPDATE SKIP LOCKED`` needs the right to UPDATE, which a node has on no table of
messages. So each row is deleted, in a block that rolls back if the lock is not free within a
moment; then everything is rolled back.
"""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated, and numbers)

from collections.abc import Sequence

from orthia.journal.engine.abc import CERTAIN_ROWS
from orthia.journal.engine.locks import RowKey, RowKind
from orthia.journal.sql.postgresql_keys import by_key
from orthia.journal.sql.statements import TableNames


def locked_rows_sql(names: TableNames, rows: Sequence[RowKey]) -> str:
    """Return statements that give the indexes of the locked ``rows``, in one text.

    After ``CERTAIN_ROWS`` locked ones all others are taken for locked: each costs a millisecond.
    They are to be run in a transaction that is rolled back, and wait for a locked table as others.
    """
    columns = (
        ",".join(str(int(row.kind)) for row in rows),
        ",".join(str(row.seq) for row in rows),
        ",".join(str(row.large_id) for row in rows),
    )
    kinds, seqs, ids = (f"'{{{column}}}'::bigint[]" for column in columns)
    delete_time = f"DELETE FROM {names.times} WHERE {by_key(names.times, 'seq', 'ARRAY[seqs[i]]')}"
    delete_sent = f"DELETE FROM {names.outbox} WHERE {by_key(names.outbox, 'id', 'ARRAY[seqs[i]]')}"
    delete_link = f"DELETE FROM {names.large_messages} WHERE id = ids[i] AND position = -seqs[i]"
    deletes = f"""IF kinds[i] = {RowKind.MESSAGE:d} THEN
                    DELETE FROM {names.messages}
                    WHERE {by_key(names.messages, "seq", "ARRAY[seqs[i]]")};
                ELSIF kinds[i] = {RowKind.TIME:d} THEN {delete_time};
                ELSIF kinds[i] = {RowKind.OUTBOX:d} THEN {delete_sent};
                ELSE {delete_link};
                END IF;"""
    tables = {
        RowKind.MESSAGE: names.messages,
        RowKind.TIME: names.times,
        RowKind.LARGE_REFERENCE: names.large_messages,
        RowKind.OUTBOX: names.outbox,
    }
    used = sorted({tables[row.kind] for row in rows})
    # Deletes no row; takes the lock of the table, for which it waits as long as a batch does.
    tables_first = " ".join(f"DELETE FROM {table} WHERE false;" for table in used)
    return f"""
        {tables_first}
        SET LOCAL lock_timeout = 1;
        DO $$
        DECLARE
            kinds bigint[] := {kinds};
            seqs bigint[] := {seqs};
            ids bigint[] := {ids};
            found text := '';
            locked integer := 0;
        BEGIN
            FOR i IN 1 .. cardinality(seqs) LOOP
                BEGIN
                    IF locked >= {CERTAIN_ROWS:d} THEN
                        RAISE lock_not_available;
                    END IF;
                    {deletes}
                EXCEPTION WHEN lock_not_available THEN
                    locked := locked + 1;
                    found := found || (i - 1) || ' ';
                END;
            END LOOP;
            PERFORM set_config('orthia.locked', found, true);
        END $$;
        SELECT current_setting('orthia.locked')
    """
