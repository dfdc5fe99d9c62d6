"""Output that appears whole or not at all: directories on any file system of Spark, and files.

A job writes into a directory beside the requested one and renames it when it is complete. So a
reader never finds a part of it, and after a failure the same command can be run again. Where
renaming is copying, as in an object store, the manifest marks a complete output: it is written
last.

Only a killed process leaves its directory behind, named ``NAME.incomplete-...``.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from orthia.pipeline.errors import OutputExists

_MARK: Final = ".incomplete-"
_END_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.1


class Files:
    """The file system of a path, through Spark's own Hadoop client."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        # Any: these are Java's objects.
        self._java: Any = spark._jvm  # noqa: SLF001 - PySpark has no other way to it
        session: Any = spark._jsparkSession  # noqa: SLF001
        configuration = session.sparkContext().hadoopConfiguration()
        self._files: Any = self._path(path).getFileSystem(configuration)

    def _path(self, path: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(path)

    def exists(self, path: str) -> bool:
        """Return whether there is anything at ``path``."""
        return bool(self._files.exists(self._path(path)))

    def size(self, path: str) -> int:
        """Return the bytes of a file."""
        return int(self._files.getFileStatus(self._path(path)).getLen())

    def whole_name(self, path: str) -> str:
        """Return a path from its root, with its file system unless that is this machine's."""
        return str(self._files.makeQualified(self._path(path)).toString()).removeprefix("file:")

    def on_this_machine(self, path: str) -> Path | None:
        """Return where ``path`` is among the files of this machine; None if it is elsewhere."""
        found = self.whole_name(path)
        return Path(found) if found.startswith("/") else None

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory; none if it does not exist."""
        if not self.exists(directory):
            return []
        return [
            str(one.getPath().getName()) for one in self._files.listStatus(self._path(directory))
        ]

    def rename(self, old: str, new: str) -> None:
        """Rename a directory; raises OutputExists if the new name exists."""
        if self.exists(new) or not self._files.rename(self._path(old), self._path(new)):
            raise OutputExists(f"{new} exists already: nothing was written")

    def remove(self, path: str) -> None:
        """Remove a directory with its contents."""
        self._files.delete(self._path(path), True)  # noqa: FBT003 - what Java takes

    def read_text(self, path: str) -> str:
        """Return the text of a small file."""
        stream = self._files.open(self._path(path))
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        """Write a small file, replacing an existing one."""
        self.write_bytes(path, text.encode())

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write a file of some megabytes, replacing an existing one."""
        stream = self._files.create(self._path(path), True)  # noqa: FBT003 - what Java takes
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()


@contextmanager
def whole(spark: SparkSession, directory: str) -> Iterator[str]:
    """Give a directory to write into, which becomes ``directory`` when the block succeeds.

    When it fails, the running jobs are cancelled and nothing is left. Raises OutputExists.
    """
    files = Files(spark, directory)
    if files.exists(directory):
        raise OutputExists(f"{directory} exists already: nothing was written")
    name = f"{directory}{_MARK}{uuid.uuid4().hex[:8]}"
    tag = f"orthia-{uuid.uuid4().hex}"
    spark.sparkContext.addJobTag(tag)
    try:
        yield name
        files.rename(name, directory)
    except BaseException:
        try:
            _discard(spark, files, name, tag)
        except (Py4JError, OSError):
            # After Ctrl-C during a call to Java the next call may get no answer.
            _discard(spark, files, name, tag)
        raise
    finally:
        with suppress(Py4JError, OSError):
            spark.sparkContext.removeJobTag(tag)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a local file to write, which replaces ``path`` when the block succeeds.

    When it fails, ``path`` is unchanged. Raises OSError, which names ``path``.
    """
    written = path.with_name(f".{path.name}{_MARK}{uuid.uuid4().hex[:8]}")
    try:
        yield written
        written.replace(path)
    except OSError as error:
        if error.filename is not None and str(error.filename) != str(written):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        written.unlink(missing_ok=True)


def _discard(spark: SparkSession, files: Files, name: str, tag: str) -> None:
    spark.sparkContext.cancelJobsWithTag(tag)
    _await_idle(spark)
    files.remove(name)


def left_behind(spark: SparkSession, directory: str) -> list[str]:
    """Return the directories that killed runs left beside ``directory``."""
    parent, _, name = directory.rpartition("/")
    found = Files(spark, directory).names(parent or ".")
    return sorted(one for one in found if one.startswith(f"{name}{_MARK}"))


def _await_idle(spark: SparkSession) -> None:
    """Wait until no task writes, up to a time-out; a cancelled task ends between two rows."""
    context: Any = spark.sparkContext._jsc  # noqa: SLF001 - PySpark does not tell of tasks
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        running = context.sc().statusTracker().getExecutorInfos()
        if not sum(one.numRunningTasks() for one in running):
            return
        time.sleep(_LOOK_SECONDS)
