"""The log of a process: one line a fact, for people or as JSON.

Every line has the time, the level, a code where the fact has one, the node's name, its role and
the message. Code, node and role come from the record (``extra={"code": ..., "role": ...}``) or
from what ``configure`` and ``set_role`` were told. Whoever logs waits for nobody:
``orthia.broker.node.log_queue``.
"""

import json
import logging
import sys
from datetime import datetime
from enum import Enum
from typing import Final, TextIO

from orthia.broker.node.log_queue import QueuedHandler

_NOISE: Final = {
    # Each says at INFO what Orthia says itself, with a code; APScheduler's warning, that a job is
    # skipped since it still runs, is ORT100020.
    "alembic": logging.WARNING,
    "apscheduler": logging.ERROR,
    "sqlalchemy": logging.WARNING,
    "asyncio": logging.WARNING,
}
_LEVELS: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_NAMED: Final = ("code", "node", "role")
_NONE: Final = "-"


class LogFormat(Enum):
    """How a line is written."""

    TEXT = "text"
    JSON = "json"


class _Identity(logging.Filter):
    """Says whose lines these are, where a record does not say it itself."""

    def __init__(self, node: str, role: str) -> None:
        super().__init__()
        self.node = node
        self.role = role

    def filter(self, record: logging.LogRecord) -> bool:
        """Complete the record; every record passes."""
        for name, default in (("code", None), ("node", self.node), ("role", self.role)):
            if getattr(record, name, None) is None:
                setattr(record, name, default)
        return True


class TextFormatter(logging.Formatter):
    """``2026-01-31 12:00:00.123 INFO  AMQ221007 node-a live: Server is now active``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record on one line; a traceback, if there is one, follows on its own."""
        time = datetime.fromtimestamp(record.created).astimezone()
        level = _LEVELS.get(record.levelname, record.levelname)
        code, node, role = (_text(record, name) for name in _NAMED)
        line = (
            f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03d} {level:<5}"
            f" {code:<9} {node} {role}: {_one_line(record.getMessage())}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """The same facts as one JSON object a line, with every extra field of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON without a line break."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(),
            "level": _LEVELS.get(record.levelname, record.levelname),
            **{name: getattr(record, name, None) for name in _NAMED},
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD and name not in fields:
                fields[name] = value
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str, ensure_ascii=False)


def configure(
    log_format: LogFormat,
    *,
    node: str = _NONE,
    role: str = _NONE,
    level: int = logging.INFO,
    stream: TextIO | None = None,
) -> None:
    """Send every log record of this process, and every warning of Python's, to ``stream``.

    By default that is standard error. A thread writes: ``logging.shutdown`` waits for it, for a
    second at most. Replaces what an earlier call set up.
    """
    handler = QueuedHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    handler.addFilter(_Identity(node, role))
    root = logging.getLogger()
    for old in [known for known in root.handlers if _identity(known) is not None]:
        root.removeHandler(old)
        if isinstance(old, QueuedHandler):
            old.stop()
    root.addHandler(handler)
    logging.captureWarnings(capture=True)
    root.setLevel(level)
    for name, least in _NOISE.items():
        logging.getLogger(name).setLevel(max(least, level))


def set_role(role: str) -> None:
    """Say which role the lines from now on are of; a node calls it when it becomes live."""
    for handler in logging.getLogger().handlers:
        identity = _identity(handler)
        if identity is not None:
            identity.role = role


def _identity(handler: logging.Handler) -> _Identity | None:
    return next((one for one in handler.filters if isinstance(one, _Identity)), None)


def _text(record: logging.LogRecord, name: str) -> str:
    value = getattr(record, name, None)
    return _NONE if value is None else str(value)


def _one_line(text: str) -> str:
    return text.replace("\r", "").replace("\n", " | ")
