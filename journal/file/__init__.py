"""The append-only file journal: Artemis' default store, on the interface of the table journal."""

from orthia.journal.file.journal import open_file_journal

__all__ = ["open_file_journal"]
