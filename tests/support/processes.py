"""Processes of the machine, by id: who descends from whom, and signals to all of them."""

import os
import signal
from pathlib import Path

from tests.support.waiting import wait_until


def family(pid: int) -> list[int]:
    """Return the ids of a living process and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _parent(int(entry.name))
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid] if is_running(pid) else []
    for ancestor in found:
        found.extend(child for child in children.get(ancestor, ()) if is_running(child))
    return found


def is_running(pid: int) -> bool:
    """Tell whether the process exists and is more than a zombie."""
    fields = _stat(pid)
    return fields is not None and fields[0] not in "ZX"


def is_stopped(pid: int) -> bool:
    """Tell whether a signal has stopped the process, every thread of it that has not ended.

    One may be in a call.
    """
    threads = _threads(pid)
    return bool(threads) and all(fields is None or fields[0] in "TtZX" for fields in threads)


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def stop_family(pid: int) -> list[int]:
    """SIGSTOP a process and its descendants; return them once every one stands still."""
    send([pid], signal.SIGSTOP)  # first, so that it starts no further children
    wait_until(
        lambda: is_stopped(pid) or not is_running(pid),
        what=lambda: f"process {pid} stopped: {_states([pid])}",
    )
    members = family(pid)
    send(members, signal.SIGSTOP)
    wait_until(
        lambda: all(is_stopped(member) or not is_running(member) for member in members),
        what=lambda: f"the family of process {pid} stopped: {_states(members)}",
    )
    return members


def _threads(pid: int) -> list[list[str] | None]:
    return [_stat(pid, f"task/{one.name}/stat") for one in Path(f"/proc/{pid}/task").glob("*")]


def _states(pids: list[int]) -> dict[int, list[str]]:
    return {pid: [fields[0] for fields in _threads(pid) if fields is not None] for pid in pids}


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return 0 if fields is None else int(fields[1])


def _stat(pid: int, name: str = "stat") -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()
