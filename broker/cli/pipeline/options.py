"""What every job of the pipeline is told: where the data is, and where Spark runs."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from orthia.broker.cli.opening import check_started, check_stored, opened
from orthia.broker.cli.pipeline.directories import Directory
from orthia.broker.cli.pipeline.failures import in_one_line
from orthia.broker.cli.pipeline.progress import Voice
from orthia.broker.cli.settings_options import PAIR, StoreOptions, store_options
from orthia.config.parts import Part
from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings
from orthia.pipeline.errors import WrongInput
from orthia.pipeline.masters import check_master
from orthia.pipeline.requirements import require_extra
from orthia.pipeline.sources.store import PASSWORD_VARIABLE, StoreReference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from orthia.pipeline.sources.bodies import BodyReader
    from orthia.pipeline.sources.inputs import Inputs, StoreInputs
    from orthia.pipeline.sources.sizes import Size

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Inputs = TypeVar("_Inputs", bound="Inputs")
_LOCAL: Final = "local[*]"


@dataclass(frozen=True)
class SparkOptions:
    """Where Spark runs, and how."""

    master: str
    settings: dict[str, str]
    partitions: int | None
    voice: Voice
    verbose: bool = False

    def say(self, text: str) -> None:
        """Report a job's progress to a person."""
        self.voice.say(text)


def spark_options(command: _Command) -> _Command:
    """Give ``command`` the options of Spark; it gets them as ``spark_on: SparkOptions``."""

    @wraps(command)
    def with_spark(
        *args: Any,
        master: str,
        conf: tuple[tuple[str, str], ...],
        partitions: int | None,
        quiet: bool,
        verbose: bool,
        **kwargs: Any,
    ) -> Any:
        spark_on = SparkOptions(master, dict(conf), partitions, Voice(quiet), verbose)
        with in_one_line(verbose=verbose):
            check_master(master)
            return command(*args, spark_on=spark_on, **kwargs)

    decorated: Any = with_spark
    for option in (
        click.option(
            "--verbose",
            is_flag=True,
            help="Show Spark's warnings, and where in the code an error came from.",
        ),
        click.option("--quiet", "-q", is_flag=True, help="Say nothing about how far the job is."),
        click.option(
            "--partitions",
            type=click.IntRange(1),
            help="Tasks that read a store; by default a task reads about 250,000 rows.",
        ),
        click.option("--conf", type=PAIR, multiple=True, help="A setting of Spark; repeatable."),
        click.option(
            "--master", default=_LOCAL, show_default=True, help="Where Spark runs the job."
        ),
    ):
        decorated = option(decorated)
    result: _Command = decorated
    return result


def input_options(command: _Command) -> _Command:
    """Give ``command`` a store or an export to read, as ``source: Source``."""

    @wraps(command)
    def with_input(
        *args: Any, store: StoreOptions, from_directory: str | None, **kwargs: Any
    ) -> Any:
        or_pairs = ", or --pairs FILE" if "pairs_file" in kwargs else ""
        pairs: Path | None = kwargs.pop("pairs_file", None)
        if store.is_given + (from_directory is not None) + (pairs is not None) != 1:
            raise click.UsageError(
                "Say where the journal is: --config FILE or --url URL, or --from"
                f" DIRECTORY{or_pairs}."
            )
        settings = store_of(store) if store.is_given else None
        return command(*args, source=Source(settings, from_directory, pairs), **kwargs)

    decorated: Any = click.option(
        "--from",
        "from_directory",
        type=Directory(),
        metavar="DIRECTORY",
        help="What `orthia pipeline export` wrote, as Parquet.",
    )(with_input)
    result: _Command = store_options(decorated)
    return result


def store_of(store: StoreOptions) -> DatabaseStoreSettings | FileStoreSettings:
    """Return the journal to read, a database or files; raises click.UsageError, Unavailable."""
    settings = store.load(Part.STORE)
    if settings is None:
        return store.resolve()
    check_stored(settings)
    return store.apply_to(settings)


@contextmanager
def inputs_of(
    settings: DatabaseStoreSettings | FileStoreSettings, spark_on: SparkOptions
) -> Iterator["StoreInputs"]:
    """Start Spark and give the tables of a store, as ``Source.opened`` does."""
    if isinstance(settings, DatabaseStoreSettings):
        spark_on.say("asking the store")
    asked = ask(settings, spark_on)
    with session(spark_on, asked.passwords) as spark, inputs_in(spark, asked, spark_on) as inputs:
        yield inputs


@dataclass(frozen=True)
class AskedStore:
    """A store that answered, and what a session needs to read it."""

    settings: DatabaseStoreSettings | FileStoreSettings
    reference: StoreReference | None = None
    """None of files."""
    size: "Size | None" = None
    passwords: Mapping[str, str] = field(default_factory=dict)


def ask(
    settings: DatabaseStoreSettings | FileStoreSettings,
    spark_on: SparkOptions,
    variable: str = PASSWORD_VARIABLE,
) -> AskedStore:
    """Return a store that is there; workers get its password by ``variable``.

    Raises Unavailable, StoreError.
    """
    if isinstance(settings, FileStoreSettings):
        check_started(settings)
        return AskedStore(settings)
    require_extra()
    with opened(settings) as database:
        from orthia.pipeline.sources.sizes import size_of_store

        reference, password = StoreReference.of(settings, variable)
        size = _wanted(size_of_store(database, settings), spark_on)
    passwords = {} if password is None else {variable: password}
    return AskedStore(settings, reference, size, passwords)


@contextmanager
def inputs_in(
    spark: "SparkSession", asked: AskedStore, spark_on: SparkOptions
) -> Iterator["StoreInputs"]:
    """Give the tables of a store in a session that has its password."""
    from orthia.pipeline.sources.inputs import FileInputs, StoreInputs
    from orthia.pipeline.sources.sizes import UNKNOWN, size_of_files

    if isinstance(asked.settings, FileStoreSettings):
        from orthia.pipeline.sources.file_journal import FileReference

        files = FileReference.of(asked.settings)
        size = _wanted(size_of_files(files), spark_on)
        found: StoreInputs = FileInputs(spark, files, spark_on.partitions, size=size)
    else:
        reference = asked.reference or StoreReference.of(asked.settings)[0]
        size = asked.size or UNKNOWN
        found = StoreInputs(spark, reference, spark_on.partitions, size=size)
    with _suited(found) as inputs:
        yield inputs


def _wanted(size: "Size", spark_on: SparkOptions) -> "Size":
    """Return a size that is not small if a number of tasks is asked for."""
    return size if spark_on.partitions is None else size._replace(is_small=False)


@contextmanager
def _suited(inputs: "_Inputs") -> Iterator["_Inputs"]:
    """Give ``inputs`` in a session that suits their size."""
    from orthia.pipeline.session import small_data

    with small_data(inputs.spark) if inputs.is_small else nullcontext():
        yield inputs


@dataclass(frozen=True)
class Source:
    """A store, or the directory of an export, or a file of several pairs."""

    settings: DatabaseStoreSettings | FileStoreSettings | None
    directory: str | None
    pairs: Path | None = None
    """Only of commands with ``several.pairs_option``."""

    @contextmanager
    def opened(self, spark_on: SparkOptions) -> Iterator["Inputs"]:
        """Start Spark and give the inputs.

        Raises Unavailable when the store or its schema is not there, MissingRequirement when Spark
        is not, WrongInput when the directory is no export.
        """
        if self.settings is None:
            directory = str(self.directory)
            if "://" not in directory and not _is_export(Path(directory)):
                raise WrongInput(f"{directory} has no messages: it is no Parquet export")
            with session(spark_on) as spark:
                from orthia.pipeline.sources.inputs import ExportInputs

                with _suited(ExportInputs(spark, directory)) as inputs:
                    yield inputs
            return
        with inputs_of(self.settings, spark_on) as inputs:
            yield inputs

    def body_reader(self, inputs: "Inputs") -> "BodyReader":
        """Return what reads bodies of large messages in this process.

        Raises WrongInput if an export has none.
        """
        from orthia.pipeline.sources.bodies import ExportBodyReader, FileBodyReader, SqlBodyReader

        if isinstance(self.settings, FileStoreSettings):
            return FileBodyReader(self.settings.large_messages_directory)
        if self.settings is not None:
            return SqlBodyReader(self.settings)
        return ExportBodyReader(inputs.bodies())


def rows_of(inputs: "Inputs", *, history: bool) -> int | None:
    """Return about how many rows a job reads that reads messages, and perhaps the history."""
    counts = [inputs.size.messages, *([inputs.size.history] if history else [])]
    known = [one for one in counts if one is not None]
    return sum(known) if len(known) == len(counts) else None


def _is_export(directory: Path) -> bool:
    """Return whether there are messages, of one export or of an incremental one's runs."""
    return any(one.is_dir() for one in (directory / "messages", *directory.glob("seq-*/messages")))


def reachable(
    settings: DatabaseStoreSettings, variable: str = PASSWORD_VARIABLE
) -> tuple[StoreReference, dict[str, str]]:
    """Return the reference of a store that answers and has a schema, and its password.

    Raises Unavailable, StoreError: here, in one line, rather than from a worker.
    """
    require_extra()
    with opened(settings):
        reference, password = StoreReference.of(settings, variable)
    return reference, {} if password is None else {variable: password}


@contextmanager
def session(
    spark_on: SparkOptions, passwords: Mapping[str, str] | None = None
) -> Iterator["SparkSession"]:
    """Give a Spark session, which ends with the block unless it was there before.

    Raises MissingRequirement when Spark or Java is not there, ClusterUnreachable when the cluster
    is not.
    """
    require_extra()
    ours = not _is_running()
    if ours:
        # Before its modules are loaded, which takes a second or more.
        spark_on.say(f"starting Spark on {spark_on.master}")
    from orthia.pipeline.session import build_session

    with ExitStack() as stack:
        if ours:
            stack.enter_context(_plain_interrupts())
        spark = build_session(
            spark_on.master,
            settings=spark_on.settings,
            passwords=passwords,
            verbose=spark_on.verbose,
            sources=False,
        )
        if ours:
            stack.callback(spark.stop)
            stack.enter_context(_plain_interrupts())
        yield spark


def _is_running() -> bool:
    """Return whether this process has a session of Spark, without loading it to ask."""
    loaded = sys.modules.get("pyspark.sql")
    return loaded is not None and loaded.SparkSession.getActiveSession() is not None


@contextmanager
def _plain_interrupts() -> Iterator[None]:
    """Restore Python's handler of Ctrl-C, which raises KeyboardInterrupt.

    PySpark's own handler calls Java during another call, which ends in a page of errors; the
    session cancels its jobs when it ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
