"""The command line: `postroom`, or `python -m postroom`."""

from postroom.cli.app import main

__all__ = ["main"]
