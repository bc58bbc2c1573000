"""Programs of a newer Debian release, unpacked into the cache with the libraries they need.

Nothing is installed: apt-get works on folders of its own, and every program is started by the
release's own loader, so that it finds the C library that it was built for.
"""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.servers import programs
from tests.servers.process import NotInstalledError

RELEASE = "trixie"
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_ELF = b"\x7fELF"


def mirror() -> str:
    """Give the address from which this machine has its own Debian packages."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Component: main"]
    listed = subprocess.run(
        [*asked, "Created-By: Packages"], capture_output=True, text=True, check=False
    )
    for address in listed.stdout.split():
        if address.rstrip("/").endswith("/debian"):
            return address
    raise NotInstalledError("a Debian mirror")


def fetch_packages(packages: Sequence[str], into: Path) -> None:
    """Unpack packages and all that they need into a folder."""
    with tempfile.TemporaryDirectory(dir=into) as name:
        scratch = Path(name)
        for part in ("state/lists/partial", "cache/archives/partial"):
            (scratch / part).mkdir(parents=True)
        (scratch / "status").touch()  # nothing is there yet: all that is needed comes along
        sources = scratch / "sources.list"
        sources.write_text(f"deb [signed-by={_KEYS}] {mirror()} {RELEASE} main\n")
        options = {
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State": scratch / "state",
            "Dir::State::status": scratch / "status",
            "Dir::Cache": scratch / "cache",
            "APT::Sandbox::User": "root",
            "Acquire::Retries": 3,
        }
        apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
        run([*apt, "update"])
        run([*apt, "install", "-y", "--no-install-recommends", "--download-only", *packages])
        for package in sorted((scratch / "cache/archives").glob("*.deb")):
            run(["dpkg-deb", "-x", str(package), str(into)])


def wrap_programs(folders: Sequence[Path], into: Path, home: Path) -> None:
    """Let a script stand for each program: it starts it by the loader that was unpacked, too.

    `home` is where the folder will be in the end.
    """
    loader = f"{home}/usr/lib64/ld-linux-x86-64.so.2 --library-path {home}/usr/lib/x86_64-linux-gnu"
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.is_symlink() or not path.is_file() or path.read_bytes()[:4] != _ELF:
                continue
            real = path.rename(path.with_name(f"{path.name}.elf"))
            there = home / real.relative_to(into)
            path.write_text(f'#!/bin/sh\nexec {loader} --argv0 "$0" {there} "$@"\n')
            path.chmod(0o755)


def fetch_rabbitmq4(into: Path) -> None:
    """Unpack RabbitMQ 4 and its Erlang."""
    fetch_packages(["rabbitmq-server", "libc6"], into)
    home = programs.cache_folder() / programs.RABBITMQ4
    erlang = into / "usr/lib/erlang"
    folders = [erlang / "bin", *erlang.glob("erts-*/bin"), *erlang.glob("lib/*/priv/bin")]
    wrap_programs(folders, into, home)
    for script in [erlang / "bin/erl", *erlang.glob("erts-*/bin/erl")]:
        text = script.read_text().replace("=/usr/lib/erlang", f"={home}/usr/lib/erlang")
        script.write_text(text)


def run(argv: Sequence[str]) -> None:
    """Run a command of the installer."""
    from tests.servers.install import run as run_or_fail

    run_or_fail(argv)
