"""The database's clock, on each DBMS."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, bindparam, insert, select, text, update
from sqlalchemy.exc import StatementError

from orthia.database import (
    Database,
    UtcTimestamp,
    db_now,
    db_now_plus_ms,
    seconds_until,
    write_transaction,
)

INSTANT = datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=UTC)

moments = Table(
    "moments",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("at", UtcTimestamp()),
    Column("made", UtcTimestamp(), nullable=False, server_default=db_now()),
)


@pytest.fixture
def store(database: Database) -> Database:
    """Give a database with the table."""
    moments.metadata.create_all(database.engine)
    return database


def insert_at(store: Database, at: datetime | None) -> None:
    """Insert row 1 with this instant."""
    with write_transaction(store.engine, "insert") as connection:
        connection.execute(insert(moments).values(id=1, at=at))


@pytest.mark.parametrize("hours", [0, -7])
def test_an_instant_comes_back_to_the_microsecond(store: Database, hours: int) -> None:
    """What is written is read back equal, aware and in UTC, whatever zone it was sent in."""
    insert_at(store, INSTANT.astimezone(timezone(timedelta(hours=hours))))
    with store.engine.connect() as connection:
        read = connection.execute(select(moments.c.at)).scalar_one()
    assert read == INSTANT
    assert read.utcoffset() == timedelta(0)


def test_no_instant_is_null(store: Database) -> None:
    """None is NULL in both directions, and seconds until it are None."""
    insert_at(store, None)
    with store.engine.connect() as connection:
        row = connection.execute(select(moments.c.at, seconds_until(moments.c.at))).one()
    assert tuple(row) == (None, None)


def test_a_naive_datetime_is_refused(store: Database) -> None:
    """A datetime without a zone is no instant, and is not sent."""
    with pytest.raises(StatementError, match="no time zone"), store.engine.begin() as connection:
        connection.execute(insert(moments).values(id=1, at=datetime(2024, 1, 1)))  # noqa: DTZ001 - what is refused


def test_now_moves_inside_a_transaction(store: Database) -> None:
    """The clock goes on during a transaction, so that a lease taken late ends late."""
    with store.engine.begin() as connection:
        first = connection.execute(select(db_now())).scalar_one()
        seen = first
        while seen == first:
            seen = connection.execute(select(db_now())).scalar_one()
    assert seen > first


def test_now_is_utc_whatever_the_zone_of_the_session(store: Database) -> None:
    """The database's present agrees with this machine's, read as UTC, also in a default value."""
    insert_at(store, None)
    with store.engine.connect() as connection:
        now, made = connection.execute(select(db_now(), moments.c.made)).one()
    for instant in (now, made):
        assert abs(instant - datetime.now(UTC)) < timedelta(minutes=5)


@pytest.mark.parametrize("ms", [0, 1, 200, 20_000, -86_400_000])
def test_an_expiry_is_so_many_milliseconds_ahead(store: Database, ms: int) -> None:
    """db_now_plus_ms is db_now and that many milliseconds."""
    with store.engine.connect() as connection:
        before, ahead, after = connection.execute(
            select(db_now().label("a"), db_now_plus_ms(ms), db_now().label("b"))
        ).one()
    # The clock may tick between the expressions of one statement.
    slack = timedelta(seconds=5)
    assert before <= ahead - timedelta(milliseconds=ms) <= after + slack


def test_an_expiry_takes_a_bound_parameter(store: Database) -> None:
    """One prepared statement serves every expiration."""
    statement = select(seconds_until(db_now_plus_ms(bindparam("ms", type_=Integer))))
    with store.engine.connect() as connection:
        for ms in (1_500, 3_000):
            seconds = connection.execute(statement, {"ms": ms}).scalar_one()
            assert ms / 1000 - 1 < seconds <= ms / 1000 + 0.002


def test_expired_and_valid_leases_are_told_apart_by_the_database(store: Database) -> None:
    """A comparison with db_now in a WHERE clause finds what has passed and nothing else."""
    insert_at(store, None)
    for ms, expired in ((-5, True), (600_000, False)):
        with write_transaction(store.engine, "expire") as connection:
            connection.execute(update(moments).values(at=db_now_plus_ms(ms)))
            found = connection.execute(select(moments.c.id).where(moments.c.at < db_now())).all()
        assert bool(found) is expired


def test_seconds_until_a_past_instant_are_negative(store: Database) -> None:
    """What has passed is a negative number of seconds away, exactly enough to print."""
    insert_at(store, None)
    with write_transaction(store.engine, "expire") as connection:
        connection.execute(update(moments).values(at=db_now_plus_ms(-2_000)))
        seconds = connection.execute(select(seconds_until(moments.c.at))).scalar_one()
    assert -60 < seconds <= -1.999


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_sqlite_text_sorts_as_time_does(store: Database) -> None:
    """Every value has the same width, whether SQLite wrote it or Python did."""
    insert_at(store, datetime(2024, 1, 1, tzinfo=UTC))
    with store.engine.connect() as connection:
        row = connection.execute(text("SELECT at, made FROM moments")).one()
    assert row.at == "2024-01-01T00:00:00.000000Z"
    assert len(row.made) == len(row.at)
    assert row.made.endswith("000Z")
