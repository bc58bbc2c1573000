"""The peers' own virtual environments, made once in the cache folder, from pinned versions."""

import hashlib
import os
import shutil
import sys
from pathlib import Path

from bench.peers.catalog import EXTRAS, PEERS
from bench.rounds import say
from tests.servers import install, programs

CONSTRAINTS = Path(__file__).with_name("constraints.txt")
NEWER = ((3, 12), (3, 13), (3, 14))


class NoPythonError(Exception):
    """There is no Python on this machine that the peer runs on."""


def python_for(oldest):
    """Find an interpreter: the one that runs this if it is new enough, else a newer one."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    for version in NEWER:
        if version < oldest:
            continue
        name = "python{}.{}".format(*version)
        root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
        kept = sorted(root.glob("{}.{}*/bin/python".format(*version)))
        for found in filter(None, (shutil.which(name), *map(str, kept))):
            if install.succeeds([found, "-c", "import venv"]):  # a shim may lead nowhere
                return found
    raise NoPythonError("no Python {}.{} or newer was found here".format(*oldest))


def pinned(package):
    """The version of a package that is measured."""
    lines = dict(line.split("==") for line in CONSTRAINTS.read_text().split() if "==" in line)
    return lines[package]


def environment(peer):
    """Return the Python of the environment that has this peer; make it if need be."""
    python = python_for(peer.python)
    # Those that need a newer Python than this one have an environment of their own.
    packages = [one.package for one in PEERS if one.python == peer.python]
    state = "\n".join((python, CONSTRAINTS.read_text(), *packages, *EXTRAS))
    name = "peers-{}.{}-{}".format(*peer.python, hashlib.sha256(state.encode()).hexdigest()[:8])
    folder = programs.cache_folder() / name
    proof = folder / "complete"
    with install.locked():
        if not proof.exists():
            say(f"making an environment of {python} for {', '.join(packages)}")
            shutil.rmtree(folder, ignore_errors=True)
            install.run([python, "-m", "venv", str(folder)])
            pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet"]
            install.run(
                [*pip, "--disable-pip-version-check", "-c", str(CONSTRAINTS), *packages, *EXTRAS]
            )
            proof.touch()
    return str(folder / "bin/python")
