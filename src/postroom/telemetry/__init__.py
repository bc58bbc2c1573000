"""Logs, metrics, health and traces of relays and consumers.

An engine reports facts (`postroom.observer`) after the write that makes them true. Observers turn
them into:

log               log lines, key=value or JSON, without payloads and secrets
metrics           Prometheus metrics of relays; `consumer_metrics` those of consumers. Their names
                  and help texts are in `metric_names`
tracing           OpenTelemetry spans; trace context travels with the event

sampler           counts events and measures lag in the store, rarely enough to cost at most 1 %
conditions        decides what is a warning or a problem, for status, health, metrics and probes
health            whether the process is alive and ready
server            serves /metrics, /livez and /readyz over HTTP from threads
"""

from postroom.telemetry.log import LogObserver

__all__ = ["LogObserver"]
