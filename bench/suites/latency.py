"""From a commit to the destination's call, when the relay was idle. Times: less is better."""

import statistics
import tempfile

from bench import latency
from bench.result import beside, versions

POLL = "poll"


def sqlite(yard):
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        return _measure(yard, "sqlite", f"sqlite:///{folder}/app.db", ["kick", POLL])


def postgres(yard):
    return _measure(yard, "postgres18", yard.server("postgres18").url, ["kick", "notify", POLL])


def _measure(yard, part, url, ways):
    count = yard.size(100, 20)
    took = latency.measure(url, ways, count, yard.rounds)
    medians = {way: [statistics.median(one) for one in found] for way, found in took.items()}
    results = []
    for way in ways[:-1]:
        p99, worst = (latency.percentile(took[way], at) for at in (0.99, 1))
        results.append(
            beside(
                medians, way, POLL, suite="latency", part=part, unit="ms", events=count, batch=1,
                quick=yard.quick, versions=versions(), note=f"p99 {p99:.2f} ms, worst {worst:.2f}",
            )
        )  # fmt: skip
    return results


PARTS = {"sqlite": sqlite, "postgres18": postgres}
