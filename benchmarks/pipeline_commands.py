"""What a command of the pipeline costs on a small pair, from its start to its end.

    python -m benchmarks.pipeline_commands --messages 5000 --events 10000

Each command is a process of its own, with Java, on a private PostgreSQL that has ``--messages``
messages in ten queues, as many rows of history, and ``--events`` events of one pair. Printed are
the seconds of the clock until the end and until the first word on standard error, those of the
processor of the whole process tree (but not PostgreSQL's), and Spark's jobs, stages and tasks, as
its event log has them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import MetaData, insert, text

from benchmarks.pipeline_data import failover_entries, fill_journal
from orthia import migrations
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.nodemanager.failover_log import Entry
from orthia.nodemanager.tables import failover_log
from orthia.pipeline.sources.store import PASSWORD_VARIABLE
from tests.support.servers import PASSWORD, USER, PostgresqlServer

_COUNTED = {
    "SparkListenerJobStart": "jobs",
    "SparkListenerStageCompleted": "stages",
    "SparkListenerTaskEnd": "tasks",
}
_COMMANDS: dict[str, tuple[str, ...]] = {
    "failovers": ("failovers", "--json"),
    "failovers of 30": ("failovers", "--json"),
    "audit": ("audit", "--json"),
    "audit --history": ("audit", "--history", "--json"),
    "traffic": ("traffic", "--json"),
    "traffic --history": ("traffic", "--history", "--json"),
    "export": ("export", "--json"),
}


def fill(settings: DatabaseStoreSettings, messages: int, entries: Sequence[Entry]) -> None:
    """Make a store with a journal, its history and a failover log."""
    database = Database.from_settings(settings)
    migrations.upgrade(database, settings)
    fill_journal(database, settings, messages)
    history, table = settings.message_history_table_name, settings.message_table_name
    kept = text(
        f"INSERT INTO {history} (seq, id, queue_id, epoch, written_at, removed_at, reason, size,"
        " record) SELECT seq + 100000, id + 100000, queue_id, epoch, written_at,"
        f" written_at + interval '1 minute', 'acknowledged', LENGTH(record), record FROM {table}"
    )
    log = failover_log(MetaData(), settings.failover_log_table_name, database.dialect)
    with database.engine.begin() as connection:
        connection.execute(kept)
        connection.execute(insert(log), [_row(entry) for entry in entries])
    database.dispose()


def _row(entry: Entry) -> dict[str, object]:
    same = ("db_time", "node_id", "node_name", "holder_id", "role", "code", "level", "event")
    return {
        **{name: getattr(entry, name) for name in (*same, "token", "event_seq")},
        "node_time": entry.node_time.isoformat(),
        "lock_name": entry.lock,
        "detail": entry.to_json(),
    }


def run(arguments: Sequence[str], environment: dict[str, str], log: Path) -> None:
    """Run one command, and print what it cost."""
    log.mkdir()
    settings = {"enabled": "true", "dir": log.as_uri(), "compress": "false"}
    conf = [
        part for name in settings for part in ("--conf", f"spark.eventLog.{name}={settings[name]}")
    ]
    command = [sys.executable, "-m", "orthia.broker.cli", "pipeline", *arguments, *conf]
    result = log.with_suffix(".json")
    subprocess.run(
        [sys.executable, "-m", "benchmarks.process_tree", str(result), *command],
        env=environment,
        check=True,
    )
    cost = json.loads(result.read_text())
    counts = _counts(log)
    told = " ".join(f"{counts[name]:4} {name}" for name in _COUNTED.values())
    print(
        f"{' '.join(arguments[:2]):20} exit {cost['code']} {cost['seconds']:6.1f} s, first word"
        f" after {cost['first_word']:4.1f} s, {cost['processor']:6.1f} s of processor time,"
        f" {cost['workers']:4.1f} of Python workers, {told}",
        flush=True,
    )
    if cost["code"]:
        print(cost["said"], file=sys.stderr)


def _counts(log: Path) -> Counter[str]:
    found = Counter[str]()
    for path in log.rglob("events_*"):
        for line in path.read_text().splitlines():
            name = _COUNTED.get(json.loads(line)["Event"])
            if name is not None:
                found[name] += 1
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=_COMMANDS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, PostgresqlServer() as server:
        urls = {}
        for events in (arguments.events, 30):
            settings = server.settings(server.create_database(), jdbc_network_timeout=60_000)
            fill(settings, arguments.messages, list(failover_entries(events, 1))[:events])
            at = settings.jdbc_connection_url.sqlalchemy_url
            urls[events] = f"postgresql://{USER}@{at.host}:{at.port}/{at.database}"
        environment = {**os.environ, PASSWORD_VARIABLE: PASSWORD}
        for number in range(arguments.rounds):
            for name in arguments.only or _COMMANDS:
                url = urls[30 if name.endswith("30") else arguments.events]
                place = Path(directory) / f"{number}-{name.replace(' ', '-')}"
                to = ("--to", f"{place}.export") if name == "export" else ()
                run([*_COMMANDS[name], "--url", url, *to], environment, place)


if __name__ == "__main__":
    main()
