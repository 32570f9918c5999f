"""Draws which chunks were resident over time, and how fast all jobs together went (Quiver, Figure 7)."""

WIDTH, ROW, LEFT, TOP, RATES, BOTTOM = 900, 16, 60, 40, 120, 40
COLOURS = {"loading": "#d95f02", "complete": "#1b9e77", "marked": "#bdbdbd"}


def drawing(looks, rates, joined):
    """An SVG: a row for each chunk, and below them entries a second; a line where more jobs came."""
    begun, ended = looks[0][0], looks[-1][0]
    chunks = 1 + max((one["chunk"] for _, resident in looks for one in resident), default=0)
    base = TOP + ROW * chunks
    height = base + RATES + BOTTOM

    def x(moment):
        return LEFT + (moment - begun) / (ended - begun) * (WIDTH - LEFT - 20)

    space = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11"'
    drawn = [
        f'<svg {space} width="{WIDTH}" height="{height}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for place, (state, colour) in enumerate(COLOURS.items()):
        left = LEFT + 90 * place
        drawn.append(f'<rect x="{left}" y="14" width="10" height="10" fill="{colour}"/>')
        drawn.append(f'<text x="{left + 14}" y="23">{state}</text>')
    for chunk in range(chunks):
        y = TOP + ROW * chunk
        drawn.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{chunk}</text>')
    for begin, end, chunk, state in spans(looks):
        drawn.append(
            f'<rect x="{x(begin):.1f}" y="{TOP + ROW * chunk + 2}" width="{x(end) - x(begin):.1f}" '
            f'height="{ROW - 4}" fill="{COLOURS[state]}"/>'
        )
    most = max((rate for _, rate in rates), default=0) or 1
    scale = (RATES - 20) / most
    points = " ".join(f"{x(at + 0.5):.1f},{base + RATES - rate * scale:.1f}" for at, rate in rates)
    drawn += [
        f'<polyline points="{points}" fill="none" stroke="#7570b3" stroke-width="1.5"/>',
        f'<text x="{LEFT - 8}" y="{base + 24}" text-anchor="end">{most:.0f}/s</text>',
        f'<path d="M{x(joined):.1f} {TOP}V{base + RATES}" stroke="black" stroke-dasharray="4 3"/>',
    ]
    for tick in range(6):
        moment = begun + (ended - begun) * tick / 5
        place = f'x="{x(moment):.1f}" y="{base + RATES + 16}" text-anchor="middle"'
        drawn.append(f"<text {place}>{moment - begun:.0f}</text>")
    drawn.append(f'<text x="{WIDTH / 2}" y="{height - 8}" text-anchor="middle">seconds</text>')
    return "\n".join([*drawn, "</svg>\n"])


def spans(looks):
    """From when until when each chunk was in a state: (begin, end, chunk, state)."""
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
