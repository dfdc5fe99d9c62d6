"""How much the journal holds, and for how long it tries: bounds with their reasons."""

from dataclasses import dataclass


@dataclass(frozen=True)
class JournalLimits:
    """Bounds of one open journal; the defaults suit a broker with hundreds of clients."""

    max_batch_rows: int = 2_000
    """Rows and deletes of one transaction; above this a commit's cost is spread thin enough, and a
    longer transaction would only keep a successor's fence, and the first caller, waiting."""
    batch_seconds: float = 0.05
    """How long storing one transaction is to take: it has fewer rows where a row costs more; see
    ``orthia.journal.engine.storing_rate``."""
    max_batch_bytes: int = 4 * 1024 * 1024
    """Payload of one transaction; it is held about three times while it is on its way."""
    max_waiting_rows: int = 4_000
    """Rows appended and not yet stored, above which ``is_full``: two transactions, so that the
    writer never waits for the loop. Whoever sends one message waits for all of them, and the more
    the loop takes in meanwhile, the longer each transaction takes."""
    waiting_seconds: float = 0.1
    """How long storing what waits is to take: fewer rows may wait where a row costs more."""
    max_waiting_bytes: int = 8 * 1024 * 1024
    """Payload appended and not yet stored, above which ``is_full``."""
    max_put_aside_rows: int = 20_000
    """Rows of units that wait for locks of other sessions, above which ``is_full``. They are
    counted apart: none of what others send waits for them."""
    drain_timeout_ms: int = 10_000
    """How long ``close(drain=True)`` waits for what was appended to be stored."""
    abandon_timeout_ms: int = 1_000
    """How long ``close(drain=False)`` waits for the threads to notice; a call to the database that
    does not return keeps its daemon thread and nothing else."""
    sweep_period_seconds: float = 60.0
    """How often large bodies are looked through for those the history needs no more."""
    id_block: int = 1_000_000
    """Ids reserved in the database at a time; a takeover skips what is left of a block."""
