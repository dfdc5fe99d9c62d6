"""What ``produce``, ``consume`` and other commands that are clients have in common."""

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from orthia.broker.cli.node_options import DEFAULT_HOST, DEFAULT_PORTS, HostPort
from orthia.broker.cli.numbers import FiniteRange
from orthia.broker.cli.privacy import ask_password, seen_on_command_line
from orthia.broker.cli.rendering import print_json
from orthia.broker.client.connection import BrokerAddress, ClientError, Login
from orthia.broker.client.failover import FailoverLink
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
            type=HostPort(with_tls=True),
            multiple=True,
            default=_DEFAULT_BROKERS,
            show_default=" ".join(str(one) for one in _DEFAULT_BROKERS),
            help="Where a node accepts clients; give both nodes of a pair. By TLS:"
            " ssl://HOST:PORT?trustStorePath=FILE.",
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
            type=FiniteRange(0),
            default=60.0,
            show_default=True,
            help="Seconds to look for a node that serves, at the start and after a loss.",
        ),
    ):
        decorated = option(decorated)
    result: _Command = decorated
    return result


def client_options(command: _Command) -> _Command:
    """Give ``command`` the options of traffic: ``broker_options``, --destination and --json."""
    decorated: Any = command
    for option in (
        click.option("--destination", default="/queue/test", show_default=True),
        click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON."),
        broker_options,
    ):
        decorated = option(decorated)
    result: _Command = decorated
    return result


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


def run_traffic(traffic: Producer | Consumer) -> ClientError | KeyboardInterrupt | None:
    """Run to the end; Ctrl-C ends it too, with what was done until then.

    Returns what ended it before its end, if anything did.
    """
    try:
        traffic.run()
    except ClientError as error:
        return error
    except KeyboardInterrupt as interrupt:
        click.echo("interrupted", err=True)
        # Who asked for no number has what there was.
        return None if traffic.report.complete else interrupt
    return None


def tell_outcome(
    report: TrafficReport,
    link: FailoverLink,
    verb: str,
    again: str,
    trouble: ClientError | KeyboardInterrupt | None,
    *,
    as_json: bool,
) -> None:
    """Tell what came of the traffic; raises ``trouble``, exits with 1 if it is not complete."""
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
