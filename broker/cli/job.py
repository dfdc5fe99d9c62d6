"""``job``: operations on many messages, which go on at the live node by themselves."""

from typing import Final

import click

from orthia.broker.cli.group import CommandGroup, example
from orthia.broker.cli.managing import NodeOptions, json_option, node_options
from orthia.broker.cli.views import print_many, print_one, print_outcome
from orthia.broker.cli.watching import no_wait_option, sentence, show_end, watch

_COLUMNS: Final = {
    "job": "id",
    "kind": "kind",
    "of": "queue",
    "to": "target",
    "state": "state",
    "done": "done",
    "left": "left",
    "looked at": "looked-at",
    "of all": "total",
    "user": "user",
    "since": "since-ms",
    "reason": "reason",
}


@click.group(cls=CommandGroup, epilog=example("orthia job list --config broker.xml"))
def job() -> None:
    """Look at purges, moves and retries, stop them and let interrupted ones go on."""


@job.command("list", epilog=example("orthia job list --json"))
@json_option
@node_options
def list_(node: NodeOptions, *, as_json: bool) -> None:
    """Show the jobs that run, were interrupted, and the last ones that are over."""
    found = node.client.get("jobs")["jobs"]
    right = ("job", "done", "left", "looked at", "of all")
    print_many(found, _COLUMNS, right=right, as_json=as_json)


@job.command(epilog=example("orthia job show 4711 --watch"))
@click.argument("job", type=int)
@click.option("--watch", "follow", is_flag=True, help="Until it is over.")
@json_option
@node_options
def show(node: NodeOptions, job: int, *, follow: bool, as_json: bool) -> None:
    """Show a JOB."""
    found = node.client.get("jobs", job)
    if follow:
        show_end(node, watch(node, found, is_shown=not as_json), as_json=as_json)
    else:
        print_one(found, as_json=as_json)


@job.command(epilog=example("orthia job stop 4711"))
@click.argument("job", type=int)
@json_option
@node_options
def stop(node: NodeOptions, job: int, *, as_json: bool) -> None:
    """Stop a JOB after the step it is at; what is done stays done."""
    found = watch(node, node.client.post("jobs", job, "stop"), is_shown=False)
    print_outcome(found, sentence(found), as_json=as_json)


@job.command("continue", epilog=example("orthia job continue 4711"))
@click.argument("job", type=int)
@no_wait_option
@json_option
@node_options
def continue_(node: NodeOptions, job: int, *, no_wait: bool, as_json: bool) -> None:
    """Start a JOB again that the end of its node has interrupted, with what is left."""
    found = node.client.post("jobs", job, "continue")
    if no_wait:
        print_outcome(found, found["id"], as_json=as_json)
        return
    show_end(node, watch(node, found, is_shown=not as_json), as_json=as_json)
