"""A plug-in that lives outside of postroom; see `postroom_shelf`."""
