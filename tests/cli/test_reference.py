"""The reference pages say what the code says: keys of the configuration, names of metrics."""

from __future__ import annotations

import pytest

from postroom.cli.configuration import CONSUMER_SETTINGS, SETTINGS
from postroom.telemetry.metric_names import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    MESSAGE_COUNTERS,
    MESSAGE_GAUGES,
    MESSAGE_HISTOGRAMS,
    TOTALS,
    documented,
)
from tests.unit.test_docs import first_names, rows

KINDS = {
    "names": "list of names",
    "url": "URL",
    "text": "text",
    "int": "whole number",
    "seconds": "seconds",
}


def test_every_key_is_documented_with_its_default():
    table = {row[0].strip("`"): row[1:] for row in rows("configuration.md", "Keys")}
    assert list(table) == list(SETTINGS)
    for name, known in SETTINGS.items():
        kind, default, in_section = table[name]
        words = known.kind.split("|")
        expected = (
            KINDS.get(known.kind) or ", ".join(f"`{w}`" for w in words[:-1]) + f" or `{words[-1]}`"
        )
        assert kind == expected, name
        assert in_section == ("yes" if known.of_relay else "no"), name
        if known.default not in (None, ""):
            written = default.strip("`")
            if known.kind == "seconds":
                assert float(written) == known.default, name
            else:
                assert written == str(known.default), name


def test_every_key_of_a_consumer_is_documented():
    assert first_names("configuration.md", "Consumers") == list(CONSUMER_SETTINGS)


@pytest.mark.req("S2.7")
def test_every_metric_is_documented_with_its_text():
    table = {row[0].strip("`"): row for row in rows("metrics.md", "Metrics")}
    assert sorted(table) == documented()
    texts = {f"{name}_total": text for name, (text, _) in COUNTERS.items()}
    texts |= {f"{name}_total": text for name, text in (TOTALS | MESSAGE_COUNTERS).items()}
    texts |= {name: text for name, (text, _) in (*HISTOGRAMS.items(), *GAUGES.items())}
    texts |= {name: text for name, (text, _) in MESSAGE_HISTOGRAMS.items()} | MESSAGE_GAUGES
    assert {name: row[3] for name, row in table.items()} == texts
    labels = {name: ", ".join(labels) for name, (_, labels) in GAUGES.items()}
    assert {name: table[name][2] for name in GAUGES} == labels
