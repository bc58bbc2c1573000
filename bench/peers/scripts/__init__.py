"""A script for each peer. They run in the peers' environment and import nothing of postroom."""
