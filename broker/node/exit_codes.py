"""The exit codes of every command: those of ``sysexits.h``, and what they mean here."""

from enum import IntEnum

from orthia.broker.client.connection import BrokerNotTrusted, BrokerRefused, BrokerUnreachable
from orthia.broker.connections.listening import AcceptorError, AcceptorNotFree
from orthia.broker.management.health import HealthError, HealthNotFree
from orthia.config.errors import ConfigurationError, OrthiaError
from orthia.database import PermanentStoreError, StoreUnavailable
from orthia.journal.errors import (
    CorruptRecord,
    JournalDamaged,
    JournalInUse,
    JournalIOError,
    UnknownFormat,
)
from orthia.nodemanager import LockAcquisitionTimeout
from orthia.nodemanager.errors import FailoverLogUnreadable, LockDirectoryMissing, StoreInUse


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
    """Return the exit code for errors of a class."""
    not_free = AcceptorNotFree | HealthNotFree | LockAcquisitionTimeout | JournalInUse | StoreInUse
    if issubclass(kind, not_free):
        return ExitCode.LOCK_NOT_ACQUIRED
    if issubclass(kind, ConfigurationError | PermanentStoreError | AcceptorError | HealthError):
        return ExitCode.CONFIGURATION
    if issubclass(kind, JournalIOError | JournalDamaged | UnknownFormat | CorruptRecord):
        return ExitCode.IO_ERROR
    if issubclass(kind, BrokerRefused | BrokerNotTrusted):
        return ExitCode.REFUSED
    if issubclass(kind, LockDirectoryMissing | StoreUnavailable | BrokerUnreachable | Unavailable):
        return ExitCode.UNAVAILABLE
    if issubclass(kind, FailoverLogUnreadable):
        return ExitCode.WRONG_DATA
    return ExitCode.SOFTWARE
