"""Public: the contract suites that every store, broker and write-side adapter must pass."""
