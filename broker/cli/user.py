"""``user add``, ``rm``, ``list`` and ``reset``: the files of users and roles of a node."""

import os
from collections.abc import Mapping
from typing import Final

import click

from orthia.broker.cli.group import CommandGroup, example
from orthia.broker.cli.privacy import ask_password, private_files
from orthia.broker.cli.rendering import print_json, print_table
from orthia.broker.cli.settings_options import settings_options
from orthia.config.errors import ConfigurationError
from orthia.config.passwords import HashedPassword, hash_password
from orthia.config.secrets import Secret
from orthia.config.security_settings import PropertiesLoginModule
from orthia.config.settings import Settings
from orthia.config.user_files import edit, read_users
from orthia.config.values import read_names

_ENVIRONMENT: Final = "ORTHIA_PASSWORD"
_LINES: Final = """\
<login-modules xmlns="urn:orthia"><properties-login-module/></login-modules>"""


@click.group(
    cls=CommandGroup, epilog=example("orthia user list --config /srv/orthia/etc/broker.xml")
)
def user() -> None:
    """Add, change and remove users in a node's files.

    A running node takes a change within seconds, and ends the connections of users whose password
    or roles changed, or who are gone. Each node has files of its own: change those of both.
    """


@user.command(
    epilog=example("orthia user add alice --role amq --config /srv/orthia/etc/broker.xml")
)
@click.argument("name")
@click.option("--role", "roles", multiple=True, help="A role of the user's; may be repeated.")
@settings_options
@private_files
def add(name: str, roles: tuple[str, ...], settings: Settings) -> None:
    """Add a user; only a hash of the password is kept.

    The password is taken from ORTHIA_PASSWORD, or typed unseen, or read from standard input where
    that is no terminal.
    """
    module = _module(settings)
    _check_name(name)
    wanted = _roles(roles)
    _refuse_if_configured(settings, name)
    stored = hash_password(_password())
    # The roles first: roles without their user do no harm, a user without its roles is refused.
    with edit(module) as files:
        if name in files.users.values:
            raise ConfigurationError(
                f"{module.user}: there is a user {name!r} already; `orthia user reset` gives it"
                " another password"
            )
        files.users.set(name, stored)
        files.set_roles(name, wanted)
    click.echo(f"added user {name} with {_shown(wanted)} to {module.user}")
    _tell_of_other_node(settings)


@user.command(epilog=example("orthia user rm alice --config /srv/orthia/etc/broker.xml"))
@click.argument("name")
@settings_options
@private_files
def rm(name: str, settings: Settings) -> None:
    """Remove a user; a running node ends its connections."""
    module = _module(settings)
    with edit(module, users_first=True) as files:
        _refuse_if_missing(module, files.users.values, name)
        files.users.remove(name)
        files.set_roles(name, frozenset())
    click.echo(f"removed user {name} from {module.user}")
    _tell_of_other_node(settings)


@user.command(
    epilog=example(
        "orthia user reset alice --config /srv/orthia/etc/broker.xml",
        "orthia user reset alice --role viewers --config /srv/orthia/etc/broker.xml",
    )
)
@click.argument("name")
@click.option("--role", "roles", multiple=True, help="The user's roles from now on.")
@click.option("--no-roles", is_flag=True, help="Take all roles away.")
@settings_options
@private_files
def reset(name: str, roles: tuple[str, ...], settings: Settings, *, no_roles: bool) -> None:
    """Give a user a new password; or, with --role or --no-roles, other roles.

    The password is taken from ORTHIA_PASSWORD, or typed unseen, or read from standard input where
    that is no terminal. A running node ends the connections of the user.
    """
    if roles and no_roles:
        raise click.UsageError("Give either --role or --no-roles.")
    module = _module(settings)
    wanted = _roles(roles)
    with edit(module) as files:
        _refuse_if_missing(module, files.users.values, name)
    # Whoever types is not to hold others up.
    stored = None if roles or no_roles else hash_password(_password())
    with edit(module) as files:
        _refuse_if_missing(module, files.users.values, name)
        if stored is None:
            files.set_roles(name, wanted)
        else:
            files.users.set(name, stored)
    what = f"has {_shown(wanted)}" if stored is None else "has a new password"
    click.echo(f"user {name} {what} in {module.user}")
    _tell_of_other_node(settings)


@user.command("list", epilog=example("orthia user list --config /srv/orthia/etc/broker.xml"))
@settings_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(settings: Settings, *, as_json: bool) -> None:
    """Show every user with its roles, and how its password is kept; never the password."""
    module = settings.properties_login_module
    in_files = read_users(module) if module is not None else ()
    configured = {one.name for one in settings.users}
    rows = [
        (one.name, sorted(one.roles), _kept(one.password), where)
        for users, where in ((settings.users, "broker.xml"), (in_files, "file"))
        for one in users
        if where == "broker.xml" or one.name not in configured
    ]
    if as_json:
        names = ("name", "roles", "password", "source")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    print_table(
        ("user", "roles", "password", "from"),
        ((name, ",".join(roles), kept, where) for name, roles, kept, where in rows),
    )


def _module(settings: Settings) -> PropertiesLoginModule:
    module = settings.properties_login_module
    if module is None:
        raise ConfigurationError(
            f"{settings.source}: names no files of users; add to <core>, and start the node again:"
            f" {_LINES}"
        )
    return module


def _password() -> str:
    password = os.environ.get(_ENVIRONMENT) or ask_password(confirm=True)
    if not password.strip():
        raise ConfigurationError("the password is empty; expected one")
    return password


def _roles(given: tuple[str, ...]) -> frozenset[str]:
    return read_names(",".join(given))


def _check_name(name: str) -> None:
    if not name or not name.isprintable() or name != name.strip() or "," in name:
        raise ConfigurationError(
            f"{name!r} cannot be a user's name; expected printable characters without a comma, and"
            " no blank at either end"
        )


def _refuse_if_configured(settings: Settings, name: str) -> None:
    if any(one.name == name for one in settings.users):
        raise ConfigurationError(
            f"{settings.source}: has a <user> {name!r}, who wins over one in the files; remove it"
            " there and start the node again, or choose another name"
        )


def _refuse_if_missing(module: PropertiesLoginModule, users: Mapping[str, str], name: str) -> None:
    if name not in users:
        raise ConfigurationError(
            f"{module.user}: there is no user {name!r}; see `orthia user list`"
        )


def _kept(password: Secret | HashedPassword) -> str:
    return password.kind if isinstance(password, HashedPassword) else "plain"


def _shown(roles: frozenset[str]) -> str:
    return f"roles {','.join(sorted(roles))}" if roles else "no role"


def _tell_of_other_node(settings: Settings) -> None:
    reload = settings.properties_login_module is not None and (
        settings.properties_login_module.reload
    )
    takes = "takes it within seconds" if reload else "takes it when it is started again"
    click.echo(
        f"node {settings.name}, if it runs, {takes}; the other node of the pair has files of its"
        " own, where the same is to be done",
        err=True,
    )
