"""A model of the protocol for the model checker spin: `python -m spec` runs it."""
