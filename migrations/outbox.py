"""What the outbox refuses, and the functions by which applications send.

A row that breaks a constraint fails in the application's own transaction, whichever way it comes.
What no constraint can say, the relay finds: such a row becomes a dead letter.
"""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated, and constants)

import string
from itertools import product
from typing import Final

from orthia.config.outbox import (
    KNOWN_HEADERS,
    MAX_BODY_BYTES,
    MAX_HEADERS_BYTES,
    OUTBOX_LOCK,
    REFUSED_HEADERS,
    RESERVED_PREFIXES,
    send_function,
)
from orthia.database import Dialect

IF_NOT_EXISTS: Final = "/*!80029 IF NOT EXISTS */ /*M!100103 IF NOT EXISTS */"
"""For the versions of MySQL and of MariaDB that know it. Never DROP: that takes the rights to use a
procedure from the applications that have them."""
_PREFIX: Final = "^/(queue|topic|remote-temp-queue|remote-temp-topic)/"
_TEMPORARY: Final = "^/temp-(queue|topic)/"
_CONTROL: Final = r"\x01-\x1f\x7f"
_PLAIN: Final = f"{string.ascii_letters}{string.digits}._-/"
"""The characters of nearly every destination."""
_PLAIN_DESTINATION: Final = (
    f"length(destination) <= 200 AND ltrim(destination, '{_PLAIN}') = '' AND destination"
    " NOT IN ('', '/queue/', '/topic/') AND left(destination, 6) <> '/temp-'"
)
"""The condition that PostgreSQL finds one of those."""


def outbox_checks(dialect: Dialect, table: str) -> dict[str, str]:
    """Return the constraints of the table, by the ends of their names."""
    match dialect:
        case Dialect.POSTGRESQL:
            # PostgreSQL reads the text of a constraint for each statement: a long one takes longer
            # than all the rest of the insert.
            return {"CHECK": f"{table}_check(destination, headers, body)"}
        case Dialect.MYSQL:
            return {
                "DESTINATION": "destination NOT IN ('', '/queue/', '/topic/')"
                " AND LEFT(destination, 1) <> ' ' AND RIGHT(destination, 1) <> ' '"
                " AND LEFT(destination, 12) NOT IN ('/temp-queue/', '/temp-topic/')",
                "HEADERS": f"headers IS NULL OR (LENGTH(headers) <= {MAX_HEADERS_BYTES:d}"
                " AND JSON_VALID(headers)"
                f" AND JSON_TYPE(headers) = 'OBJECT' AND CASE WHEN {_suspect('INSTR')}"
                f" THEN {_mysql_names()} ELSE TRUE END)",
                "BODY": f"LENGTH(body) <= {MAX_BODY_BYTES:d}",
            }
        case Dialect.SQLITE:
            return {
                "DESTINATION": "length(trim(destination)) > 0"
                " AND length(trim(destination)) = length(destination)"
                " AND destination NOT IN ('/queue/', '/topic/')",
                "HEADERS": "headers IS NULL OR"
                f" (length(CAST(headers AS BLOB)) <= {MAX_HEADERS_BYTES:d} AND json_valid(headers)"
                " AND json_type(headers) = 'object')",
                "BODY": f"length(body) <= {MAX_BODY_BYTES:d}",
            }


def _suspect(find: str) -> str:
    """Return the condition that headers have to be looked at one by one, which few have.

    They have a name that is refused or begins like a reserved one, or a value that has parts or is
    null. ``find`` is the function that finds one text in another.
    """
    beginnings = [*RESERVED_PREFIXES, *(f'{one}"' for one in REFUSED_HEADERS)]
    found = [f"{find}(headers, '\"{one}') > 0" for one in beginnings]
    found += [f"{find}(substr(headers, 2), '{one}') > 0" for one in ("{", "[", "null")]
    return " OR ".join(found)


def before_outbox(dialect: Dialect, table: str) -> list[str]:
    """Return the statements that make what the table's constraints need."""
    return [_joined(_check(table))] if dialect is Dialect.POSTGRESQL else []


def outbox_functions(dialect: Dialect, table: str) -> list[str]:
    """Return the statements that make the functions beside the table of this name."""
    match dialect:
        case Dialect.POSTGRESQL:
            return [_joined(one) for one in (_wake(table), *_send(table))]
        case Dialect.MYSQL:
            name = send_function(table)
            return [
                f"CREATE PROCEDURE {IF_NOT_EXISTS} `{name}` (IN destination VARCHAR(1024),"
                " IN body LONGBLOB, IN headers LONGTEXT) MODIFIES SQL DATA SQL SECURITY DEFINER"
                f" INSERT INTO `{table}` (destination, headers, body)"
                " VALUES (destination, headers, body)",
            ]
        case Dialect.SQLITE:
            return []


# --- PostgreSQL


def _postgresql_destination(text: str) -> str:
    """Return the condition that a text may be a destination, but for the length of its names."""
    return (
        f"{text} !~ '{_PREFIX}$' AND {text} !~ '{_TEMPORARY}' AND {text} !~ '(^| )$'"
        f" AND {text} !~ '^ ' AND {text} !~ '[{_CONTROL}]'"
    )


def _json_path() -> str:
    """Return the path to headers that a row may not have."""
    reserved = " || ".join(f'@.key starts with "{one}"' for one in RESERVED_PREFIXES)
    known = " || ".join(
        f'@.key == "{one}"' for one in KNOWN_HEADERS if one.startswith(RESERVED_PREFIXES)
    )
    refused = " || ".join(f'@.key == "{one}"' for one in REFUSED_HEADERS)
    kinds = " || ".join(f'@.value.type() == "{one}"' for one in ("null", "array", "object"))
    return f"$.keyvalue() ? ((({reserved}) && !({known})) || {refused} || {kinds})"


def _joined(statement: str) -> str:
    """Return a statement that is one to whoever splits a script where a line ends with ``;``."""
    return statement.replace(";\n", "; ")


def _in_schema(definition: str) -> str:
    """Return a statement that makes a function of the schema in which tables are made.

    It is known where it runs: a script that is printed may run anywhere.
    """
    return (
        f"DO $do$ BEGIN EXECUTE replace($def${definition}$def$, '@SCHEMA@',"
        " quote_ident(current_schema()));\nEND $do$"
    )


def _wake(table: str) -> str:
    """Return what wakes a reader that sleeps: see ``orthia.journal.sql.outbox``.

    Whether it does is asked in the trigger's condition: to call a function for each statement
    would cost several times as much.
    """
    lock = f"{OUTBOX_LOCK:d}, '@SCHEMA@.\"{table}\"'::regclass::oid::int"
    return _in_schema(
        f"""CREATE OR REPLACE FUNCTION @SCHEMA@.{table}_wake() RETURNS trigger
        LANGUAGE plpgsql AS $f$ BEGIN
            PERFORM pg_catalog.pg_notify('{table}', '');
            RETURN NULL;
        END $f$;
        DROP TRIGGER IF EXISTS {table}_wake ON @SCHEMA@."{table}";
        CREATE TRIGGER {table}_wake AFTER INSERT ON @SCHEMA@."{table}" FOR EACH STATEMENT
            WHEN (NOT pg_catalog.pg_try_advisory_xact_lock_shared({lock}))
            EXECUTE FUNCTION @SCHEMA@.{table}_wake()"""
    )


def _check(table: str) -> str:
    """Return the function that refuses a row; others are refused by the types of the columns.

    It runs with the ``search_path`` of who inserts, and so, perhaps, with functions of theirs: only
    what would harm others if it came into the table, a body of any length, says which it means. The
    relay looks at the rest once more. A ``search_path`` of its own costs a tenth of the insert.

    PostgreSQL prepares each expression of a function anew in each transaction, which costs more
    than to evaluate it: one expression accepts nearly all rows, and only others reach the rest.
    """
    fails = f"RAISE EXCEPTION USING MESSAGE = '{table}, ' || "
    invalid = "ERRCODE = 'invalid_parameter_value'"
    return _in_schema(
        f"""CREATE OR REPLACE FUNCTION @SCHEMA@.{table}_check(
            destination text, headers text, body bytea) RETURNS boolean
        LANGUAGE plpgsql IMMUTABLE AS $f$
        DECLARE
            one text;
        BEGIN
            IF {_fits("body", MAX_BODY_BYTES)} AND {_PLAIN_DESTINATION}
                AND (headers IS NULL OR {_fits("headers", MAX_HEADERS_BYTES)}
                    AND {_plain_headers()}) THEN
                RETURN true;
            END IF;
            IF NOT {_fits("body", MAX_BODY_BYTES)} THEN
                {fails}'body: has ' || octet_length(body) || ' bytes, expected at most'
                    || ' {MAX_BODY_BYTES:d}', ERRCODE = 'program_limit_exceeded';
            END IF;
            IF NOT {_fits("headers", MAX_HEADERS_BYTES)} THEN
                {fails}'headers: have ' || octet_length(headers) || ' bytes, expected at most'
                    || ' {MAX_HEADERS_BYTES:d}', ERRCODE = 'program_limit_exceeded';
            END IF;
            FOREACH one IN ARRAY CASE WHEN position(',/' IN destination) > 0
                    THEN string_to_array(destination, ',') ELSE ARRAY[destination] END LOOP
                IF NOT ({_postgresql_destination("one")})
                    OR regexp_replace(one, '{_PREFIX}', '') ~ '(^|::)(::|$)'
                    OR length(split_part(regexp_replace(one, '{_PREFIX}', ''), '::', 1)) > 255
                    OR length(split_part(one, '::', 2)) > 255 THEN
                    {fails}'destination ' || quote_literal(left(destination, 300))
                        || ': expected /queue/NAME, /topic/NAME or NAME, of 1 to 255 printable'
                        || ' characters', {invalid};
                END IF;
            END LOOP;
            IF json_typeof(headers::json) <> 'object' THEN
                {fails}'headers: expected a JSON object', {invalid};
            END IF;
            IF {_suspect("strpos")} THEN
                SELECT h ->> 'key' INTO one
                    FROM jsonb_path_query(headers::jsonb, '{_json_path()}') AS h LIMIT 1;
                IF FOUND THEN
                    {fails}'header ' || quote_literal(left(one, 80)) || ': is reserved and not'
                        || ' known, or set by the broker, or no text, number or truth value',
                        {invalid};
                END IF;
            END IF;
            RETURN true;
        END $f$"""
    )


def _fits(column: str, most: int) -> str:
    """Return the condition that a column has at most so many bytes, whatever functions others have.

    It is null where the column is.
    """
    return f"pg_catalog.octet_length({column}) OPERATOR(pg_catalog.<=) {most:d}"


def _plain_headers() -> str:
    """Return the condition that headers are an object of which nothing has to be looked at alone.

    Others may be right, too: with names like the reserved ones, white space in front, or escapes.
    """
    unwanted = (*(f"'{one}'" for one in (*RESERVED_PREFIXES, "null", "[")), r"E'\\'")
    found = " AND ".join(f"strpos(headers, {one}) = 0" for one in unwanted)
    refused = "{" + ",".join(REFUSED_HEADERS) + "}"
    return (
        f"strpos(headers, '{{') = 1 AND strpos(substr(headers, 2), '{{') = 0 AND {found}"
        f" AND NOT headers::jsonb ?| '{refused}'"
    )


def _send(table: str) -> list[str]:
    """Return the functions that send: of texts and bytes, with headers as a text or as jsonb."""
    name = send_function(table)
    made: list[str] = []
    for body_type, headers_type in product(("bytea", "text"), ("text", "jsonb")):
        body = "body" if body_type == "bytea" else "convert_to(body, 'UTF8')"
        headers = "headers" if headers_type == "text" else "headers::text"
        default = " DEFAULT NULL" if headers_type == "text" else ""
        made += [
            f"""CREATE OR REPLACE FUNCTION @SCHEMA@.{name}(
                destination text, body {body_type}, headers {headers_type}{default}) RETURNS bigint
            LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $f$
            DECLARE
                sent bigint;
            BEGIN
                INSERT INTO @SCHEMA@."{table}" (destination, headers, body)
                    VALUES (destination, {headers}, {body}) RETURNING "{table}".id INTO sent;
                RETURN sent;
            END $f$""",
            f"REVOKE ALL ON FUNCTION @SCHEMA@.{name}(text, {body_type}, {headers_type})"
            " FROM PUBLIC",
        ]
    return [_in_schema(one) for one in made]


# --- MySQL, MariaDB


def _mysql_names() -> str:
    """Return the condition that there is no header that a row may not have."""
    keys = "CONVERT(JSON_KEYS(headers) USING utf8mb4) COLLATE utf8mb4_bin"
    known = "|".join(one for one in KNOWN_HEADERS if one.startswith(RESERVED_PREFIXES))
    others = f"REGEXP_REPLACE({keys}, '\"({known})\"', '')"
    reserved, refused = "|".join(RESERVED_PREFIXES), "|".join(REFUSED_HEADERS)
    return f"{others} NOT REGEXP '\"(({reserved})|({refused})\")'"
