"""Draws curves as SVG: accuracy by epoch, and run times by the size of the cache.

Series differ in colour (Okabe and Ito) and in the shape of their points. The legend is above the plot.
"""

from statistics import fmean
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 440, 76, 78, 36, 72
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"]
GRID, AXIS = "#e2e2e2", "#808080"
LETTER = 0.62
"""The mean width of a letter by the size of its font, for wide fonts."""


class Axis:
    """One axis: its ticks, with their texts, from its first value to its last."""

    def __init__(self, ticks, first, last, label):
        self.ticks, self.first, self.last, self.label = ticks, first, last, label

    def part(self, value):
        """The place of a value between the first and the last, from 0 to 1."""
        return (value - self.first) / (self.last - self.first or 1)


class Drawing:
    """An SVG of curves with two axes."""

    def __init__(self, title, across, upwards, note=""):
        self.across, self.upwards, self.legend_end = across, upwards, LEFT - 56
        self.drawn = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            f'<text x="{LEFT - 56}" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
        ]
        right, base = WIDTH - RIGHT, HEIGHT - BOTTOM
        for value, text in upwards.ticks:
            y = self.y(value)
            self.drawn.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="{GRID}"/>')
            self.drawn.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        for value, text in across.ticks:
            x = self.x(value)
            self.drawn.append(f'<path d="M{x:.1f} {base}v5" stroke="{AXIS}"/>')
            self.drawn.append(f'<text x="{x:.1f}" y="{base + 20}" text-anchor="middle">{text}</text>')
        middle = (TOP + base) / 2
        self.drawn += [
            f'<path d="M{LEFT} {TOP}V{base}H{right}" stroke="{AXIS}" fill="none"/>',
            f'<text x="{(LEFT + right) / 2}" y="{base + 40}" text-anchor="middle" font-size="13">'
            f"{escape(across.label)}</text>",
            f'<text x="20" y="{middle}" text-anchor="middle" font-size="13" '
            f'transform="rotate(270 20 {middle})">{escape(upwards.label)}</text>',
            f'<text x="{LEFT - 56}" y="{HEIGHT - 10}" font-size="11">{escape(note)}</text>',
        ]

    def x(self, value):
        return LEFT + self.across.part(value) * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        return TOP + (1 - self.upwards.part(value)) * (HEIGHT - TOP - BOTTOM)

    def name(self, place, text):
        """Adds series `place` to the legend."""
        left = self.legend_end
        self.drawn.append(f'<path d="M{left} 50h30" stroke="{colour(place)}" stroke-width="2.5"/>')
        self.drawn.append(shape(place, left + 15, 50))
        self.drawn.append(f'<text x="{left + 38}" y="54" font-size="13">{escape(text)}</text>')
        self.legend_end += 38 + 13 * LETTER * len(text) + 24

    def curve(self, place, points, width=2.5, opacity=1.0, marked=True):
        """Draws a curve through (x, y) of `points`. Points below the axis are left out."""
        points = [(self.x(x), self.y(y)) for x, y in points if y >= self.upwards.first]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.drawn.append(
            f'<polyline points="{line}" fill="none" stroke="{colour(place)}" stroke-width="{width:g}" '
            f'stroke-opacity="{opacity:g}"/>'
        )
        if marked:
            self.drawn += [shape(place, x, y) for x, y in points]

    def text(self):
        return "\n".join([*self.drawn, "</svg>\n"])


def colour(place):
    return COLOURS[place % len(COLOURS)]


def shape(place, x, y):
    """The mark of a point of series `place`: a circle, a square, a triangle or a diamond."""
    style = f'fill="{colour(place)}" stroke="white"'
    corners = [
        None,
        [(-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)],
        [(0, -6), (5.5, 4.5), (-5.5, 4.5)],
        [(0, -6.5), (6.5, 0), (0, 6.5), (-6.5, 0)],
    ][place % 4]
    if corners is None:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" {style}/>'
    points = " ".join(f"{x + right:.1f},{y + down:.1f}" for right, down in corners)
    return f'<polygon points="{points}" {style}/>'


def by_epoch(curves, title):
    """An SVG of `curves`: for each kind, the percentages of each of its runs, epoch by epoch."""
    values = sorted(value for runs in curves.values() for run in runs for value in run)
    # The first epochs may be far below: the scale shows nine tenths of the values.
    low = 5 * (values[len(values) // 10] // 5)
    high = min(100.0, 5 * (values[-1] // 5 + 1))
    means = {kind: [fmean(epoch) for epoch in zip(*runs, strict=True)] for kind, runs in curves.items()}
    return epochs_drawing(curves, means, (low, high), title)


def epochs_drawing(curves, means, limits, title):
    """An SVG of runs and of their means, between two percentages."""
    low, high = limits
    epochs = max(len(run) for runs in curves.values() for run in runs)
    heights = [low + (high - low) * tick / 5 for tick in range(6)]
    shown = range(0, epochs, max(1, epochs // 10))
    drawing = Drawing(
        title,
        Axis([(epoch, epoch + 1) for epoch in shown], 0, epochs - 1, "epoch"),
        Axis([(value, f"{value:g} %") for value in heights], low, high, "accuracy"),
        f"Thin lines are single seeds. Epochs below {low:g} % are not shown.",
    )
    for place, runs in enumerate(curves.values()):
        for run in runs:
            drawing.curve(place, enumerate(run), 1, 0.5, marked=False)
    for place, (kind, mean) in enumerate(means.items()):
        drawing.name(place, f"{kind}, mean of {len(curves[kind])} seeds")
        drawing.curve(place, enumerate(mean))
    return drawing.text()


def by_cache(curves, title):
    """An SVG of `curves`: for each way, its seconds by the percentage of the inputs that the cache holds."""
    sizes = sorted({size for points in curves.values() for size, _ in points})
    most = max(seconds for points in curves.values() for _, seconds in points)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000) if step * 8 >= most)
    heights = range(0, int(most) + step, step)
    drawing = Drawing(
        title,
        Axis([(size, f"{size} %") for size in sizes], 0, sizes[-1], "cache, in percent of the bytes of all inputs"),
        Axis([(value, f"{value:,}") for value in heights], 0, heights[-1], "time (seconds)"),
    )
    for place, (way, points) in enumerate(curves.items()):
        drawing.name(place, way)
        drawing.curve(place, sorted(points))
    return drawing.text()
