"""`python -m tests.torture cell STORE BROKER`: torture one pair, print one line of JSON."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.torture.cell import KEYS, Cell
from tests.torture.taps import HandlersTap, KafkaTap, RabbitTap
from tests.torture.worlds import produce


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.torture")
    verbs = parser.add_subparsers(dest="verb", required=True)
    cell = verbs.add_parser("cell", help="torture one pair")
    cell.add_argument("store", choices=["sqlite", "postgres", "postgres18", "mariadb"])
    cell.add_argument("broker", choices=["handlers", "kafka", "rabbitmq"])
    cell.add_argument("--events", type=int, default=3_000)
    cell.add_argument("--faults", type=int, default=10)
    cell.add_argument("--seed", type=int, default=1)
    producer = verbs.add_parser("produce")
    producer.add_argument("url")
    producer.add_argument("seed", type=int)
    producer.add_argument("events", type=int)
    args = parser.parse_args()
    if args.verb == "produce":
        produce(args.url, args.seed, args.events, KEYS)
        return 0
    return 1 if run_cell(args) else 0


def run_cell(args):
    from tests.servers.catalog import SERVERS

    servers = []

    def start(name):
        server = SERVERS[name].make()
        server.start()
        servers.append((name, server))
        return server.url

    try:
        if args.store == "sqlite":
            store_url = f"sqlite:///{tempfile.mkdtemp(prefix='postroom-torture-')}/app.db"
            store_url = "sqlite:////" + str(Path(store_url.removeprefix("sqlite:///"))).lstrip("/")
        else:
            store_url = start(args.store)
        if args.broker == "handlers":
            tap = HandlersTap()
        else:
            tap = {"kafka": KafkaTap, "rabbitmq": RabbitTap}[args.broker](start(args.broker))
        return Cell(
            store_url, tap, seed=args.seed, events=args.events, faults=args.faults, servers=servers
        ).run()
    finally:
        for _, server in servers:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
