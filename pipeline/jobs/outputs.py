"""What appears whole or not at all: directories on whatever file system Spark knows, and files.

What a job writes goes into a directory beside the one that was asked for, and is renamed when
everything is in it. So whoever finds the directory finds all of it, and after a failure the same
command can be given again. Where renaming is copying, as in an object store, a reader can tell by
the manifest: it is the last file that is written.

Only a process that is killed leaves its directory behind; ``NAME.incomplete-...`` says what it is.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from orthia.pipeline.errors import OutputExists, PipelineError

_MARK: Final = ".incomplete-"
_END_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.1


class Files:
    """The file system of a path, as Spark's own Hadoop client has it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        # Any: what is called here are Java's objects.
        self._java: Any = spark._jvm  # noqa: SLF001 - PySpark has no other way to it
        session: Any = spark._jsparkSession  # noqa: SLF001
        configuration = session.sparkContext().hadoopConfiguration()
        self._files: Any = self._path(path).getFileSystem(configuration)

    def _path(self, path: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(path)

    def exists(self, path: str) -> bool:
        """Return whether there is anything at ``path``."""
        return bool(self._files.exists(self._path(path)))

    def names(self, directory: str) -> list[str]:
        """Return what is in a directory; nothing if it is not there."""
        if not self.exists(directory):
            return []
        return [
            str(one.getPath().getName()) for one in self._files.listStatus(self._path(directory))
        ]

    def rename(self, old: str, new: str) -> None:
        """Rename a directory; raises OutputExists if there is something by the new name."""
        if self.exists(new) or not self._files.rename(self._path(old), self._path(new)):
            raise OutputExists(f"{new} exists already: nothing was written")

    def remove(self, path: str) -> None:
        """Remove a directory and what is in it."""
        self._files.delete(self._path(path), True)  # noqa: FBT003 - what Java takes

    def read_text(self, path: str) -> str:
        """Return what is in a small file."""
        stream = self._files.open(self._path(path))
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        """Write a small file, in the place of one that is there."""
        stream = self._files.create(self._path(path), True)  # noqa: FBT003 - what Java takes
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()


@contextmanager
def whole(spark: SparkSession, directory: str) -> Iterator[str]:
    """Give a directory to write into, which becomes ``directory`` when the block ends well.

    When it does not, the jobs that write are ended and nothing is left. Raises OutputExists.
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
            # After Ctrl-C amid a call to Java the next one may get no answer.
            _discard(spark, files, name, tag)
        raise
    finally:
        with suppress(Py4JError, OSError):
            spark.sparkContext.removeJobTag(tag)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a file of this machine to write, which takes the place of ``path`` when that went well.

    When it did not, ``path`` is what it was. Raises OSError, which names ``path``.
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
    """Return the directories that runs which were killed left beside ``directory``."""
    parent, _, name = directory.rpartition("/")
    found = Files(spark, directory).names(parent or ".")
    return sorted(one for one in found if one.startswith(f"{name}{_MARK}"))


def _await_idle(spark: SparkSession) -> None:
    """Wait until no task writes any more, or for a while: a task ends between two rows."""
    context: Any = spark.sparkContext._jsc  # noqa: SLF001 - PySpark does not tell of tasks
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        running = context.sc().statusTracker().getExecutorInfos()
        if not sum(one.numRunningTasks() for one in running):
            return
        time.sleep(_LOOK_SECONDS)


def without_slash(directory: str) -> str:
    """Return a directory's name as paths within it are made of it; raises PipelineError."""
    name = directory.rstrip("/")
    if not name:
        raise PipelineError(f"{directory!r} is no directory to write into")
    return name
