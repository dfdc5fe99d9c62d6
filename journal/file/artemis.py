"""Files of Artemis' journal, which have the names of Orthia's and another form.

Each begins with the version of the format, that of the records' users and the file's id, as Artemis
writes them: an int, an int and a long, big-endian.
"""

import struct
from typing import Final

from orthia.config.store_settings import FileStoreSettings
from orthia.journal.errors import ForeignJournal
from orthia.journal.file.disk import io_errors
from orthia.journal.file.format import Kind

_HEAD: Final = struct.Struct(">iiq")
_VERSIONS: Final = (1, 2)
_MOST_USER_VERSION: Final = 255
"""Artemis uses 0 to 2."""


def is_of_artemis(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is one of Artemis' journal."""
    if len(head) < _HEAD.size:
        return False
    version, user_version, file_id = _HEAD.unpack_from(head)
    return version in _VERSIONS and 0 <= user_version <= _MOST_USER_VERSION and file_id > 0


def refuse_files_of_artemis(s: FileStoreSettings) -> None:
    """Raise ForeignJournal if the directories hold files of Artemis' journal; changes nothing."""
    for kind, directory in (
        (Kind.MESSAGES, s.journal_directory),
        (Kind.BINDINGS, s.bindings_directory),
    ):
        with io_errors(f"list {directory}"):
            for path in sorted(directory.glob(f"{kind.prefix}-*.{kind.extension}")):
                try:
                    with path.open("rb") as file:
                        head = file.read(_HEAD.size)
                except FileNotFoundError:
                    continue  # removed by the node that writes there
                if is_of_artemis(head):
                    raise ForeignJournal(
                        f"{path} is of Apache ActiveMQ Artemis' journal: Orthia's files have the"
                        " same names and another form, and neither broker can read the other's."
                        " Nothing was changed; leave the directory as it is, it holds Artemis'"
                        " messages. Give Orthia directories of its own (journal-directory,"
                        " bindings-directory, large-messages-directory); to bring messages over,"
                        " run Artemis until their consumers have emptied its queues"
                    )
