"""Draws curves: accuracy by epoch, and runs by the size of their cache."""

from statistics import fmean

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 400, 60, 64, 20, 44
COLOURS = ["#1b9e77", "#d95f02", "#7570b3", "#666666"]


class Axis:
    """One axis: its ticks, with their texts, from its first value to its last."""

    def __init__(self, ticks, first, last, label=""):
        self.ticks, self.first, self.last, self.label = ticks, first, last, label

    def part(self, value):
        """Where a value lies between the first and the last, from 0 to 1."""
        return (value - self.first) / (self.last - self.first or 1)


class Drawing:
    """An SVG of curves with two axes."""

    def __init__(self, title, across, upwards):
        self.across, self.upwards = across, upwards
        space = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11"'
        self.drawn = [
            f'<svg {space} width="{WIDTH}" height="{HEIGHT}">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            f'<text x="{LEFT}" y="20">{title}</text>',
        ]
        for value, text in upwards.ticks:
            y = self.y(value)
            self.drawn.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
            self.drawn.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        for value, text in across.ticks:
            x = self.x(value)
            self.drawn.append(f'<text x="{x:.1f}" y="{HEIGHT - 26}" text-anchor="middle">{text}</text>')
        self.drawn.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">{across.label}</text>')

    def x(self, value):
        return LEFT + self.across.part(value) * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        return TOP + (1 - max(self.upwards.part(value), 0)) * (HEIGHT - TOP - BOTTOM)

    def name(self, place, text):
        """The legend of the curves of colour `place`."""
        left = LEFT + 180 * place
        self.drawn.append(f'<rect x="{left}" y="34" width="10" height="10" fill="{colour(place)}"/>')
        self.drawn.append(f'<text x="{left + 14}" y="43">{text}</text>')

    def curve(self, place, points, width=2.0, opacity=1.0):
        """A curve through (x, y) of `points`."""
        points = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.drawn.append(
            f'<polyline points="{points}" fill="none" stroke="{colour(place)}" stroke-width="{width:g}" '
            f'stroke-opacity="{opacity:g}"/>'
        )

    def text(self):
        return "\n".join([*self.drawn, "</svg>\n"])


def colour(place):
    return COLOURS[place % len(COLOURS)]


def by_epoch(curves, title):
    """An SVG of `curves`: for each kind, the percentages of each of its runs, epoch by epoch."""
    values = sorted(value for runs in curves.values() for run in runs for value in run)
    # The first epochs may be far below: the scale shows nine tenths of the values.
    low = 5 * (values[len(values) // 10] // 5)
    high = min(100.0, 5 * (values[-1] // 5 + 1))
    epochs = max(len(run) for runs in curves.values() for run in runs)
    heights = [low + (high - low) * tick / 5 for tick in range(6)]
    shown = range(0, epochs, max(1, epochs // 10))
    drawing = Drawing(
        title,
        Axis([(epoch, epoch + 1) for epoch in shown], 0, epochs - 1, "epoch"),
        Axis([(value, f"{value:g} %") for value in heights], low, high),
    )
    for place, (kind, runs) in enumerate(curves.items()):
        drawing.name(place, f"{kind}, mean and each seed")
        for run in runs:
            drawing.curve(place, enumerate(run), 0.8, 0.5)
        drawing.curve(place, enumerate(map(fmean, zip(*runs, strict=True))))
    return drawing.text()


def by_cache(curves, title):
    """An SVG of `curves`: for each way, its seconds by the percentage of the inputs that the cache has."""
    sizes = sorted({size for points in curves.values() for size, _ in points})
    most = max(seconds for points in curves.values() for _, seconds in points)
    step = max(1, round(most / 6))
    heights = range(0, int(most) + step, step)
    drawing = Drawing(
        title,
        Axis([(size, f"{size} %") for size in sizes], sizes[0], sizes[-1], "cache, of the bytes of all inputs"),
        Axis([(value, f"{value} s") for value in heights], 0, heights[-1]),
    )
    for place, (way, points) in enumerate(curves.items()):
        drawing.name(place, way)
        drawing.curve(place, sorted(points))
    return drawing.text()
