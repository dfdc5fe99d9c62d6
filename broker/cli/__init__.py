"""The command line: ``orthia``."""

from broker.cli.app import orthia


def main() -> None:
    """Run the command that the process' arguments name, and exit."""
    orthia(prog_name="orthia")


__all__ = ["main", "orthia"]
