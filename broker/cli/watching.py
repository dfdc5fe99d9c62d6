"""Starts a job at the live node and watches it to its end."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from orthia.broker.cli.managing import NodeOptions
from orthia.broker.cli.progress import progress_of
from orthia.broker.cli.rendering import print_json
from orthia.broker.cli.views import View, print_outcome
from orthia.broker.node.exit_codes import ExitCode

_LOOK_SECONDS: Final = 0.25
PATIENCE_SECONDS: Final = 60.0
"""For how long no node may answer while a job is watched: a takeover is over by then."""
_DONE: Final = {
    "purge": "deleted",
    "delete": "deleted",
    "move": "moved",
    "copy": "copied",
    "retry": "sent back",
    "expire": "expired",
    "priority": "changed",
}

no_wait_option: Final = click.option(
    "--no-wait", is_flag=True, help="Print the job's id and leave it running."
)


def run_job(
    node: NodeOptions,
    *path: str,
    body: Mapping[str, object] | None = None,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Start the job that a POST to ``path`` starts; show it at its end, or only its id.

    Exit code 1 if it did not end as it should, or left messages as they were. Ctrl-C leaves it
    running.
    """
    try:
        job = node.client.post(*path, body=body)
    except KeyboardInterrupt:
        told = node.command("job list")
        click.echo(f"\nthe job may have begun: `{told}` says so", err=True)
        raise
    if no_wait:
        print_outcome(job, job["id"], as_json=as_json)
        return
    show_end(node, watch(node, job, is_shown=not as_json), as_json=as_json)


def watch(
    node: NodeOptions,
    job: View,
    *,
    is_shown: bool,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> View:
    """Return a job once it does not run any more; raises ManagementUnreachable."""
    from orthia.broker.client.management import ManagementUnreachable

    number, looked_at = job["id"], 0
    lost_at: float | None = None
    try:
        with progress_of(f"job {number}: looked at", job["total"], shown=is_shown) as advance:
            while True:
                advance(job["looked-at"] - looked_at)
                looked_at = job["looked-at"]
                if job["state"] != "running":
                    return job
                sleep(_LOOK_SECONDS)
                try:
                    job = node.client.get("jobs", number)
                    lost_at = None
                except ManagementUnreachable as error:
                    if lost_at is None:
                        lost_at = clock()
                        click.echo(f"orthia: no live node answers: {error}", err=True)
                    elif clock() - lost_at > PATIENCE_SECONDS:
                        raise
    except KeyboardInterrupt:
        click.echo(
            f"\njob {number} goes on; stop it with"
            f" `{node.command(f'job stop {number}')}`, watch it with"
            f" `{node.command(f'job show {number} --watch')}`",
            err=True,
        )
        raise


def show_end(node: NodeOptions, job: View, *, as_json: bool) -> None:
    """Show how a job ended, and exit with 1 if that is not as it should be."""
    if as_json:
        print_json(job)
    else:
        click.echo(sentence(job))
        if job["state"] == "interrupted":
            again = node.command(f"job continue {job['id']}")
            click.echo(f"go on with what is left: `{again}`", err=True)
    if job["state"] != "done" or job["left"]:
        click.get_current_context().exit(ExitCode.INCOMPLETE)


def sentence(job: Mapping[str, Any]) -> str:
    """Return how far a job is."""
    what = "address" if job["of-address"] else "queue"
    to = f" to queue {job['target']!r}" if job["target"] is not None else ""
    text = f"{_DONE[job['kind']]} {job['done']:,} of {what} {job['queue']!r}{to}"
    if job["left"]:
        text += f"; left {job['left']:,} as they are: consumers have them, or nowhere takes them"
    if job["state"] != "done":
        reason = f": {job['reason']}" if job["reason"] else ""
        text += f"; job {job['id']} is {job['state']}{reason}"
    return text
