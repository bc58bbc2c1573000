"""Bugs of what is asked by a port: what a store or broker of another package says must count."""

from tests.mutants.mutant import Mutant

BROKER = "tests/unit/test_broker_port.py"
PLUGIN = "tests/plugins/test_plugin.py"


def _broker_replaced():
    from postroom.engine.relay.relay import Relay

    open_relay = Relay._open

    async def replacing(self):
        context = await open_relay(self)
        self.broker = context.broker
        return context

    Relay._open = replacing


def _one_writer_unseen():
    from postroom.engine.handlers.handlers import Handlers

    attach = Handlers._attach

    def trusting(self, store, *given, **more):
        attach(self, store, *given, **more)
        self._turn = None

    Handlers._attach = trusting


def _plugins_unchecked():
    from postroom.cli import doctor_brokers
    from postroom.model.url import Url

    load_broker = doctor_brokers.load_broker

    class Silent:
        def __init__(self, inner):
            self._inner = inner
            self.capabilities = inner.capabilities

        async def check(self, topics):
            return []

        async def close(self):
            await self._inner.close()

    def ours_only(url):
        broker = load_broker(url)
        known = Url.parse(url).scheme in ("kafka", "amqp", "amqps")
        return broker if known else Silent(broker)

    doctor_brokers.load_broker = ours_only


def _inbox_of_brokers_kept():
    from postroom.engine.relay.inbox_pruner import InboxPruner
    from postroom.engine.relay.relay import Relay

    build = Relay._build

    def forgetful(self, context):
        build(self, context)
        self._services = [one for one in self._services if not isinstance(one, InboxPruner)]

    Relay._build = forgetful


PORT_MUTANTS = {
    "port-broker-replaced": Mutant(
        "H3", "a relay puts the bound destination in place of the one it was given",
        _broker_replaced, tests=(BROKER,),
    ),
    "port-one-writer-unseen": Mutant(
        "H4", "handlers run side by side in a store that takes one writer", _one_writer_unseen,
        tests=(BROKER,),
    ),
    "port-plugins-unchecked": Mutant(
        "G2", "the doctor asks only brokers that it knows by their scheme", _plugins_unchecked,
        tests=(PLUGIN,),
    ),
    "port-inbox-never-pruned": Mutant(
        "I1", "a destination that keeps an inbox is never asked to forget", _inbox_of_brokers_kept,
        tests=(BROKER,),
    ),
}  # fmt: skip
