"""Watching a relay: observers that turn its facts into logs."""

from postroom.telemetry.log import LogObserver

__all__ = ["LogObserver"]
