"""``python -m broker.cli``: the command line without its script."""

from broker.cli import main

main()
