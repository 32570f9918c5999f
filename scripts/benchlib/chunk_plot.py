"""Draws the chunks that were resident over time, and the rate of all jobs together (Quiver, Figure 7)."""

WIDTH, ROW, LEFT, RIGHT, TOP, GAP, RATES, BOTTOM = 900, 18, 84, 36, 74, 26, 150, 52
STATES = {"loading": ("#e69f00", 6), "complete": ("#0072b2", 14), "marked": ("#909090", 10)}
"""Of each state: its colour (Okabe and Ito), and the height of its bars."""
RATE_COLOUR, GRID, AXIS = "#009e73", "#e2e2e2", "#808080"


def drawing(looks, rates, joined):
    """An SVG: a row for each chunk, and below them entries a second; a line where more jobs started."""
    begun = looks[0][0]
    relative = [(begin - begun, end - begun, chunk, state) for begin, end, chunk, state in spans(looks)]
    # A rate is that of a whole second.
    points = [(at + 0.5 - begun, rate) for at, rate in rates]
    return chart(relative, points, joined - begun, looks[-1][0] - begun)


def chart(boxes, rates, joined, ended):
    """An SVG of (begin, end, chunk, state) and (moment, rate), in seconds from the first look to `ended`."""
    chunks = 1 + max((chunk for _, _, chunk, _ in boxes), default=0)
    base = TOP + ROW * chunks
    foot = base + GAP + RATES
    height, right = foot + BOTTOM, WIDTH - RIGHT

    def x(moment):
        return LEFT + moment / ended * (right - LEFT)

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<text x="20" y="24" font-size="15" font-weight="bold">'
        "Resident chunks of a dataset, and entries per second of all jobs</text>",
    ]
    for place, (state, (colour, bar)) in enumerate(STATES.items()):
        left = 20 + 110 * place
        drawn.append(f'<rect x="{left}" y="{46 - bar / 2}" width="22" height="{bar}" fill="{colour}"/>')
        drawn.append(f'<text x="{left + 29}" y="50">{state}</text>')
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000) if step * 9 >= ended)
    for moment in range(0, int(ended) + 1, step):
        at = f"{x(moment):.1f}"
        drawn.append(f'<path d="M{at} {TOP}V{foot}" stroke="{GRID}"/>')
        drawn.append(f'<text x="{at}" y="{foot + 18}" text-anchor="middle">{moment:,}</text>')
    for chunk in range(chunks):
        y = TOP + ROW * (chunk + 0.5)
        drawn.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{chunk}</text>')
    for begin, end, chunk, state in boxes:
        colour, bar = STATES[state]
        y = TOP + ROW * (chunk + 0.5) - bar / 2
        size = f'width="{x(end) - x(begin):.1f}" height="{bar}"'
        drawn.append(f'<rect x="{x(begin):.1f}" y="{y:g}" {size} fill="{colour}"/>')
    drawn += rate_curve(rates, x, foot)
    drawn += [
        f'<path d="M{x(joined):.1f} {TOP - 4}V{foot}" stroke="black" stroke-dasharray="5 3"/>',
        f'<text x="{x(joined):.1f}" y="{TOP - 9}" text-anchor="middle">more jobs start</text>',
        upright("chunk", TOP + ROW * chunks / 2),
        upright("entries per second", foot - RATES / 2),
        f'<path d="M{LEFT} {TOP}V{base}M{LEFT} {foot - RATES}V{foot}H{right}" stroke="{AXIS}" fill="none"/>',
        f'<text x="{(LEFT + right) / 2}" y="{height - 12}" text-anchor="middle" font-size="13">'
        "time (seconds)</text>",
    ]
    return "\n".join([*drawn, "</svg>\n"])


def rate_curve(rates, x, foot):
    """The curve of the rates above `foot`, with its grid."""
    most = max((rate for _, rate in rates), default=0) or 1
    step = next(step * 10**power for power in range(9) for step in (1, 2, 5) if step * 10**power * 4 >= most)
    scale = RATES / (most * 1.05)
    drawn = []
    for rate in range(0, int(most) + 1, step):
        y = foot - rate * scale
        drawn.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        drawn.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{rate:,}</text>')
    points = " ".join(f"{x(at):.1f},{foot - rate * scale:.1f}" for at, rate in rates)
    drawn.append(f'<polyline points="{points}" fill="none" stroke="{RATE_COLOUR}" stroke-width="2"/>')
    return drawn


def upright(text, middle):
    """The title of an upright axis."""
    return (
        f'<text x="24" y="{middle}" text-anchor="middle" font-size="13" '
        f'transform="rotate(270 24 {middle})">{text}</text>'
    )


def spans(looks):
    """The times in which each chunk was in a state: (begin, end, chunk, state)."""
    open_spans, found = {}, []
    for at, resident in [*looks, (looks[-1][0], [])]:
        now = {one["chunk"]: one["state"] for one in resident}
        for chunk, (begin, state) in list(open_spans.items()):
            if now.get(chunk) != state:
                found.append((begin, at, chunk, state))
                del open_spans[chunk]
        for chunk, state in now.items():
            open_spans.setdefault(chunk, (at, state))
    return found
