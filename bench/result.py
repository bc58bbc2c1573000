"""One shape of result for every benchmark: a line of JSON, and a row of a table."""

import dataclasses
import json
import os
import platform
import statistics
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "postroom", "psycopg", "psycopg-pool", "asyncpg", "asyncmy", "PyMySQL", "pymongo",
    "confluent-kafka", "aio-pika", "aiormq", "aiosqlite",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """Something of ours beside its reference, measured in the same rounds.

    ratio       ours by the reference: of rates more is better, of times and of memory less
    spread      the least and the most of ours over the rounds, and below it of the reference
    relays      how many relay processes
    note        what a reader must know to judge the line
    series      (x, y) points of a curve, where there is one
    """

    suite: str
    part: str
    name: str
    ours: float
    reference: float
    against: str
    unit: str
    spread: tuple[float, float]
    reference_spread: tuple[float, float]
    events: int
    batch: int
    rounds: int
    relays: int = 1
    quick: bool = False
    note: str = ""
    series: tuple[tuple[float, float], ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    machine: str = ""
    load: str = ""
    measured_at: str = ""

    @property
    def ratio(self):
        return self.ours / self.reference if self.reference else 0.0

    def line(self):
        """The JSON object of the results file."""
        fields = dataclasses.asdict(self)
        return json.dumps({**fields, "ratio": self.ratio}, ensure_ascii=False)

    @classmethod
    def parse(cls, line):
        fields = json.loads(line)
        fields.pop("ratio")
        for name in ("spread", "reference_spread"):
            fields[name] = tuple(fields[name])
        fields["series"] = tuple(map(tuple, fields["series"]))
        return cls(**fields)


def versions(**servers):
    """The versions of all that takes part: Python, the drivers, and the servers that are named."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found | {name: value for name, value in servers.items() if value}


def machine():
    """Cores, memory and processor of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    model = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, {platform.system()}"


def load():
    """What else the machine does: its load over one minute and over fifteen."""
    one, _, fifteen = os.getloadavg()
    return f"{one:.1f} {fifteen:.1f}"


def beside(figures, ours, reference, **fields):
    """Make the result of one contestant's figures beside another's; each is a list over rounds."""
    mine, other = figures[ours], figures[reference]
    return Result(
        **{
            "name": ours, "against": reference, "unit": "events/s", "rounds": len(mine),
            "machine": machine(), "load": load(),
            "measured_at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            **fields,
        },
        ours=statistics.median(mine), reference=statistics.median(other),
        spread=(min(mine), max(mine)), reference_spread=(min(other), max(other)),
    )  # fmt: skip


def append(path, results):
    """Add results to the file, all at once, so that a part is there whole or not at all."""
    text = "".join(result.line() + "\n" for result in results)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("a") as file:
        file.write(text)


def load_file(path):
    """Read a file of results; one that is not there has none."""
    file = Path(path)
    if not file.exists():
        return []
    return [Result.parse(line) for line in file.read_text().splitlines() if line.strip()]


def number(value):
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(results):
    """Rows for people, one block for each part."""
    lines, part, note = [], None, ""
    for one in results:
        if (one.suite, one.part) != part:
            part, note = (one.suite, one.part), ""
            what = f"{one.events:,} events, batch {one.batch}" if one.events else ""
            head = ", ".join(x for x in (what, f"{one.rounds} rounds", f"load {one.load}") if x)
            lines += ["", f"{one.suite}: {one.part} ({head})"]
        spread = "–".join(number(value) for value in one.spread)
        other = "–".join(number(value) for value in one.reference_spread)
        lines.append(
            f"  {one.name:44} {number(one.ours):>9} {one.unit:8} {spread:>17}"
            f"   {one.ratio:6.2f} × {one.against} ({number(one.reference)}, {other})"
        )
        if one.note not in ("", note):
            lines.append(f"      {one.note}")
        note = one.note
    return "\n".join(lines)
