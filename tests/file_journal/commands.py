"""``orthia data`` on a journal of these tests."""

from pathlib import Path

from click.testing import CliRunner

from orthia.broker.cli.app import orthia
from orthia.config.store_settings import FileStoreSettings


def write_broker_xml(directory: Path, s: FileStoreSettings) -> Path:
    """Write a broker.xml of that journal, with small files of NIO, and return it."""
    path = directory / "broker.xml"
    path.write_text(
        f"""<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
        <journal-directory>{s.journal_directory}</journal-directory>
        <bindings-directory>{s.bindings_directory}</bindings-directory>
        <large-messages-directory>{s.large_messages_directory}</large-messages-directory>
        <journal-file-size>64K</journal-file-size><journal-type>NIO</journal-type>
        </core></configuration>"""
    )
    return path


def run(*arguments: object) -> tuple[int, str, str]:
    """Run the command line; return exit code, output and errors."""
    result = CliRunner().invoke(orthia, [str(one) for one in arguments], prog_name="orthia")
    return result.exit_code, result.stdout, result.stderr
