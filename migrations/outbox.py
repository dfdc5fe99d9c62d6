"""What the outbox refuses, and the functions by which applications send.

A row that breaks a constraint fails in the application's own transaction, whichever way it comes.
What no constraint can say, the relay finds: such a row becomes a dead letter.
"""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated, and constants)

from typing import Final

from orthia.config.outbox import (
    KNOWN_HEADERS,
    MAX_BODY_BYTES,
    OUTBOX_LOCK,
    REFUSED_HEADERS,
    RESERVED_PREFIXES,
    send_function,
)
from orthia.database import Dialect

_PREFIX: Final = "^/(queue|topic|remote-temp-queue|remote-temp-topic)/"
_TEMPORARY: Final = "^/temp-(queue|topic)/"
_CONTROL: Final = r"\x01-\x1f\x7f"


def outbox_checks(dialect: Dialect) -> dict[str, str]:
    """Return the constraints of the table, by the ends of their names."""
    match dialect:
        case Dialect.POSTGRESQL:
            return {
                "DESTINATION": _postgresql_destination("destination"),
                "HEADERS": "headers IS NULL OR (json_typeof(headers::json) = 'object'"
                f" AND NOT jsonb_path_exists(headers::jsonb, '{_json_path()}'))",
                "BODY": f"octet_length(body) <= {MAX_BODY_BYTES:d}",
            }
        case Dialect.MYSQL:
            return {
                "DESTINATION": f"destination NOT REGEXP '{_PREFIX}?$'"
                f" AND destination NOT REGEXP '{_TEMPORARY}'"
                " AND destination NOT REGEXP '^ | $' AND CHAR_LENGTH(destination) > 0",
                "HEADERS": "headers IS NULL OR (JSON_VALID(headers)"
                f" AND JSON_TYPE(headers) = 'OBJECT' AND {_mysql_names()})",
                "BODY": f"LENGTH(body) <= {MAX_BODY_BYTES:d}",
            }
        case Dialect.SQLITE:
            return {
                "DESTINATION": "length(trim(destination)) > 0"
                " AND length(trim(destination)) = length(destination)"
                " AND destination NOT IN ('/queue/', '/topic/')",
                "HEADERS": "headers IS NULL OR (json_valid(headers)"
                " AND json_type(headers) = 'object')",
                "BODY": f"length(body) <= {MAX_BODY_BYTES:d}",
            }


def outbox_functions(dialect: Dialect, table: str) -> list[str]:
    """Return the statements that make the functions beside the table of this name."""
    match dialect:
        case Dialect.POSTGRESQL:
            made = [_wake(table), *_send(table)]
            return [one.replace(";\n", "; ") for one in made]  # one statement for whoever splits
        case Dialect.MYSQL:
            name = send_function(table)
            return [
                f"DROP PROCEDURE IF EXISTS `{name}`",
                f"CREATE PROCEDURE `{name}` (IN destination VARCHAR(1024), IN body LONGBLOB,"
                " IN headers LONGTEXT) MODIFIES SQL DATA SQL SECURITY DEFINER"
                f" INSERT INTO `{table}` (destination, headers, body)"
                " VALUES (destination, headers, body)",
            ]
        case Dialect.SQLITE:
            return []


# --- PostgreSQL


def _postgresql_destination(text: str) -> str:
    """Return the condition that a text may be a destination, but for the length of its names."""
    return (
        f"{text} !~ '{_PREFIX}?$' AND {text} !~ '{_TEMPORARY}' AND {text} !~ '(^| )$'"
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


def _in_schema(definition: str) -> str:
    """Return a statement that makes a function of the schema in which tables are made.

    It is known where it runs: a script that is printed may run anywhere.
    """
    return (
        f"DO $do$ BEGIN EXECUTE replace($def${definition}$def$, '@SCHEMA@',"
        " quote_ident(current_schema()));\nEND $do$"
    )


def _wake(table: str) -> str:
    """Return what wakes a reader that sleeps: see ``orthia.journal.sql.outbox``."""
    return _in_schema(
        f"""CREATE OR REPLACE FUNCTION @SCHEMA@.{table}_wake() RETURNS trigger
        LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$ BEGIN
            IF NOT pg_try_advisory_xact_lock_shared({OUTBOX_LOCK:d}, TG_RELID::int) THEN
                PERFORM pg_notify('{table}', '');
            END IF;
            RETURN NULL;
        END $f$;
        DROP TRIGGER IF EXISTS {table}_wake ON @SCHEMA@."{table}";
        CREATE TRIGGER {table}_wake AFTER INSERT ON @SCHEMA@."{table}"
            FOR EACH STATEMENT EXECUTE FUNCTION @SCHEMA@.{table}_wake()"""
    )


def _send(table: str) -> list[str]:
    """Return the functions that send: of texts and bytes, with headers as a text or as jsonb."""
    name = send_function(table)
    secured = "SECURITY DEFINER SET search_path = pg_catalog, pg_temp"
    no_null = "null_value_not_allowed"
    fails = f"RAISE EXCEPTION USING MESSAGE = '{name}, ' || "
    invalid = "ERRCODE = 'invalid_parameter_value'"
    main = f"""CREATE OR REPLACE FUNCTION @SCHEMA@.{name}(
            destination text, body bytea, headers text DEFAULT NULL) RETURNS bigint
        LANGUAGE plpgsql {secured} AS $f$
        DECLARE
            one text;
            said jsonb;
            sent bigint;
        BEGIN
            IF destination IS NULL OR body IS NULL THEN
                {fails}CASE WHEN body IS NULL THEN 'body' ELSE 'destination' END || ': is null',
                    ERRCODE = '{no_null}';
            END IF;
            FOREACH one IN ARRAY CASE WHEN position(',/' IN destination) > 0
                    THEN string_to_array(destination, ',') ELSE ARRAY[destination] END LOOP
                IF NOT ({_postgresql_destination("one")}) OR length(destination) > 1024
                    OR regexp_replace(one, '{_PREFIX}', '') ~ '(^|::)(::|$)'
                    OR length(split_part(regexp_replace(one, '{_PREFIX}', ''), '::', 1)) > 255
                    OR length(split_part(one, '::', 2)) > 255 THEN
                    {fails}'destination ' || quote_literal(left(destination, 300))
                        || ' is not valid: expected /queue/NAME, /topic/NAME or NAME, of 1 to 255'
                        || ' printable characters', {invalid};
                END IF;
            END LOOP;
            IF octet_length(body) > {MAX_BODY_BYTES:d} THEN
                {fails}'body: has ' || octet_length(body) || ' bytes, expected at most'
                    || ' {MAX_BODY_BYTES:d}', ERRCODE = 'program_limit_exceeded';
            END IF;
            IF headers IS NOT NULL THEN
                BEGIN
                    said := headers::jsonb;
                EXCEPTION WHEN data_exception THEN
                    {fails}'headers: ' || SQLERRM, {invalid};
                END;
                IF jsonb_typeof(said) <> 'object' THEN
                    {fails}'headers: expected a JSON object', {invalid};
                END IF;
                SELECT h ->> 'key' INTO one
                    FROM jsonb_path_query(said, '{_json_path()}') AS h LIMIT 1;
                IF FOUND THEN
                    {fails}'header ' || quote_literal(left(one, 80)) || ': is reserved and not'
                        || ' known, or set by the broker, or no text, number or truth value',
                        {invalid};
                END IF;
            END IF;
            INSERT INTO @SCHEMA@."{table}" (destination, headers, body)
                VALUES (destination, headers, body) RETURNING "{table}".id INTO sent;
            RETURN sent;
        END $f$"""
    made = [main]
    kinds = ("bytea, text", "text, text", "bytea, jsonb", "text, jsonb")
    for kind in kinds[1:]:
        body_type, headers_type = kind.split(", ")
        body = "body" if body_type == "bytea" else "convert_to(body, 'UTF8')"
        headers = "headers" if headers_type == "text" else "headers::text"
        default = " DEFAULT NULL" if headers_type == "text" else ""
        made.append(
            f"""CREATE OR REPLACE FUNCTION @SCHEMA@.{name}(
                destination text, body {body_type}, headers {headers_type}{default}) RETURNS bigint
            LANGUAGE sql {secured} AS $f$
                SELECT @SCHEMA@.{name}(destination, {body}, {headers}) $f$"""
        )
    return [
        *map(_in_schema, made),
        *(
            _in_schema(f"REVOKE ALL ON FUNCTION @SCHEMA@.{name}(text, {kind}) FROM PUBLIC")
            for kind in kinds
        ),
    ]


# --- MySQL, MariaDB


def _mysql_names() -> str:
    """Return the condition that there is no header that a row may not have."""
    keys = "CONVERT(JSON_KEYS(headers) USING utf8mb4) COLLATE utf8mb4_bin"
    known = "|".join(one for one in KNOWN_HEADERS if one.startswith(RESERVED_PREFIXES))
    others = f"REGEXP_REPLACE({keys}, '\"({known})\"', '')"
    reserved, refused = "|".join(RESERVED_PREFIXES), "|".join(REFUSED_HEADERS)
    return f"{others} NOT REGEXP '\"(({reserved})|({refused})\")'"
