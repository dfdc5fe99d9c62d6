"""``data print``, ``compact`` and ``recover``: the files of the journal, for an operator."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click

from orthia.broker.cli.data_transactions import transactions
from orthia.broker.cli.group import CommandGroup, example
from orthia.broker.cli.opening import check_started, check_stored, opened_locks
from orthia.broker.cli.privacy import private_files
from orthia.broker.cli.rendering import print_json, print_table
from orthia.broker.cli.settings_options import settings_options
from orthia.broker.node.exit_codes import ExitCode
from orthia.config.settings import Settings
from orthia.config.store_settings import FileStoreSettings
from orthia.journal.file.artemis import refuse_files_of_artemis
from orthia.journal.file.bodies import compare_bodies
from orthia.journal.file.inspect import inspect, list_large_references, read_fence
from orthia.journal.file.recovery import Contents, FoundFile, scan
from orthia.journal.file.tools import Compacted, compact, recover
from orthia.journal.model.records import RecordType, UserRecordType
from orthia.nodemanager.locks.maintenance import maintenance


def _file_store(settings: Settings) -> FileStoreSettings:
    check_stored(settings)
    store = settings.store
    if not isinstance(store, FileStoreSettings):
        raise click.UsageError(
            f"{settings.source} has a database-store, so there are no journal files; see"
            " `orthia queue list` and `orthia db`."
        )
    check_started(store)
    return store


@click.group(cls=CommandGroup, epilog=example("orthia data print --config broker.xml"))
def data() -> None:
    """Look after what the journal has stored: its files, and transactions in doubt."""


data.add_command(transactions)


@data.command("print", epilog=example("orthia data print --config broker.xml --records"))
@settings_options
@click.option("--records", is_flag=True, help="Print every record, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def print_(settings: Settings, *, records: bool, as_json: bool) -> None:
    """Show the files of the journal and what is in them; changes nothing.

    May be used beside a running node: each file is then shown as it was when it was read. Exit
    code 1 if anything is damaged.
    """
    store = _file_store(settings)
    fence = read_fence(store)
    contents = inspect(store)
    files = list(_files(contents))
    damaged = [
        f"{path}: {reason}" for _, listing in contents.listings for path, reason in listing.damaged
    ]
    large = compare_bodies(store.large_messages_directory, list_large_references(contents))
    damaged += [
        f"{large.directory}: the body {one.large_id} of message {one.seq} is missing"
        for one in large.missing
    ]
    if as_json:
        print_json(
            {
                "token": fence.token,
                "generation": fence.generation,
                "files": [_as_dict(contents, one, records=records) for one in files],
                "large_messages": {
                    "directory": str(large.directory),
                    "bodies": large.bodies,
                    "bytes": large.payload_bytes,
                    "unneeded": large.unneeded,
                },
                "damaged": damaged,
            }
        )
    else:
        click.echo(f"journal   {store.journal_directory}")
        click.echo(f"fence     token {fence.token}, generation {fence.generation}")
        click.echo(f"messages  {sum(queue is not None for _, queue in contents.messages.rows())}")
        click.echo(
            f"large     {large.bodies} bodies, {large.payload_bytes} bytes,"
            f" {len(large.unneeded)} of them needed by no message, in {large.directory}"
        )
        click.echo()
        print_table(
            ("file", "generation", "token", "ends", "records", "live", ""),
            (_row(contents, one) for one in files),
            right=(1, 2, 3, 4, 5),
        )
        for line in damaged:
            click.echo(f"damaged: {line}", err=True)
        if records:
            for one in files:
                click.echo()
                click.echo(one.path)
                print_table(
                    ("at", "record", "what", "seq", "id", "tx", "queue", "epoch", "bytes", ""),
                    (tuple(record.values()) for record in _records(one)),
                    right=(0, 3, 4, 5, 6, 7, 8),
                )
    if damaged or any(one.damages or one.unreadable for one in files):
        click.get_current_context().exit(ExitCode.INCOMPLETE)


@data.command("compact", epilog=example("orthia data compact --config broker.xml"))
@settings_options
@private_files
def compact_(settings: Settings) -> None:
    """Copy what is live into new files and remove the old ones; with the node stopped.

    A node does this by itself when journal-compact-percentage says so.
    """
    store = _file_store(settings)
    with _to_oneself(store):
        compacted = compact(store)
    _tell(compacted)


@data.command("recover", epilog=example("orthia data recover --config broker.xml"))
@settings_options
@private_files
def recover_(settings: Settings) -> None:
    """Keep what can be read of a damaged journal; with the node stopped.

    Says what was lost, and keeps copies of the damaged files in the directory ``attic`` beside
    them. Exit code 1 if anything was lost.
    """
    store = _file_store(settings)
    with _to_oneself(store):
        recovered = recover(store)
    for line in recovered.findings:
        click.echo(line, err=True)
    for path in recovered.kept_in:
        click.echo(f"kept {path}")
    _tell(recovered.compacted)
    if recovered.findings:
        click.get_current_context().exit(ExitCode.INCOMPLETE)


@contextmanager
def _to_oneself(store: FileStoreSettings) -> Iterator[None]:
    """Keep nodes from becoming live on ``store`` meanwhile: they do not wait for a tool."""
    refuse_files_of_artemis(store)
    with opened_locks(store, "orthia-data") as locks, maintenance(locks):
        yield


def _tell(results: list[Compacted]) -> None:
    for one in results:
        click.echo(
            f"{one.directory}: {one.records} records, {one.bytes_before} -> {one.bytes_after} bytes"
        )


def _files(contents: Contents) -> Iterator[FoundFile]:
    for _, listing in contents.listings:
        yield from listing.counting


def _live(contents: Contents, found: FoundFile) -> int:
    is_message = found in contents.message_files.counting
    index = contents.messages if is_message else contents.bindings
    return index.live_records(found.file_id)


def _remark(found: FoundFile) -> str:
    if found.damages or found.unreadable:
        return f"DAMAGED in {len(found.damages) + len(found.unreadable)} places"
    if found.torn_bytes:
        return "ends with a write that was never durable"
    return "" if found.seal else "open"


def _row(contents: Contents, found: FoundFile) -> tuple[object, ...]:
    header = found.header
    live = _live(contents, found)
    sizes = (found.end, found.records, live)
    return (found.path.name, header.generation, header.token, *sizes, _remark(found))


def _as_dict(contents: Contents, found: FoundFile, *, records: bool) -> Mapping[str, object]:
    document: dict[str, object] = {
        "file": str(found.path),
        "generation": found.header.generation,
        "token": found.header.token,
        "sealed": found.seal is not None,
        "end": found.end,
        "records": found.records,
        "live": _live(contents, found),
        "torn_bytes": found.torn_bytes,
        "damages": [list(damage) for damage in found.damages],
        "unreadable": [list(one) for one in found.unreadable],
    }
    if records:
        document["contents"] = list(_records(found))
    return document


def _records(found: FoundFile) -> Iterator[dict[str, object]]:
    with scan(found) as records:
        for record, intact, _ in records:
            yield {
                "at": record.offset,
                "record": _name(RecordType, record.record_type),
                "what": _name(UserRecordType, record.user_record_type),
                "seq": record.seq,
                "id": record.id,
                "tx": record.tx_id or "",
                "queue": "" if record.queue_id is None else record.queue_id,
                "epoch": record.epoch,
                "bytes": record.payload_size,
                "state": "" if intact else "DAMAGED",
            }


def _name(kinds: type[RecordType] | type[UserRecordType], number: int) -> str:
    known = {kind.value: kind.name for kind in kinds}
    return known.get(number, "" if number == 0 else str(number))
