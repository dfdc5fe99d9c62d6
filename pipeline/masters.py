"""Checks ``--master`` before Spark starts: whether Spark knows it, and whether it answers.

Spark itself tries for a minute and a half, and reports a wrong master in a page of Java. This
module connects to a standalone master; only Spark can find out whether YARN or Kubernetes answers.
"""

import re
import socket
from collections.abc import Iterator
from typing import Final

from orthia.pipeline.errors import BadOption, ClusterUnreachable

_CONNECT_SECONDS: Final = 5.0
_FORMS: Final = (
    r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?",
    r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]",
    r"spark://[^\s,/]+:\d+(,[^\s,/]+:\d+)*",
    "yarn",
    r"k8s://\S+",
)
_KNOWN: Final = re.compile("|".join(f"(?:{form})" for form in _FORMS))
_STANDALONE: Final = "spark://"


def check_master(master: str) -> None:
    """Raise BadOption if Spark knows no such master."""
    if master.startswith("sc://"):
        raise BadOption(
            f"--master {master}: commands cannot use Spark Connect, which keeps Spark's files and"
            " jobs from them: name the cluster itself. In a session of your own over Spark Connect"
            " `orthia docs pipeline` says what works"
        )
    if not _KNOWN.fullmatch(master):
        raise BadOption(
            f"--master {master!r} is none that Spark knows; expected local[*], local[N],"
            " spark://HOST:PORT, yarn or k8s://URL"
        )


def check_reachable(master: str) -> None:
    """Raise ClusterUnreachable if none of the hosts of a standalone master answers."""
    refused = []
    for host, port in _standalone(master):
        try:
            socket.create_connection((host, port), _CONNECT_SECONDS).close()
        except (OSError, OverflowError, UnicodeError) as error:
            refused.append(f"{host}:{port}: {error}")
        else:
            return
    if refused:
        raise ClusterUnreachable(f"there is no master of Spark at {'; '.join(refused)}")


def _standalone(master: str) -> Iterator[tuple[str, int]]:
    if master.startswith(_STANDALONE):
        for place in master.removeprefix(_STANDALONE).split(","):
            host, _, port = place.rpartition(":")
            yield host.strip("[]"), int(port)
