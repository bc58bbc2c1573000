"""The contract of a Store."""

from postroom.testing.store.suite import StoreContract

__all__ = ["StoreContract"]
