"""postroom inside of other frameworks; none of them is imported before it is asked for."""
