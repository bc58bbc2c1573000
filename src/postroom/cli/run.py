"""`postroom run`: relays and consumers as a process."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from postroom._version import __version__
from postroom.admin.values import span
from postroom.cli.configuration import FORMATS, LEVELS, RelayPlan, Setting
from postroom.cli.drain import drain as drain_relays
from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import mode_of, reader
from postroom.engine.consumer import Consumer
from postroom.engine.lifecycle import Lifecycle
from postroom.engine.relay.relay import Relay
from postroom.engine.runner import run_all
from postroom.errors import ConfigError, MissingExtraError
from postroom.model.url import Url
from postroom.observer import Observer
from postroom.registry import load_broker, load_source, load_store
from postroom.retry import RetryPolicy
from postroom.store import Store
from postroom.telemetry.log import LOGGER, JsonFormatter, LogObserver, TextFormatter, say

if TYPE_CHECKING:
    from postroom.stores.mongo import Reconciler

_log = logging.getLogger(LOGGER)
_OBJECTS_BEFORE_A_COLLECTION = 10_000


@click.command()
@click.option("--store", metavar="URL", help="Database URL, for example sqlite:///app.db.")
@click.option(
    "--broker",
    metavar="URL",
    help="Destination: kafka://host:9092, amqp://host/vhost, handlers:module:attribute.",
)
@click.option("--stream", help="Stream to serve; selects a [[relay]] section.  [default: main]")
@click.option(
    "--batch-size",
    metavar="NUMBER",
    help="Events per read when idle.  [default: 100]",
)
@click.option(
    "--max-batch-size",
    metavar="NUMBER",
    help="Maximum events per read under a backlog.  [default: 1000, or the batch size]",
)
@click.option(
    "--poll-seconds", metavar="SECONDS", help="Maximum pause between two polls.  [default: 1]"
)
@click.option(
    "--max-attempts",
    metavar="NUMBER",
    help="Failed attempts after which an event becomes a dead letter.  [default: 5]",
)
@click.option(
    "--lease-seconds",
    metavar="SECONDS",
    help="Time without a heartbeat after which another relay takes over.  [default: 15]",
)
@click.option(
    "--keep-done-seconds",
    metavar="SECONDS",
    help="Time to keep delivered events; 0 deletes them immediately.  [default: 86400]",
)
@click.option("--name", help="Relay name shown by `status`.  [default: host:process id]")
@click.option(
    "--metrics-port",
    metavar="NUMBER",
    help="Port for /metrics, /livez and /readyz; 0 picks a free port.  [default: not served]",
)
@click.option("--metrics-host", help="Address for the metrics port.  [default: 127.0.0.1]")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    help="Minimum log level.  [default: info]",
)
@click.option("--log-format", type=click.Choice(FORMATS), help="Log format.  [default: text]")
@click.option("--drain", is_flag=True, help="Send the events that are due, then end.")
@click.option(
    "--for",
    "drain_seconds",
    callback=reader(span),
    metavar="DURATION",
    help="With --drain: end after this time, such as 20s.  [default: no limit]",
)
@click.pass_context
def run(ctx: click.Context, /, drain: bool, drain_seconds: float | None, **flags: Any) -> None:
    """Deliver events and consume messages until a signal stops it.

    SIGTERM or Ctrl-C starts a graceful shutdown: events in flight are finished, lanes are handed
    over, exit code 0. A second signal stops immediately with exit code 130; events in flight may
    then be sent again. If a broker or store is unreachable, `run` waits and reconnects.

    With --drain it sends the events that are due and ends: exit code 0 if none is left, 4 if the
    time was over or the broker is unreachable, 5 if events failed. Consumers do not take part.

    Every option can also be set by an environment variable (POSTROOM_BATCH_SIZE) or in
    postroom.toml (batch_size); `postroom config show` lists further settings. Several [[relay]]
    and [[consumer]] sections run side by side in one process.

    \b
    Examples:
      postroom run --store sqlite:///app.db --broker handlers:shop.app:handlers
      postroom run --store postgresql://app@db/shop --broker kafka://k1,k2:9092
      postroom run --store mysql://app@db/shop --broker amqp://app@rabbit/vhost
      postroom run --metrics-port 9464 --log-format json
      postroom run --drain --for 20s

    handlers:module:attribute also finds modules in the current folder.
    """  # noqa: D301 - click knows the sign
    if drain_seconds is not None and not (drain and drain_seconds > 0):
        raise click.UsageError("--for needs --drain and a time above 0")
    configuration = mode_of(ctx).configuration
    process = configuration.process({n: flags[n] for n in _PROCESS})
    plans = configuration.relays({n: v for n, v in flags.items() if n not in _PROCESS})
    store = _required(ctx, "store", process["store"])
    for plan in plans:
        _required(ctx, "broker", plan.values["broker"])
    consumers = configuration.consumers if flags["stream"] is None else []
    own_code = consumers or process["reconcilers"].value
    if own_code or any(p.broker is not None and p.broker.scheme == "handlers" for p in plans):
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - a script has its own folder there
    log_to_stderr(process["log_level"].value, process["log_format"].value)
    if drain:
        serving = _drain(store, plans, consumers, process, drain_seconds)
    else:
        serving = _serve(store, plans, consumers, process)
    ctx.exit(asyncio.run(serving))


_PROCESS = ("store", "metrics_port", "metrics_host", "log_level", "log_format")


def _required(ctx: click.Context, name: str, setting: Setting) -> Url:
    if setting.value is None:
        raise click.UsageError(
            f"Missing option '--{name}' (env var: 'POSTROOM_{name.upper()}', "
            f"in postroom.toml: {name}).",
            ctx,
        )
    url: Url = setting.value
    return url


async def _serve(
    url: Url,
    plans: Sequence[RelayPlan],
    sections: Sequence[Mapping[str, Setting]],
    process: Mapping[str, Setting],
) -> ExitCode:
    store = load_store(url)
    observers: list[Observer] = [LogObserver()]
    relays = [_relay(store, plan, observers) for plan in plans]
    consumers = [_consumer(store, section, observers) for section in sections]
    workers: list[Lifecycle[Any]] = [*relays, *consumers]
    reconcilers = _reconcilers(process["reconcilers"], plans)
    async with _measured(relays, consumers, reconcilers, plans, observers, process):
        _say_start(relays, plans, url)
        for consumer, section in zip(consumers, sections, strict=True):
            facts = {"version": __version__, "consumer": consumer.name, "store": str(url)}
            say(_log, logging.INFO, "starting", facts | {"source": str(section["source"].value)})

        def on_stop(by_signal: bool) -> None:
            if any(worker.is_running for worker in workers):
                what = "finishing events in flight"
                what += "; a second signal stops immediately" if by_signal else ", after an error"
                say(_log, logging.INFO, "stopping", {"now": what})

        async with AsyncExitStack() as stack:
            for reconciler in reconcilers:
                say(_log, logging.INFO, "starting", {"reconciler": reconciler.name})
                await stack.enter_async_context(reconciler)
            _spare_the_collector()
            gracefully = await run_all(workers, on_stop=on_stop)
    how = "gracefully" if gracefully else "at_once"
    for relay in relays:
        stream = {"stream": relay.settings.stream} if len(relays) + len(consumers) > 1 else {}
        say(_log, logging.INFO, "stopped", {**stream, "how": how, **asdict(relay.counts)})
    for consumer in consumers:
        facts = {"consumer": consumer.name, "how": how}
        say(_log, logging.INFO, "stopped", {**facts, **asdict(consumer.counts)})
    return ExitCode.OK if gracefully else ExitCode.INTERRUPTED


async def _drain(
    url: Url,
    plans: Sequence[RelayPlan],
    sections: Sequence[Mapping[str, Setting]],
    process: Mapping[str, Setting],
    max_seconds: float | None,
) -> ExitCode:
    """Send what is due, then end; consumers and reconcilers have no end and do not start."""
    if not plans:
        raise ConfigError(
            "--drain sends the events of an outbox: name a broker. "
            "A consumer has no end to wait for"
        )
    store = load_store(url)
    observers: list[Observer] = [LogObserver()]
    relays = [_relay(store, plan, observers) for plan in plans]
    async with _measured(relays, [], [], plans, observers, process):
        _say_start(relays, plans, url)
        if sections or process["reconcilers"].value:
            facts = {"left_out": "consumers and reconcilers do not take part in --drain"}
            say(_log, logging.INFO, "drain", facts)
        return await drain_relays(relays, max_seconds)


def _say_start(relays: Sequence[Relay], plans: Sequence[RelayPlan], url: Url) -> None:
    for relay, plan in zip(relays, plans, strict=True):
        facts = {"version": __version__, "stream": plan.settings.stream}
        facts |= {"name": relay.settings.name, "store": str(url), "broker": str(plan.broker)}
        say(_log, logging.INFO, "starting", facts)


def _spare_the_collector() -> None:
    """Freeze start-up objects and collect rarely: reference counts free a batch's garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BEFORE_A_COLLECTION)


def _relay(store: Store, plan: RelayPlan, observers: list[Observer]) -> Relay:
    settings = plan.settings
    if not settings.name:
        settings = replace(settings, name=f"{socket.gethostname()}:{os.getpid()}")
    assert plan.broker is not None
    watching: list[Observer] = [_Several(observers), *_tracing(plan.broker.scheme)]
    return Relay(store, load_broker(plan.broker), settings, observers=watching, log=False)


def _consumer(store: Store, section: Mapping[str, Setting], observers: list[Observer]) -> Consumer:
    """Return the consumer of a section; errors name the section's file and line."""
    values = {name: setting.value for name, setting in section.items()}
    source, handlers = values.pop("source"), values.pop("handlers")
    values.pop("source_password_file")  # its password is in the URL
    try:
        retry = RetryPolicy(max_attempts=values.pop("max_attempts"))
        return Consumer(
            load_source(source), store, handlers.reveal(), observers=(_Several(observers),),
            log=False, retry=retry, **values,
        )  # fmt: skip
    except ConfigError as error:
        raise ConfigError(f"{section['source'].source}: {error}") from error


def _reconcilers(setting: Setting, plans: Sequence[RelayPlan]) -> list[Reconciler]:
    """Return the reconcilers from the user's code that run beside the relays."""
    if not setting.value:
        return []
    try:
        from postroom.stores.mongo import Reconciler
    except ImportError as error:
        raise MissingExtraError("mongo", "pymongo") from error
    try:
        found = [Reconciler.load(path) for path in setting.value]
        for reconciler in found:
            for plan in plans:
                reconciler.check_retention(plan.settings.keep_done_seconds)
    except ConfigError as error:
        raise ConfigError(f"{setting.source}: {error}") from error
    return found


def _tracing(scheme: str) -> list[Observer]:
    """Return an observer that creates spans if OpenTelemetry is installed."""
    try:
        from postroom.telemetry.tracing import TracingObserver
    except ImportError:
        return []
    return [TracingObserver(scheme)]


class _Several:
    """Forwards facts to all observers in a list that may still grow."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def observe(self, fact: Any) -> None:
        for observer in self._observers:
            observer.observe(fact)


@asynccontextmanager
async def _measured(
    relays: Sequence[Relay],
    consumers: Sequence[Consumer],
    reconcilers: Sequence[Reconciler],
    plans: Sequence[RelayPlan],
    observers: list[Observer],
    process: Mapping[str, Setting],
) -> AsyncIterator[None]:
    """Serve metrics and health while the relays run, if a port is set."""
    setting = process["metrics_port"]
    if setting.value is None:
        yield
        return
    if not 0 <= setting.value < 65_536:
        raise ConfigError(f"{setting.source}: metrics_port must be from 0 to 65535")
    try:
        from prometheus_client.registry import CollectorRegistry

        from postroom.telemetry.consumer_metrics import ConsumerMetrics
        from postroom.telemetry.metrics import RelayMetrics
        from postroom.telemetry.server import MetricsServer
    except ImportError as error:
        raise MissingExtraError("metrics", "prometheus-client") from error
    from postroom.telemetry.health import Health, Pulse
    from postroom.telemetry.sampler import Sampler

    sampler, pulse = Sampler(relays, consumers=consumers), Pulse()
    registry = CollectorRegistry()
    metrics = RelayMetrics(sampler)
    for relay, plan in zip(relays, plans, strict=True):
        assert plan.broker is not None
        metrics.watch(relay, plan.broker.scheme)
    metrics.register(registry)
    metrics.count_added()
    observers.append(metrics)
    if consumers:
        received = ConsumerMetrics(metrics)
        for consumer in consumers:
            received.watch(consumer)
        received.register(registry)
        observers.append(received)
    health = Health(relays, sampler, pulse, consumers, reconcilers)
    server = MetricsServer(process["metrics_host"].value, setting.value, registry, health)
    server.start()
    pulse.start()
    sampler.start()
    facts = {"host": process["metrics_host"].value, "port": server.port}
    say(_log, logging.INFO, "metrics", facts)
    try:
        yield
    finally:
        await sampler.stop()
        await pulse.stop()
        server.stop()
        metrics.close()


def log_to_stderr(level: str, form: str = "text") -> None:
    """Send log lines to stderr as text or JSON.

    `debug` applies to postroom's loggers only: at that level drivers log statements and payloads.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    wanted = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(wanted, logging.INFO), handlers=[handler])
    logging.getLogger("postroom").setLevel(wanted)
