"""``failover``: hand over from the live node to its backup, for maintenance."""

import click

from orthia.broker.cli.group import example
from orthia.broker.cli.managing import NodeOptions, json_option, node_options, question, yes_option
from orthia.broker.cli.rendering import print_json
from orthia.broker.node.exit_codes import ExitCode


@click.command(epilog=example("orthia failover --yes --config broker.xml --user admin"))
@yes_option
@json_option
@node_options
def failover(node: NodeOptions, *, yes: bool, as_json: bool) -> None:
    """Hand over from the live node to the backup that waits, and say how long nobody served.

    The live node does what it has read, answers, disconnects its clients and waits as a backup.
    """
    question("Hand over to the backup? Clients are disconnected and connect to it.", yes=yes)
    done = node.client.post("handover")
    if as_json:
        print_json(done)
    elif done["successor"] is None:
        click.echo("orthia: no other node served within the time; see `orthia status`", err=True)
    else:
        seconds = done["unserved-seconds"]
        click.echo(f"{done['successor']} serves; nobody served for {seconds:.1f} s at most")
    if done["successor"] is None:
        click.get_current_context().exit(ExitCode.INCOMPLETE)
