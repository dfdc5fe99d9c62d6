"""Messages that cannot be read end no job: it says how many there are, which, what of them."""

from pathlib import Path

import pytest
from click.testing import Result

from orthia.broker.node.exit_codes import ExitCode
from orthia.journal import Message, encode_message
from orthia.journal.model.unit import Unit
from tests.cli.conftest import Run, run
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore, payload
from tests.pipeline.support import answer, with_queues

__all__ = ["run"]

pytestmark = [
    pytest.mark.extended,
    pytest.mark.parametrize("server", ["sqlite"], indirect=True),
    pytest.mark.usefixtures("spark"),
]
REASON = "its checksum does not match"


@pytest.fixture
def url(store: SqlJournalStore) -> str:
    """Give a store with a good message, one that never expires in a calendar, and two bad ones."""
    journal = with_queues(store)
    late = Message("orders", b"", b"late", 1_700_000_000_000, 9_999_999_999_999_999, 4)
    unit = Unit()
    unit.add_message([QUEUE], payload("good"))
    unit.add_message([QUEUE], encode_message(late))
    unit.add_message([QUEUE], payload("bad"))
    unit.add_message([OTHER_QUEUE], payload("bad"))
    journal.append_unit(unit)
    store.settle(journal)
    for seq in sorted(store.rows())[2:]:
        store.spoil(seq, payload("bad")[:-1] + b"x")
    return store.settings.jdbc_connection_url.display


def test_a_replay_says_what_it_leaves_out(run: Run, url: str) -> None:
    """Of the queue it was asked for; what cannot be told by the condition is told of, too."""
    arguments = ("pipeline", "replay", "--url", url, "--queue", "orders", "--to", "/queue/x", "-q")
    found = answer(run(*arguments, "--json"))
    assert (found["messages"], found["corrupt"]) == (2, 1)
    (left_out,) = found["corrupt_listed"]
    assert (left_out["queue"], left_out["corrupt"]) == ("orders", REASON)
    shown = run(*arguments, "--where", "body_size > 0").stdout
    assert "Messages that cannot be read: 1" in shown
    assert "They are left out" in shown
    for where in ("no_such_column > 5", "size >"):
        wrong = run(*arguments, "--where", where)
        assert (wrong.exit_code, "--where" in wrong.stderr) == (ExitCode.USAGE, True)


def test_traffic_counts_and_names_them(run: Run, url: str) -> None:
    """They wait in their queues as others do."""
    found = answer(run("pipeline", "traffic", "--url", url, "--json", "-q"))
    assert {row["queue"]: row["messages"] for row in found["queues"]} == {"audit": 1, "orders": 3}
    assert found["corrupt"] == 2
    assert [row["corrupt"] for row in found["corrupt_listed"]] == [REASON] * 2
    assert "They count, with no bytes" in run("pipeline", "traffic", "--url", url, "-q").stdout


def test_a_stream_counts_them_and_takes_the_queue_it_was_asked_for(
    run: Run, url: str, tmp_path: Path
) -> None:
    """The condition is the same in every run with its checkpoint."""
    to, checkpoint = tmp_path / "to", tmp_path / "checkpoint"
    stream = ("pipeline", "stream", "--url", url, "--to", to, "--checkpoint", checkpoint, "-q")
    arguments = (*stream, "--available-now", "--json")

    def streamed() -> Result:
        while True:
            result = run(*arguments, "--queue", "orders")
            if "too busy" not in result.stderr:
                return result

    found = answer(streamed())
    assert (found["rows"], found["corrupt"]) == (3, 1)
    assert streamed().stdout == ""
    other = run(*arguments)
    assert (other.exit_code, "is of orders" in other.stderr) == (ExitCode.USAGE, True)
    for wrong in (("--until", "1m"), ("--table", "failover-log", "--queue", "a")):
        assert run(*stream, *wrong).exit_code == ExitCode.USAGE
