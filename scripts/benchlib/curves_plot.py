"""Draws accuracy by epoch: a thin line for each run, and a thick one for the mean of the runs of a kind."""

from statistics import fmean

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 400, 60, 64, 20, 44
COLOURS = ["#1b9e77", "#d95f02", "#7570b3"]


def drawing(curves, title):
    """An SVG of `curves`: for each kind, the percentages of each of its runs, epoch by epoch."""
    values = sorted(value for runs in curves.values() for run in runs for value in run)
    # The first epochs may be far below: the scale shows nine tenths of the values.
    low = 5 * (values[len(values) // 10] // 5)
    high = min(100.0, 5 * (values[-1] // 5 + 1))
    epochs = max(len(run) for runs in curves.values() for run in runs)

    def x(epoch):
        return LEFT + epoch / max(epochs - 1, 1) * (WIDTH - LEFT - RIGHT)

    def y(value):
        return TOP + (high - max(value, low)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def line(run, colour, width, opacity):
        points = " ".join(f"{x(epoch):.1f},{y(value):.1f}" for epoch, value in enumerate(run))
        return (
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}" '
            f'stroke-opacity="{opacity}"/>'
        )

    space = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11"'
    drawn = [
        f'<svg {space} width="{WIDTH}" height="{HEIGHT}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20">{title}</text>',
    ]
    for tick in range(6):
        value = low + (high - low) * tick / 5
        drawn.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        drawn.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g} %</text>')
    for epoch in range(0, epochs, max(1, epochs // 10)):
        drawn.append(f'<text x="{x(epoch):.1f}" y="{HEIGHT - 26}" text-anchor="middle">{epoch + 1}</text>')
    drawn.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">epoch</text>')
    for place, (kind, runs) in enumerate(curves.items()):
        colour, left = COLOURS[place % len(COLOURS)], LEFT + 180 * place
        drawn.append(f'<rect x="{left}" y="34" width="10" height="10" fill="{colour}"/>')
        drawn.append(f'<text x="{left + 14}" y="43">{kind}, mean and each seed</text>')
        drawn += [line(run, colour, 0.8, 0.5) for run in runs]
        drawn.append(line([fmean(values) for values in zip(*runs, strict=True)], colour, 2, 1))
    return "\n".join([*drawn, "</svg>\n"])
