"""Compile a model with spin and a C compiler, search all of its states, and read the verdict."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spec.catalog import Switch, World

FOLDER = Path(__file__).parent
MEGABYTES = 1_500  # a search that needs more is an error, not a swap storm
DEPTH = 10_000
_STORED = re.compile(r"([\d.e+]+) states, stored")
_ERRORS = re.compile(r"errors: (\d+)")
_VIOLATED = re.compile(r"assertion violated .*")
_USED = re.compile(r"([\d.]+)\s+total actual memory usage")


class SpecError(Exception):
    """A model could not be run to its end; the message says why."""


class Verdict(NamedTuple):
    """What a search found. `violated` is the assertion that broke, if one did."""

    states: int
    megabytes: float
    seconds: float
    violated: str | None
    steps: str = ""


def check(world: World) -> Verdict:
    """Search a world to its end, with all of its promises asserted at once."""
    return search(world.model, (*world.promises, *world.defines))


def break_it(switch: Switch, *, steps: bool = False) -> Verdict:
    """Search without the mechanism, the shortest way first, until the promise breaks."""
    return search(
        switch.model, (switch.promise, *switch.defines, switch.name), shortest=True, steps=steps
    )


def search(
    model: str, defines: Sequence[str], *, shortest: bool = False, steps: bool = False
) -> Verdict:
    """Look at every state, or until an assertion fails.

    Raises SpecError if a program is missing or the search was cut short: then nothing is known.
    """
    began = time.monotonic()
    flags = [f"-D{define}" for define in defines]
    with tempfile.TemporaryDirectory(prefix="spec-") as name:
        folder = Path(name)
        for file in FOLDER.glob("*.pml"):
            shutil.copy(file, folder)
        _run(folder, "spin", "-a", *flags, model)
        way = ["-DBFS"] if shortest else []
        limits = ["-DSAFETY", "-DNOREDUCE", f"-DMEMLIM={MEGABYTES}", *way]
        _run(folder, "gcc", "-O0" if shortest else "-O1", "-w", *limits, "-o", "pan", "pan.c")
        said = _run(folder, str(folder / "pan"), f"-m{DEPTH}")
        violated = _VIOLATED.search(said)
        trail = ""
        if steps and violated:  # ends with code 1, at the assertion
            trail = _run(folder, "spin", "-t", "-p", *flags, model, codes=(0, 1))
    errors, stored, used = _ERRORS.search(said), _STORED.search(said), _USED.search(said)
    if errors is None or stored is None or (int(errors[1]) > 0) != (violated is not None):
        raise SpecError(f"{model} {' '.join(flags)}: {said[-2000:]}")
    if not violated and re.search(r"out of memory|depth too small|not completed", said):
        raise SpecError(f"{model} {' '.join(flags)}: the search was cut short:\n{said[-2000:]}")
    return Verdict(
        int(float(stored[1])),
        float(used[1]) if used else 0.0,
        time.monotonic() - began,
        violated[0] if violated else None,
        trail,
    )


def _run(folder: Path, program: str, *words: str, codes: Sequence[int] = (0,)) -> str:
    found = shutil.which(program)
    if found is None:
        raise SpecError(f"{program} is missing: apt-get install spin gcc")
    done = subprocess.run(  # noqa: S603 - programs and words are ours
        [found, *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
    )
    if done.returncode not in codes:
        raise SpecError(f"{program} {' '.join(words)}: {done.stdout[-2000:]}")
    return done.stdout
