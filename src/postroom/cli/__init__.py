"""The command line: `postroom`, or `python -m postroom`.

app             the group of commands; turns errors into exit codes by `exit_codes`
configuration   merges options, environment, file and defaults; `configuration_file` finds the file
variables       passwords of the file from environment variables and from files
options         options and output that commands share; `selection` chooses events by id or filter,
                `bounded_search` bounds the search for them
timeline        the steps of an event, from its writing transaction to the inboxes that received it
followers       the events that wait behind one
status_causes   why events fail, for `status`, and its colours
progress        a progress bar, and Ctrl-C between two steps

Each command has a module: run (with drain), migrate, status, list_events, show, key, story (its
tree: `story_tree`), dead, replay (also bury and skip), edit, forget, retry_now, operations (with
run_operation), waiting (cancel and reschedule), pause (and resume), limit, prune, purge, audit,
reconcile, doctor (with doctor_brokers and doctor_inboxes), health, config, demo, version.
`run` builds relays and consumers from the configuration, with telemetry, and hands them to
`postroom.engine.runner`. The others open the store, do one thing, and close it.
"""

from postroom.cli.app import main

__all__ = ["main"]
