"""``python -m orthia.broker.cli``: the command line without its script."""

from orthia.broker.cli import main

main()
