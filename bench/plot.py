"""Curves as an SVG file: axes, ticks, a line for each curve, a legend. Nothing else."""

from html import escape
from math import floor, log10
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 420, 80, 40, 20, 60
COLOURS = ("#1b6ca8", "#c1440e", "#3a7d44", "#7b3f9d", "#8a6d00", "#444444")


def ticks(most, wanted=5):
    """Round numbers from 0 to at least `most`, about as many as wanted."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / wanted
    unit = 10 ** floor(log10(rough))
    step = next(unit * one for one in (1, 2, 5, 10) if unit * one >= rough)
    values = [0.0]
    while values[-1] < most:
        values.append(values[-1] + step)
    return values


def label(value):
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def chart(title, x_label, y_label, curves):
    """Return an SVG of curves: name → (x, y) points; both axes begin at 0."""
    points = [point for curve in curves.values() for point in curve]
    across = ticks(max((x for x, _ in points), default=1))
    upward = ticks(max((y for _, y in points), default=1))

    def place(x, y):
        left = LEFT + x / across[-1] * (WIDTH - LEFT - RIGHT)
        return left, HEIGHT - BOTTOM - y / upward[-1] * (HEIGHT - TOP - BOTTOM)

    def text(x, y, words, anchor="middle", more=""):
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<style>text { font: 12px sans-serif }</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(WIDTH / 2, 20, title),
        text(WIDTH / 2, HEIGHT - 24, x_label),
        text(16, HEIGHT / 2, y_label, more=f' transform="rotate(-90 16 {HEIGHT / 2})"'),
    ]
    for value in upward:
        x, y = place(0, value)
        parts.append(f'<path d="M{x:.1f} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(text(x - 6, y + 4, label(value), "end"))
    for value in across:
        x, y = place(value, 0)
        parts.append(text(x, y + 16, label(value)))
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x = LEFT + number * 180
        parts.append(f'<rect x="{x}" y="{HEIGHT - 14}" width="10" height="10" fill="{colour}"/>')
        parts.append(text(x + 14, HEIGHT - 5, name, "start"))
    return "\n".join((*parts, "</svg>", ""))


def write(folder, name, *words, curves):
    """Write a chart into a folder, if there is one."""
    if folder:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{name}.svg").write_text(chart(*words, curves))
