"""The exit codes of every command: those of ``sysexits.h``, and what they mean here."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from orthia.config.errors import OrthiaError


class ExitCode(IntEnum):
    """What a command's end means to whoever started it."""

    OK = 0
    INCOMPLETE = 1
    NOBODY_LIVE = 3
    USAGE = 64
    WRONG_DATA = 65
    NO_CLUSTER = 68
    UNAVAILABLE = 69
    SOFTWARE = 70
    IO_ERROR = 74
    LOCK_NOT_ACQUIRED = 75
    REFUSED = 77
    CONFIGURATION = 78
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "done; a node: stopped as asked",
    ExitCode.INCOMPLETE: "not everything was confirmed, or not as it should be; `pipeline audit`,"
    " `migrate` and `import`: faults were found",
    ExitCode.NOBODY_LIVE: "no node serves clients, says status",
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.WRONG_DATA: "what `--from` or another input names is not what was expected there, or"
    " is damaged",
    ExitCode.NO_CLUSTER: "Spark's cluster, which `--master` names, is not there",
    ExitCode.UNAVAILABLE: "the database, the broker or the directory of the locks is not there, or"
    " has no schema",
    ExitCode.SOFTWARE: "something went wrong that should not",
    ExitCode.IO_ERROR: "a node lost its lease or its store: start it again; a command could not"
    " write its output",
    ExitCode.LOCK_NOT_ACQUIRED: "a node did not get the live lock or its port in time: start it"
    " again; a command found a node on the store: stop that first",
    ExitCode.REFUSED: "the broker refused the login, or what was asked of it; or its certificate"
    " is not trusted",
    ExitCode.CONFIGURATION: "the configuration is wrong, or the database, a directory or the port"
    " refuses it",
    ExitCode.INTERRUPTED: "ended by Ctrl-C before it was done",
}


class Unavailable(OrthiaError):  # noqa: N818 - named for what is the case
    """What the command needs is not there."""


def code_of(error: OrthiaError) -> ExitCode:
    """Return the exit code for an error that ended a command."""
    return code_of_kind(type(error))


def code_of_kind(kind: type[OrthiaError]) -> ExitCode:
    """Return the exit code for errors of a class: its own, else that of its nearest base."""
    for one in kind.__mro__:
        code = CODES.get(f"{one.__module__}.{one.__qualname__}")
        if code is not None:
            return code
    return ExitCode.SOFTWARE


CODES: Final[Mapping[str, ExitCode]] = {
    f"orthia.{room}.{name}": code
    for room, names, code in (
        ("broker.client.connection", "BrokerRefused BrokerNotTrusted", ExitCode.REFUSED),
        ("broker.client.connection", "BrokerUnreachable", ExitCode.UNAVAILABLE),
        ("broker.client.management", "ManagementRefused", ExitCode.REFUSED),
        ("broker.client.management", "ManagementUnreachable", ExitCode.UNAVAILABLE),
        ("broker.client.management", "ManagementError AnswerLost", ExitCode.INCOMPLETE),
        ("broker.connections.listening", "AcceptorNotFree", ExitCode.LOCK_NOT_ACQUIRED),
        ("broker.connections.listening", "AcceptorError", ExitCode.CONFIGURATION),
        ("broker.management.http.server", "HealthNotFree", ExitCode.LOCK_NOT_ACQUIRED),
        ("broker.management.http.server", "HealthError", ExitCode.CONFIGURATION),
        ("broker.node.exit_codes", "Unavailable", ExitCode.UNAVAILABLE),
        ("config.errors", "ConfigurationError", ExitCode.CONFIGURATION),
        ("database.errors", "PermanentStoreError", ExitCode.CONFIGURATION),
        ("database.errors", "StoreUnavailable", ExitCode.UNAVAILABLE),
        ("journal.errors", "JournalInUse", ExitCode.LOCK_NOT_ACQUIRED),
        ("journal.errors", "JournalIOError JournalDamaged", ExitCode.IO_ERROR),
        ("journal.errors", "UnknownFormat CorruptRecord", ExitCode.IO_ERROR),
        ("nodemanager.errors", "LockAcquisitionTimeout StoreInUse", ExitCode.LOCK_NOT_ACQUIRED),
        ("nodemanager.errors", "LockDirectoryMissing", ExitCode.UNAVAILABLE),
        ("nodemanager.errors", "FailoverLogUnreadable", ExitCode.WRONG_DATA),
        ("pipeline.errors", "BadOption", ExitCode.USAGE),
        (
            "pipeline.errors",
            "WrongInput BodyUnreadable HistoryPruned StreamDetached",
            ExitCode.WRONG_DATA,
        ),
        ("pipeline.errors", "ClusterUnreachable", ExitCode.NO_CLUSTER),
        ("pipeline.errors", "MissingRequirement OutputExists", ExitCode.UNAVAILABLE),
        ("pipeline.errors", "MigrationRefused ImportRefused", ExitCode.UNAVAILABLE),
        ("pipeline.errors", "MigrationFailed ImportFailed", ExitCode.INCOMPLETE),
        ("pipeline.errors", "OutputFailed", ExitCode.IO_ERROR),
    )
    for name in names.split()
}
"""By the full name of an error's class: a command loads no room only to learn how it may fail."""
