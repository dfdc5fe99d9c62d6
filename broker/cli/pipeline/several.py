"""Several pairs in one session of Spark: an answer for each, or why there is none."""

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import click

from orthia.broker.cli.pipeline.failures import explained
from orthia.broker.cli.pipeline.options import AskedStore, SparkOptions, ask, inputs_in, session
from orthia.broker.cli.pipeline.output import show
from orthia.broker.cli.rendering import print_json
from orthia.broker.node.exit_codes import ExitCode, Unavailable
from orthia.config import load
from orthia.config.errors import OrthiaError
from orthia.config.parts import Part
from orthia.config.secrets import codec_key, read_secret
from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.pipeline.requirements import require_extra
from orthia.pipeline.sources.store import PASSWORD_VARIABLE

if TYPE_CHECKING:
    from orthia.pipeline.sources.inputs import StoreInputs

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Answer = TypeVar("_Answer")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_AT_ONCE: Final = 16
"""Stores that are asked at a time whether they answer."""
_OF_ONE_PAIR: Final = frozenset(
    {ExitCode.UNAVAILABLE, ExitCode.WRONG_DATA, ExitCode.REFUSED, ExitCode.CONFIGURATION}
)
"""Kinds of failure after which the other pairs are still answered."""


@dataclass(frozen=True)
class NamedStore:
    """A pair, and its store."""

    name: str
    settings: DatabaseStoreSettings | FileStoreSettings


@dataclass(frozen=True)
class Unread:
    """A pair whose store cannot be asked."""

    name: str
    error: str


@dataclass(frozen=True)
class PairAnswer(Generic[_Answer]):
    """What came of one pair."""

    name: str
    answer: _Answer | None
    error: str | None = None


def pairs_option(command: _Command) -> _Command:
    """Give ``command`` ``--pairs``, as ``pairs_file: Path | None``: above ``input_options``."""
    return click.option(
        "--pairs",
        "pairs_file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        metavar="FILE",
        help="Several pairs in one session: a line NAME=STORE for each, where STORE is a"
        " broker.xml or a URL.",
    )(command)


def read_pairs(path: Path) -> list[NamedStore | Unread]:
    """Return the pairs of a file, in its order; raises click.UsageError.

    Paths are relative to the file. Empty lines and those that begin with ``#`` say nothing.
    """
    found: dict[str, NamedStore | Unread] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, store = (part.strip() for part in text.partition("="))
        if not equals or not store or not _NAME.fullmatch(name):
            raise click.UsageError(
                f"{path}, line {number}: {text!r} is not NAME=STORE, with a name of letters,"
                " digits, '.', '_' and '-'."
            )
        if name in found:
            raise click.UsageError(f"{path}, line {number}: there are two pairs {name!r}.")
        try:
            found[name] = NamedStore(name, _settings(store, path.parent))
        except OrthiaError as error:
            found[name] = Unread(name, " ".join(str(error).split()))
    if not found:
        raise click.UsageError(f"{path} names no pair.")
    return list(found.values())


def _settings(text: str, beside: Path) -> DatabaseStoreSettings | FileStoreSettings:
    if "://" in text or text.startswith("jdbc:"):
        url = DatabaseUrl.parse(text).relative_to(beside.absolute())
        return DatabaseStoreSettings(url)
    return load(beside / text, part=Part.STORE).store


def answers(
    pairs: Sequence[NamedStore | Unread],
    spark_on: SparkOptions,
    work: Callable[[NamedStore, "StoreInputs"], _Answer],
) -> list[PairAnswer[_Answer]]:
    """Answer for one pair after the other in one session of Spark.

    Raises Unavailable if none can be reached, and what is not of one pair alone.
    """
    require_extra()
    spark_on.say("asking the stores")
    with ThreadPoolExecutor(min(_AT_ONCE, len(pairs))) as pool:
        asked = list(pool.map(partial(_asked, spark_on), range(len(pairs)), pairs))
    if all(isinstance(one, str) for one in asked):
        raise Unavailable("; ".join(f"{p.name}: {e}" for p, e in zip(pairs, asked, strict=True)))
    passwords: dict[str, str] = {}
    for one in asked:
        if isinstance(one, AskedStore):
            passwords |= one.passwords
    found: list[PairAnswer[_Answer]] = []
    with session(spark_on, passwords) as spark:
        for pair, one in zip(pairs, asked, strict=True):
            if isinstance(one, str):
                found.append(PairAnswer(pair.name, None, one))
                continue
            spark_on.say(f"pair {pair.name}")
            with ExitStack() as opened:
                try:
                    inputs = opened.enter_context(inputs_in(spark, one, spark_on))
                    answer = work(NamedStore(pair.name, one.settings), inputs)
                    found.append(PairAnswer(pair.name, answer))
                except (click.ClickException, click.exceptions.Exit):
                    raise
                except Exception as error:
                    line, code = explained(error)
                    if code not in _OF_ONE_PAIR:
                        raise
                    found.append(PairAnswer(pair.name, None, line))
    return found


def _asked(spark_on: SparkOptions, number: int, pair: NamedStore | Unread) -> AskedStore | str:
    """Return a store that answers, or why it does not."""
    if isinstance(pair, Unread):
        return pair.error
    settings = pair.settings
    try:
        given = os.environ.get(PASSWORD_VARIABLE)
        if given and isinstance(settings, DatabaseStoreSettings) and settings.jdbc_password is None:
            secret = read_secret(given, codec_key({}, os.environ))
            settings = replace(settings, jdbc_password=secret)
        return ask(settings, spark_on, f"{PASSWORD_VARIABLE}_{number}")
    except OrthiaError as error:
        return " ".join(str(error).split())


def tell(
    found: Sequence[PairAnswer[_Answer]],
    fields: Callable[[_Answer], dict[str, Any]],
    print_one: Callable[[_Answer], None],
    *,
    as_json: bool,
) -> None:
    """Print what came of each pair, and end with 69 if one could not be read."""
    if as_json:
        told = [
            {"pair": one.name, "error": one.error}
            | ({} if one.answer is None else fields(one.answer))
            for one in found
        ]
        print_json({"pairs": told})
    else:
        for one in found:
            if one.answer is not None:
                click.echo(click.style(f"Pair {one.name}\n", bold=True))
                print_one(one.answer)
                click.echo()
        rows = [{"pair": one.name, "error": one.error or ""} for one in found]
        show("Pairs", rows, ("pair", "error"))
    failed = [one for one in found if one.answer is None]
    for one in failed:
        click.echo(f"orthia: {one.name} is not in the report: {one.error}", err=True)
    if failed:
        click.get_current_context().exit(ExitCode.UNAVAILABLE)
