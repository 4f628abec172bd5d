#!/usr/bin/env python3
"""Draws the hand-off (kvcache/handoff.svg) from the state tables of kvcache/HANDOFF.md.

  scripts/draw_handoff.py            writes the picture
  scripts/draw_handoff.py --check    exit 1 when the picture is not the one of the tables

The tables are printed from the rows that run. The picture shows, for each of the three state
machines, the path of a request that succeeds, and the states in which a fault is waited out. The
arrows between states and the messages between workers stand in a table: a row that goes away or
leads to another state ends the script. Four arrows stand in none and are drawn by hand: "request",
"place", "token 0" and "other tokens".
"""

import html
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "kvcache" / "HANDOFF.md"
PICTURE = ROOT / "kvcache" / "handoff.svg"

WIDTH, STATE_WIDTH, STATE_HEIGHT = 960, 128, 26
LANES = {"router": 250, "prefill": 520, "decode": 790}  # name: middle, in pixels
TITLES = {
    "router": "router",
    "prefill": "prefill worker: source blocks",
    "decode": "decode worker: destination blocks",
}
SECTIONS = {
    "router": "Router states",
    "prefill": "Prefill worker: source blocks",
    "decode": "Decode worker: destination blocks",
}
# The states of each machine in the order of a request that succeeds, with the event that leads
# to the next one, and the height at which each state stands.
PATHS = {
    "router": [
        ("received", "validated", 80),
        ("queued", "placed", 130),
        ("placing", "reserved by D", 180),
        ("reserved", "prompt started", 250),
        ("prefilling", "first KV", 320),
        ("transferring", "all KV at D", 390),
        ("decoding", "last token", 470),
        ("done", None, 560),
    ],
    "prefill": [
        ("computing", "grant", 210),
        ("exporting", "prompt done", 320),
        ("exported", "applied", 384),
        ("draining", "last closed", 470),
        ("free", None, 560),
    ],
    "decode": [
        ("reserved", "progress", 210),
        ("receiving", "all in", 320),
        ("verified", "receive closed", 436),
        ("bound", None, 500),
    ],
}
# Messages: from (machine, state, operation that sends it) to (machine, event that hears it), the
# height and the words.
MESSAGES = [
    ("decode", "reserved", "send Grant", "prefill", "grant", 240, "Grant"),
    ("prefill", "exporting", "export sealed slices", "decode", "progress", 292, "slices"),
    ("prefill", "exporting", "send Seal", "decode", "all in", 368, "Seal"),
    ("decode", "receiving", "send Applied", "prefill", "applied", 426, "Applied"),
]
# States in which faults are waited out: machine, state, an event that leads there from a state of
# the path, the way on (event, next state).
FAULTS = [
    ("router", "recover", "decoding", "fault", ("placed", "placing")),
    ("prefill", "stranded", "exported", "lease expired", ("retarget", "computing")),
    ("decode", "draining", "receiving", "peer down", ("receive closed", "released")),
]


def read_tables(page):
    """{machine: [(states, event, next state, operations)]} of the page's state tables."""
    tables = {}
    for machine, title in SECTIONS.items():
        section = page.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
        rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", section, re.M)
        tables[machine] = [
            (states.split(", "), event, following, operations.split(", "))
            for states, event, following, operations in rows
        ]
    return tables


def row(tables, machine, state, event):
    for states, of_event, following, operations in tables[machine]:
        if state in states and of_event == event:
            return following, operations
    raise SystemExit(f"HANDOFF.md has no row for {machine} {state}: {event}")


def check(tables):
    for machine, path in PATHS.items():
        for (state, event, _), (following, _, _) in zip(path, path[1:], strict=False):
            if row(tables, machine, state, event)[0] != following:
                raise SystemExit(f"{machine} {state}: {event} leads elsewhere than {following}")
    for machine, state, operation, to, event, _, words in MESSAGES:
        if not any(state in r[0] and operation in r[3] for r in tables[machine]):
            raise SystemExit(f"{machine} {state} never does: {operation} ({words})")
        if not any(event == r[1] for r in tables[to]):
            raise SystemExit(f"{to} has no event {event} ({words})")
    for machine, state, source, event, (onward, following) in FAULTS:
        if row(tables, machine, source, event)[0] != state:
            raise SystemExit(f"{machine} {source}: {event} does not lead to {state}")
        if row(tables, machine, state, onward)[0] != following:
            raise SystemExit(f"{machine} {state}: {onward} does not lead to {following}")


class Drawing:
    def __init__(self):
        self.parts = []

    def text(self, x, y, words, kind="", anchor="middle"):
        self.parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{kind}">'
            f"{html.escape(words)}</text>"
        )

    def line(self, points, kind):
        path = " L ".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path d="M {path}" class="{kind}" marker-end="url(#{kind})"/>')

    def state(self, x, y, name, kind="state"):
        self.parts.append(
            f'<rect x="{x - STATE_WIDTH // 2}" y="{y}" width="{STATE_WIDTH}" '
            f'height="{STATE_HEIGHT}" rx="6" class="{kind}"/>'
        )
        self.text(x, y + 17, name)


def draw(tables):
    check(tables)
    out = Drawing()
    edge = STATE_WIDTH // 2
    for machine, x in LANES.items():
        out.text(x, 56, TITLES[machine], "title")
        path = PATHS[machine]
        for (state, event, y), following in zip(path, [*path[1:], None], strict=True):
            is_end = event is None and machine != "decode"
            out.state(x, y, state, "end" if is_end else "state")
            if following:
                out.line([(x, y + STATE_HEIGHT), (x, following[2] - 2)], "step")
                # Half-way between two states, left of the arrow: messages cross on the right.
                out.text(x - 6, (y + STATE_HEIGHT + following[2]) // 2 + 4, event, "event", "end")
    for machine, _, _, to, _, y, words in MESSAGES:
        near, far = LANES[machine], LANES[to]
        sign = 1 if far > near else -1
        kind = "data" if words == "slices" else "message"
        out.line([(near + sign * 4, y), (far - sign * 6, y)], kind)
        out.text((near + far) // 2, y - 5, words, kind)
    router, prefill, decode = LANES.values()
    # The client, and what passes between it, the router and the workers.
    out.text(64, 56, "client", "title")
    out.line([(64, 93), (router - edge - 3, 93)], "message")
    out.text(120, 88, "request", "message")
    for worker, y in ((decode, 187), (prefill, 193)):
        bend = worker - edge + 4
        out.line([(router + edge, y), (bend, y), (bend, 208)], "message")
    out.text((prefill + decode) // 2, 182, "place: prompt, attempt", "message")
    out.line([(prefill - 4, 356), (64, 356)], "token")
    out.text(120, 351, "token 0", "token")
    out.line([(decode - edge, 513), (64, 513)], "token")
    out.text(120, 508, "other tokens", "token")
    y = 630
    for machine, state, _, event, (onward, following) in FAULTS:
        x = LANES[machine] + (-168 if machine == "router" else 0)
        out.state(x, y, state, "fault")
        out.text(x, y - 8, f"{event} …", "event")
        out.text(x, y + STATE_HEIGHT + 16, f"{onward} → {following}", "event")
    body = "\n".join(out.parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 690" role="img"
 aria-label="Hand-off of a request: states of the router, the prefill worker and the decode worker">
<!-- Made by scripts/draw_handoff.py from the tables of kvcache/HANDOFF.md. -->
<style>
svg {{ font: 13px system-ui, sans-serif; --ink: #1c2430; --soft: #5b6675; --fill: #eef2f7;
  --blue: #1f6feb; --green: #1a7f4b; --red: #b3261e; background: #fff }}
@media (prefers-color-scheme: dark) {{ svg {{ --ink: #e6e9ee; --soft: #9aa5b4; --fill: #263041;
  --blue: #6ea8fe; --green: #5fd08f; --red: #ff8a80; background: #141a24 }} }}
text {{ fill: var(--ink) }} .title {{ font-weight: 600 }}
.event {{ fill: var(--soft); font-size: 11.5px }}
rect {{ fill: var(--fill); stroke: var(--soft) }} rect.end {{ stroke-dasharray: 4 3 }}
rect.fault {{ stroke: var(--red) }}
path {{ fill: none; stroke-width: 1.4 }} path.step {{ stroke: var(--soft) }}
path.message {{ stroke: var(--ink) }} path.data {{ stroke: var(--blue); stroke-width: 4 }}
path.token {{ stroke: var(--green) }} text.data {{ fill: var(--blue) }}
text.token {{ fill: var(--green) }} marker path {{ stroke: none }}
#step path {{ fill: var(--soft) }} #message path {{ fill: var(--ink) }}
#data path {{ fill: var(--blue) }} #token path {{ fill: var(--green) }}
</style>
<defs>
{"".join(marker(kind) for kind in ("step", "message", "data", "token"))}</defs>
{body}
</svg>
"""


def marker(kind):
    size = 3 if kind == "data" else 7
    return (
        f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="{size}" '
        f'markerHeight="{size}" orient="auto"><path d="M 0 0 L 8 4 L 0 8 z"/></marker>\n'
    )


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        raise SystemExit(__doc__)
    svg = draw(read_tables(PAGE.read_text()))
    if not sys.argv[1:]:
        PICTURE.write_text(svg)
    elif not PICTURE.is_file() or PICTURE.read_text() != svg:
        raise SystemExit("kvcache/handoff.svg differs from HANDOFF.md: scripts/draw_handoff.py")


if __name__ == "__main__":
    main()
