"""Install, list and start the test servers by hand."""

import argparse
import contextlib
import signal
import sys

from tests.servers.catalog import SERVERS
from tests.servers.examples import NEEDED, run_example
from tests.servers.install import InstallError, install
from tests.servers.kafka import keep_classes
from tests.servers.process import ServerError


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser("install", help="install every server that is missing")
    installing.add_argument(
        "--nightly", action="store_true", help="also those that only make nightly needs"
    )
    commands.add_parser("list", help="list the servers that can be started")
    start = commands.add_parser("start", help="start one, print its URL, stop it on Ctrl-C")
    start.add_argument("server", choices=sorted(SERVERS))
    example = commands.add_parser("example", help="run an example on servers started for it")
    example.add_argument("example", choices=sorted(NEEDED))
    options = parser.parse_args()
    try:
        match options.command:
            case "install":
                install(nightly=options.nightly)
                keep_classes()
            case "list":
                for name, kind in SERVERS.items():
                    print(f"{name:18} {kind.about}")
            case "start":
                run_in_foreground(options.server)
            case "example":
                print("starting servers …", flush=True)
                return run_example(options.example).returncode
    except (InstallError, ServerError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def run_in_foreground(name: str) -> None:
    """Keep one server until SIGINT or SIGTERM."""
    ending = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    for number in ending:
        signal.signal(number, stop)
    with contextlib.suppress(KeyboardInterrupt), SERVERS[name].make() as server:
        print(server.url, flush=True)
        print("Ctrl-C stops it and removes its data", file=sys.stderr, flush=True)
        while True:
            signal.pause()


def stop(*_: object) -> None:
    """Leave the foreground, also in the middle of a start."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not cut the cleaning short
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
