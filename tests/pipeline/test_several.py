"""Several pairs of one file in one session of Spark: a report of each, or why there is none."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click import UsageError

from orthia.broker.cli.pipeline.several import NamedStore, Unread, read_pairs
from tests.cli.conftest import Run, run
from tests.journal.support import SqlJournalStore
from tests.pipeline.support import answer, with_queues
from tests.support.servers import SqliteServer

__all__ = ["run"]

Pairs = Callable[[str], Path]


@pytest.fixture
def pairs(tmp_path: Path) -> Pairs:
    """Give a function that writes a file of pairs."""

    def write(text: str) -> Path:
        file = tmp_path / "pairs.txt"
        file.write_text(text)
        return file

    return write


def a_store(directory: Path, name: str, *texts: str) -> SqlJournalStore:
    """Make a store with a queue ``orders`` that has these messages."""
    directory.mkdir(exist_ok=True)
    store = SqlJournalStore(SqliteServer(directory).settings(name))
    journal = with_queues(store)
    store.append(journal, *texts)
    journal.close(drain=True)
    return store


def test_a_file_of_pairs_names_stores_beside_it(pairs: Pairs, tmp_path: Path) -> None:
    """Comments and empty lines say nothing; what is wrong with one store is told of that one."""
    file = pairs("# mine\n\neu = sqlite:///eu.db\nus=us/broker.xml\n")
    first, second = read_pairs(file)
    assert isinstance(first, NamedStore)
    assert first.settings.jdbc_connection_url.sqlite_path == tmp_path / "eu.db"  # type: ignore[union-attr]
    assert isinstance(second, Unread)
    assert "us/broker.xml" in second.error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eu\n", "line 1: 'eu' is not NAME=STORE"),
        ("\n../eu=sqlite:///a.db\n", "line 2: .* is not NAME=STORE"),
        ("eu=sqlite:///a.db\neu=sqlite:///b.db\n", "line 2: there are two pairs 'eu'"),
        ("# none\n", "names no pair"),
    ],
)
def test_a_line_that_names_no_pair_is_refused(pairs: Pairs, text: str, said: str) -> None:
    """By its number: a report would lack it, and an export might be written elsewhere."""
    with pytest.raises(UsageError, match=said):
        read_pairs(pairs(text))


@pytest.mark.extended
@pytest.mark.usefixtures("spark")
def test_each_pair_is_answered_and_what_is_out_of_reach_is_named(
    run: Run, pairs: Pairs, tmp_path: Path
) -> None:
    """Traffic, audit and export of three pairs, one of which is not there: exit code 69."""
    a_store(tmp_path, "eu.db", "one", "two").close()
    damaged = a_store(tmp_path, "us.db", "three")
    (seq,) = damaged.rows()
    damaged.spoil(seq, b"?")
    damaged.close()
    file = pairs("eu=sqlite:///eu.db\ngone=sqlite:///gone.db\nus=sqlite:///us.db\n")

    def told(*command: object) -> dict[str, dict[str, object]]:
        result = run("pipeline", *command, "--pairs", file, "--json", "-q")
        assert "gone is not in the report: there is no database" in result.stderr
        found = {one["pair"]: one for one in answer(result, 69)["pairs"]}
        assert "there is no database" in str(found.pop("gone")["error"])
        assert [one["error"] for one in found.values()] == [None, None]
        return found

    traffic = told("traffic")
    assert [row["messages"] for row in traffic["eu"]["queues"]] == [2]  # type: ignore[attr-defined]
    assert traffic["us"]["corrupt"] == 1
    audit = told("audit")
    assert (audit["eu"]["sound"], audit["us"]["sound"]) == (True, False)
    out = tmp_path / "exported"
    assert told("export", "--to", out)["us"]["directory"] == str(out / "us")
    assert json.loads((out / "eu" / "_orthia.json").read_text())["messages"] == 2
    # An incremental run of each goes on where its own ended; a directory that exists is told of.
    again = run("pipeline", "export", "--pairs", file, "--to", out, "-q")
    assert again.exit_code == 69
    assert "eu is not in the report" in again.stderr
    whole = pairs("eu=sqlite:///eu.db\nus=sqlite:///us.db\n")
    assert run("pipeline", "audit", "--pairs", whole, "-q").exit_code == 1
    shown = run("pipeline", "traffic", "--pairs", whole, "-q")
    assert shown.exit_code == 0
    assert "Pair eu" in shown.stdout
    none = pairs("gone=sqlite:///gone.db\n")
    assert run("pipeline", "traffic", "--pairs", none, "-q").exit_code == 69


@pytest.mark.parametrize("command", ["audit", "traffic", "export --to out"])
def test_pairs_and_a_store_at_once_are_refused(run: Run, pairs: Pairs, command: str) -> None:
    """Neither is left out silently."""
    file = pairs("eu=sqlite:///eu.db\n")
    result = run("pipeline", *command.split(), "--pairs", file, "--url", "sqlite:///eu.db")
    assert result.exit_code == 64, result.output
    assert "or --pairs FILE" in result.stderr
