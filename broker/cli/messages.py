"""``produce`` and ``consume``: traffic by hand, and a smoke test by exit code."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from orthia.broker.cli.group import example
from orthia.broker.cli.nodes import DEFAULT_HOST, DEFAULT_PORTS, HostPort
from orthia.broker.cli.privacy import ask_password, seen_on_command_line
from orthia.broker.cli.rendering import print_json, visible
from orthia.broker.client.connection import (
    BrokerAddress,
    ClientError,
    FailoverLink,
    Login,
    ServerFrame,
)
from orthia.broker.client.traffic import Consumer, Producer, TrafficReport
from orthia.broker.node.exit_codes import ExitCode

_DEFAULT_BROKERS: Final = tuple(
    BrokerAddress(DEFAULT_HOST, port) for port in DEFAULT_PORTS.values()
)
_PERCENTILES: Final = (50, 95, 99, 100)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def broker_options(command: _Command) -> _Command:
    """Give ``command`` the options of ``link_to``."""
    decorated: Any = command
    for option in (
        click.option(
            "--broker",
            "brokers",
            type=HostPort(),
            multiple=True,
            default=_DEFAULT_BROKERS,
            show_default=" ".join(str(one) for one in _DEFAULT_BROKERS),
            help="Where a node accepts clients; give both nodes of a pair.",
        ),
        click.option("--user", help="Login, when security is enabled."),
        click.option(
            "--password",
            envvar="ORTHIA_PASSWORD",
            callback=seen_on_command_line("set ORTHIA_PASSWORD, or type it when asked"),
            help="Passcode. Better in the environment, as ORTHIA_PASSWORD, or typed when asked.",
        ),
        click.option(
            "--reconnect-timeout",
            type=click.FloatRange(0),
            default=60.0,
            show_default=True,
            help="Seconds to look for a node that serves, at the start and after a loss.",
        ),
    ):
        decorated = option(decorated)
    result: _Command = decorated
    return result


def _client_options(command: _Command) -> _Command:
    decorated: Any = command
    for option in (
        click.option("--destination", default="/queue/test", show_default=True),
        click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON."),
        broker_options,
    ):
        decorated = option(decorated)
    result: _Command = decorated
    return result


@click.command(
    epilog=example(
        "orthia produce --broker node-a:61613 --broker node-b:61613 \\",
        "    --destination /queue/orders --count 10000 --size 1024 --rate 500",
    )
)
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True)
@click.option(
    "--size", type=click.IntRange(0), default=1024, show_default=True, help="Bytes of a body."
)
@click.option("--text", help="Body of every message, instead of --size bytes.")
@click.option("--rate", type=click.FloatRange(0.001), help="Messages a second, at most.")
@click.option(
    "--outstanding",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Messages that may wait for their receipt; 1 waits for each.",
)
@click.option(
    "--persistent/--no-persistent", default=True, show_default=True, help="Survive a takeover."
)
@_client_options
def produce(
    count: int,
    size: int,
    text: str | None,
    rate: float | None,
    outstanding: int,
    *,
    persistent: bool,
    destination: str,
    as_json: bool,
    **connection: Any,
) -> None:
    """Send numbered messages, each with a receipt, through failovers.

    A message that had no receipt when the connection broke is sent again to the node that serves
    then. Exit code 0 only if every message has its receipt.
    """
    link = link_to(**connection)
    with _progress("sent", count) as advance:
        producer = Producer(
            link,
            destination,
            body=_bodies(size, text),
            count=count,
            outstanding=outstanding,
            rate=rate,
            persistent=persistent,
            on_confirmed=lambda _: advance(1),
        )
        trouble = _run(producer)
    _finish(producer.report, link, "sent", "sent again", trouble, as_json=as_json)


@click.command(
    epilog=example("orthia consume --destination /queue/orders --count 10000 --timeout 30")
)
@click.option("--count", type=click.IntRange(1), help="Messages to wait for.  [default: no end]")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="Seconds without a message after which to stop.",
)
@click.option(
    "--ack",
    type=click.Choice(["client-individual", "client", "auto"]),
    default="client-individual",
    show_default=True,
    help="With auto the broker forgets each message as it sends it, also those beyond --count.",
)
@click.option(
    "--print",
    "print_bodies",
    is_flag=True,
    help="Print each body on a line; on a terminal, control characters as escapes.",
)
@_client_options
def consume(
    count: int | None,
    timeout: float,
    ack: str,
    *,
    print_bodies: bool,
    destination: str,
    as_json: bool,
    **connection: Any,
) -> None:
    """Receive messages and acknowledge each, through failovers.

    Exit code 0 only if --count messages came and their acknowledgements are stored.
    """
    link = link_to(**connection)
    with _progress("received", count) as advance:

        def received(frame: ServerFrame) -> None:
            advance(1)
            if not print_bodies:
                return
            # A terminal obeys what is in a message; a file or a program has it byte for byte.
            to_terminal = sys.stdout.isatty()
            click.echo(visible(frame.body.decode(errors="replace")) if to_terminal else frame.body)

        consumer = Consumer(
            link,
            destination,
            count=count,
            idle_timeout_seconds=timeout,
            ack=ack,
            on_message=received,
        )
        trouble = _run(consumer)
    _finish(consumer.report, link, "received", "received again", trouble, as_json=as_json)


def link_to(
    brokers: tuple[BrokerAddress, ...],
    user: str | None,
    password: str | None,
    reconnect_timeout: float,
) -> FailoverLink:
    """Return the link that the options of a command describe; asks for a password at a terminal."""
    if user is not None and password is None and sys.stdin.isatty():
        password = ask_password(confirm=False)
    return FailoverLink(
        brokers,
        Login(user, password or "") if user is not None else None,
        patience_seconds=reconnect_timeout,
        say=lambda text: click.echo(text, err=True),
    )


def _bodies(size: int, text: str | None) -> Callable[[int], bytes]:
    """Return what makes the body of message n: ``text``, or ``message n`` padded to ``size``."""
    if text is not None:
        fixed = text.encode()
        return lambda _: fixed
    padding = b"." * size

    def numbered(number: int) -> bytes:
        return (b"message %d " % number + padding)[:size]

    return numbered


def _run(traffic: Producer | Consumer) -> ClientError | None:
    """Run to the end; Ctrl-C ends it too, with what was done until then."""
    try:
        traffic.run()
    except ClientError as error:
        return error
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
    return None


@contextmanager
def _progress(verb: str, count: int | None) -> Iterator[Callable[[int], None]]:
    """Give a function that advances a progress bar; on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(verb, total=count)
        yield lambda steps: progress.advance(task, steps)


def _finish(
    report: TrafficReport,
    link: FailoverLink,
    verb: str,
    again: str,
    trouble: ClientError | None,
    *,
    as_json: bool,
) -> None:
    latencies = report.latencies_ms(_PERCENTILES)
    if as_json:
        print_json(
            {
                "wanted": report.wanted,
                "confirmed": report.confirmed,
                "repeated": report.repeated,
                "reconnects": link.reconnects,
                "longest_outage_seconds": round(link.longest_outage_seconds, 3),
                "seconds": round(report.elapsed_seconds, 3),
                "messages_per_second": round(report.rate, 1),
                "latency_ms": {name: round(ms, 3) for name, ms in latencies.items()},
                "complete": report.complete and trouble is None,
            }
        )
    else:
        of = "" if report.wanted is None else f" of {report.wanted}"
        click.echo(
            f"{verb} and confirmed {report.confirmed}{of} in {report.elapsed_seconds:.2f} s:"
            f" {report.rate:.0f} messages/s; {report.repeated} {again}"
        )
        if latencies:
            shown = ", ".join(f"{name} {ms:.1f} ms" for name, ms in latencies.items())
            click.echo(f"receipt after: {shown}")
    if trouble is not None:
        raise trouble
    if not report.complete:
        click.echo("orthia: not everything was confirmed", err=True)
        click.get_current_context().exit(ExitCode.INCOMPLETE)
