"""Charts as SVG, drawn by the server: sparklines, the strip of lanes, the chart of a store.

Only numbers and fixed texts are drawn; names are escaped. Colours come from the style sheet.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from markupsafe import Markup, escape

from postroom.dashboard.sample import RelayNow
from postroom.dashboard.watch import Mark, Point

_GAP_SECONDS = 60.0  # no viewer was there: the line is interrupted
_COLOURS = 8
_WIDTH, _HEIGHT = 900, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 10, 20


def sparkline(points: Sequence[tuple[float, float]], name: str) -> Markup:
    """Return a small line of the last values, without axes."""
    points = points[-200:]
    if len(points) < 2:
        return Markup('<svg class="spark" viewBox="0 0 96 22" aria-hidden="true"></svg>')
    first, last = points[0][0], points[-1][0]
    most = max((value for _, value in points), default=0.0) or 1.0
    span = max(last - first, 1.0)
    line = " ".join(
        f"{(at - first) / span * 94 + 1:.1f},{20 - value / most * 18:.1f}" for at, value in points
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 96 22" role="img" aria-label="{name}, highest {most}">'
        '<polyline points="{line}"/></svg>'
    ).format(name=name, most=_short(most), line=line)


def lanes(owners: Sequence[int | None], relays: Sequence[RelayNow]) -> Markup:
    """Return a strip of lanes, coloured by their relay."""
    held = sum(owner is not None for owner in owners)
    rects = Markup("").join(
        Markup('<rect x="{x}" y="0" width="3" height="14" class="{c}"/>').format(
            x=4 * lane, c="free" if owner is None else f"o{owner % _COLOURS}"
        )
        for lane, owner in enumerate(owners)
    )
    names = ", ".join(f"{one.name or one.owner[:8]}: {one.lanes}" for one in relays) or "no relay"
    label = f"{held} of {len(owners)} lanes held; {names}"
    return Markup(
        '<svg class="lanes" viewBox="0 0 256 14" role="img" preserveAspectRatio="none" '
        'aria-label="{label}"><title>{label}</title>{rects}</svg>'
    ).format(label=label, rects=rects)


def chart(points: Sequence[Point], marks: Iterable[Mark], seconds: float) -> Markup:
    """Return the chart of the last seconds: added and confirmed above, delays below."""
    now = time.time()
    begin = now - seconds
    seen = [point for point in points if point.at >= begin]
    shown_marks = [mark for mark in marks if mark.at >= begin]
    rates = _panel(
        "Events per second", seen, begin, seconds, shown_marks,
        (("added", [p.added for p in seen]), ("confirmed", [p.confirmed for p in seen])),
    )  # fmt: skip
    delays = _panel(
        "Seconds from commit to confirm", seen, begin, seconds, (),
        (("p99", [p.p99 for p in seen]), ("p50", [p.p50 for p in seen])),
    )  # fmt: skip
    return Markup('<div class="charts">{}{}</div>').format(rates, delays)


def _panel(
    title: str,
    points: Sequence[Point],
    begin: float,
    seconds: float,
    marks: Sequence[Mark],
    series: Sequence[tuple[str, Sequence[float | None]]],
) -> Markup:
    values = [value for _, line in series for value in line if value is not None]
    most = _ceiling(max(values, default=0.0))
    plot_width, plot_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(at: float) -> float:
        return _LEFT + (at - begin) / seconds * plot_width

    def y(value: float) -> float:
        return _TOP + plot_height - min(value, most) / most * plot_height

    parts = [
        Markup(
            '<line class="grid" x1="{a}" x2="{b}" y1="{y}" y2="{y}"/>'
            '<text class="axis" x="{t}" y="{ty}" text-anchor="end">{v}</text>'
        ).format(
            a=_LEFT,
            b=_WIDTH - _RIGHT,
            y=f"{y(share * most):.1f}",
            t=_LEFT - 6,
            ty=f"{y(share * most) + 4:.1f}",
            v=_short(share * most),
        )
        for share in (0.0, 0.5, 1.0)
    ]
    for step in range(5):
        at = begin + seconds * step / 4
        anchor = "start" if step == 0 else "end" if step == 4 else "middle"
        parts.append(
            Markup('<text class="axis" x="{x}" y="{y}" text-anchor="{a}">{t}</text>').format(
                x=f"{x(at):.0f}",
                y=_HEIGHT - 5,
                a=anchor,
                t=datetime.fromtimestamp(at, UTC).strftime("%H:%M"),
            )
        )
    for mark in marks:
        kind = mark.what.partition(" ")[0]
        parts.append(
            Markup(
                '<g class="mark {k}"><line x1="{x}" x2="{x}" y1="{t}" y2="{b}"/>'
                "<title>{what}: {stream}</title></g>"
            ).format(
                k=kind,
                x=f"{x(mark.at):.1f}",
                t=_TOP,
                b=_TOP + plot_height,
                what=mark.what,
                stream=mark.stream,
            )
        )
    for name, line in series:
        for run in _runs(points, line):
            text = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in run)
            parts.append(Markup('<polyline class="line {}" points="{}"/>').format(name, text))
    legend = Markup("").join(
        Markup('<span class="key {c}">{c}</span>').format(c=name) for name, _ in series
    )
    empty = (
        ""
        if values
        else Markup('<text class="axis" x="450" y="75" text-anchor="middle">no figures yet</text>')
    )
    return Markup(
        '<figure class="chart"><figcaption>{title}{legend}</figcaption>'
        '<svg viewBox="0 0 {w} {h}" role="img" aria-label="{title}">{body}{empty}</svg></figure>'
    ).format(
        title=escape(title), legend=legend, w=_WIDTH, h=_HEIGHT, body=Markup("").join(parts),
        empty=empty,
    )  # fmt: skip


def _runs(
    points: Sequence[Point], line: Sequence[float | None]
) -> Iterable[list[tuple[float, float]]]:
    """Yield the parts of a line without gaps."""
    run: list[tuple[float, float]] = []
    for point, value in zip(points, line, strict=True):
        if run and (value is None or point.at - run[-1][0] > _GAP_SECONDS):
            yield run
            run = []
        if value is not None:
            run.append((point.at, value))
    if run:
        yield run


def _ceiling(value: float) -> float:
    """Return a round number at or above a value."""
    if value <= 0:
        return 1.0
    unit = 1.0
    while unit * 10 <= value:
        unit *= 10
    while unit > value:
        unit /= 10
    return next(unit * step for step in (1, 2, 5, 10) if unit * step >= value)


def _short(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    if value >= 10_000:
        return f"{value / 1_000:g}k"
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def merged(histories: Iterable[Sequence[Point]]) -> list[Point]:
    """Return the points of several streams as one: rates are added, delays are the worst."""
    by_time: dict[float, Point] = {}
    for points in histories:
        for one in points:
            old = by_time.get(one.at)
            by_time[one.at] = one if old is None else _joined(old, one)
    return [by_time[at] for at in sorted(by_time)]


def _joined(a: Point, b: Point) -> Point:
    return Point(
        a.at,
        (a.added or 0.0) + (b.added or 0.0),
        (a.confirmed or 0.0) + (b.confirmed or 0.0),
        a.waiting + b.waiting,
        max(a.lag_seconds, b.lag_seconds),
        _worst(a.p50, b.p50),
        _worst(a.p99, b.p99),
    )


def _worst(a: float | None, b: float | None) -> float | None:
    found = [value for value in (a, b) if value is not None]
    return max(found, default=None)
