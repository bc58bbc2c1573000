"""The command line: `postroom`, or `python -m postroom`.

app             the group of commands; turns errors into exit codes by `exit_codes`
configuration   merges options, environment, file and defaults; `configuration_file` finds the file
variables       passwords of the file from environment variables and from files
options         options and output that commands share; `selection`: those that choose events
status_causes   the colours of `status`; `status_consumers`: what waits at consumers' brokers
progress        a progress bar, and Ctrl-C between two steps

Each command has a module: run (with drain), migrate, status, list_events, show, key, story, dead,
replay (also bury and skip), edit, forget, retry_now, operations (with run_operation), waiting
(cancel and reschedule), pause (and resume), limit, prune, purge, audit, reconcile, doctor (with
doctor_brokers), health, config, demo, dashboard (with dashboard_section), version.
`run` builds relays and consumers from the configuration, with telemetry, and hands them to
`postroom.engine.runner`. The others open the store, do one thing, and close it; their questions to
the store are in `postroom.admin`.
"""

from postroom.cli.app import main

__all__ = ["main"]
