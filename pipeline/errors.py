"""What can go wrong in the pipeline; every error is an ``OrthiaError``."""

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
    """The cluster that was to run a job is not there."""


class WrongInput(PipelineError):
    """What is to be read is not what an export wrote, or is damaged."""


class OutputExists(PipelineError):
    """Where a job is to write is something already."""


class OutputFailed(PipelineError):
    """What a job was to write could not be written."""


class MigrationRefused(PipelineError):
    """A store is not in a state in which it may be copied, or copied into."""


class MigrationFailed(PipelineError):
    """What arrived is not what was sent, or the source changed meanwhile."""


class ImportRefused(PipelineError):
    """An export cannot be brought back, or not into this store: nothing was written."""


class ImportFailed(PipelineError):
    """What arrived is not what the export has, or the store's lock was lost meanwhile."""


class HistoryPruned(PipelineError):
    """Messages of the history were pruned before a stream had read them."""


class RowsDiffer(PipelineError):
    """A task that is done again has other rows than the attempt that has sent some of them."""


class RowRefused(PipelineError):
    """A row cannot be a message."""
