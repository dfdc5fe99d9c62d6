"""For tests of applications that send by SQL: what a transaction sends, before it is committed.

    with connection.cursor() as cursor:
        place_order(cursor, 4711)
        assert_sent(cursor, ("/queue/orders", b'{"id": 4711}'))

Works with any cursor of Python's DB-API: of a driver, of Django's ``connection.cursor()``, or of
SQLAlchemy's ``session.connection().connection.cursor()``. Needs the right to SELECT from the
outbox, and a store whose nodes do not run, or a transaction that is not committed: a row goes once
it is sent.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple, Protocol

TABLE = "ORTHIA_OUTBOX"
"""``outbox-table-name``; without quotes, so in the case that each DBMS gives it."""


class _Cursor(Protocol):
    """A cursor of Python's DB-API, as far as it is needed here."""

    def execute(self, operation: str, /) -> object:
        """Execute a statement."""

    def fetchall(self) -> Sequence[Sequence[object]]:
        """Return all rows of the last statement."""


class SentMessage(NamedTuple):
    """A message that is sent once its transaction is committed."""

    destination: str
    body: bytes
    headers: dict[str, object]


def sent(cursor: _Cursor, table: str = TABLE) -> list[SentMessage]:
    """Return what the transaction of ``cursor`` and those before it send, in order.

    Raises the driver's error, and ValueError for headers that are no JSON object.
    """
    cursor.execute(f"SELECT destination, body, headers FROM {table} ORDER BY id")  # noqa: S608
    return [
        SentMessage(str(destination), _bytes(body), _headers(headers))
        for destination, body, headers in cursor.fetchall()
    ]


def assert_sent(
    cursor: _Cursor,
    *expected: SentMessage | tuple[str, bytes] | tuple[str, bytes, dict[str, object]],
    table: str = TABLE,
) -> None:
    """Raise AssertionError unless exactly these messages are sent, in this order.

    A message without headers is expected with any.
    """
    found = sent(cursor, table)
    is_as_expected = len(found) == len(expected) and all(
        tuple(message[: len(one)]) == tuple(one)
        for message, one in zip(found, expected, strict=True)
    )
    if not is_as_expected:
        wanted = "".join(f"\n  {tuple(one)}" for one in expected) or " nothing"
        got = "".join(f"\n  {tuple(one)}" for one in found) or " nothing"
        raise AssertionError(f"expected to be sent:{wanted}\nbut sent is:{got}")


def _bytes(body: object) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    return str(body).encode()


def _headers(headers: object) -> dict[str, object]:
    if headers is None:
        return {}
    found = json.loads(str(headers))
    if not isinstance(found, dict):
        raise ValueError(f"headers are to be a JSON object, not {headers}")  # noqa: TRY004
    return found
