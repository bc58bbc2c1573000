"""The version of the tables: code never works on tables of a later version than it knows."""

from __future__ import annotations

from postroom.errors import SchemaError


def refuse_newer(there: int, newest: int, what: str = "tables") -> None:
    """Raise SchemaError if the tables were created by a later version of this code."""
    if there > newest:
        raise SchemaError(
            f"the {what} have version {there}, created by a newer postroom; this one knows "
            f"{newest}. Upgrade postroom here; nothing was changed"
        )
