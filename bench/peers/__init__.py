"""Other packages that do a part of the same job, each driven by its own documented API."""
