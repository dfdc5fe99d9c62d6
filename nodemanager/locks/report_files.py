"""The reports of a pair whose locks are in a directory: a file beside each lock's.

``serverlock.1.json`` and ``serverlock.2.json``, of the live and the backup node, each replaced
whole. Nodes of older versions do not look at them.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from typing_extensions import override

from orthia.database import StoreUnavailable
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.reports import (
    OutboxReport,
    Published,
    Refusal,
    Report,
    ReportStore,
)


class ReportFiles(ReportStore):
    """The two files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._paths = {lock: directory / f"serverlock.{lock.value}.json" for lock in Lock}

    @override
    def write(self, lock: Lock, holder_id: str, token: int, report: Report) -> None:
        """Replace the file; who has no lock writes none, so no other holder's is replaced."""
        until = report.failback_put_off_until
        document = {
            "holder_id": holder_id,
            "token": token,
            "users_digest": report.users_digest,
            "refusal": report.refusal and report.refusal.name,
            "failback_put_off_until": until and until.isoformat(),
            "api_url": report.api_url,
            "outbox": report.outbox and _outbox_as_json(report.outbox),
        }
        path = self._paths[lock]
        fresh = path.with_suffix(f".{os.getpid()}")
        try:
            fresh.write_text(json.dumps(document) + "\n", encoding="utf-8")
            fresh.replace(path)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise StoreUnavailable(f"{path} cannot be written: {error.strerror}") from error

    @override
    def read(self) -> Mapping[Lock, Published]:
        found = {lock: _read(path) for lock, path in self._paths.items()}
        return {lock: one for lock, one in found.items() if one is not None}


def _outbox_as_json(outbox: OutboxReport) -> dict[str, object]:
    return asdict(outbox) | {"oldest": outbox.oldest and outbox.oldest.isoformat()}


def _outbox_of(said: dict[str, Any] | None) -> OutboxReport | None:
    if said is None:
        return None
    oldest = said["oldest"]
    oldest = None if oldest is None else datetime.fromisoformat(oldest)
    return OutboxReport(said["waiting"], oldest, said["per_second"], said["held"])


def _read(path: Path) -> Published | None:
    """Return what a file says; None if it is not there or is not of this form."""
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        until = document["failback_put_off_until"]
        refusal = document["refusal"]
        report = Report(
            document["users_digest"],
            None if refusal is None else Refusal[refusal],
            None if until is None else datetime.fromisoformat(until),
            document.get("api_url"),  # older versions have neither
            _outbox_of(document.get("outbox")),
        )
        return Published(document["holder_id"], document["token"], report)
    except (OSError, ValueError, KeyError, TypeError):
        return None
