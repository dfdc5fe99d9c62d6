"""The pipeline's errors; each is an ``OrthiaError``."""

# ruff: noqa: N818  (the names are conditions an operator reads in a log, not classes of "Error")

from orthia.config.errors import OrthiaError


class PipelineError(OrthiaError):
    """Root of the pipeline's errors."""


class MissingRequirement(PipelineError):
    """The extra ``pipeline`` or Java is not installed."""


class BadOption(PipelineError):
    """An option of a data source cannot be used."""


class BodyUnreadable(PipelineError):
    """The body of a large message is not there, or is not what was stored."""


class ClusterUnreachable(PipelineError):
    """The cluster that should run a job does not answer."""


class WrongInput(PipelineError):
    """The input was not written by an export, or is damaged."""


class OutputExists(PipelineError):
    """The job's output directory exists already."""


class OutputFailed(PipelineError):
    """A job could not write its output."""


class MigrationRefused(PipelineError):
    """The state of the source or target store rules out a migration."""


class MigrationFailed(PipelineError):
    """The copy differs from its source, or the source changed during the migration."""


class ImportRefused(PipelineError):
    """An export cannot be imported, or not into this store: nothing was written."""


class ImportFailed(PipelineError):
    """The imported rows differ from the export, or the store's lock was lost meanwhile."""


class HistoryPruned(PipelineError):
    """History rows were pruned before a stream had read them."""


class StreamDetached(PipelineError):
    """A queue is no longer read by the stream of a checkpoint."""


class RowsDiffer(PipelineError):
    """A repeated task has other rows than an earlier attempt, which has sent some of them."""


class RowRefused(PipelineError):
    """A row cannot be a message."""
