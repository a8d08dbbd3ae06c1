"""Draw the overview picture of the README and the site, for light and dark pages and for phones.

    python tools/diagram.py            # writes docs/images/overview*.svg

The picture is plain SVG text, so it stays sharp at any size and its words can be read by a screen
reader.
"""

from __future__ import annotations

import sys
from pathlib import Path
from string import Template

IMAGES = Path(__file__).parents[1] / "docs" / "images"

THEMES = {
    "light": {
        "ink": "#1f2328", "soft": "#57606a", "line": "#8c959f", "box": "#f6f8fa", "edge": "#d0d7de",
        "net": "#0969da", "c0": "#1a7f37", "c1": "#bc4c00", "c2": "#8250df",
    },
    "dark": {
        "ink": "#e6edf3", "soft": "#9da7b3", "line": "#6e7681", "box": "#161b22", "edge": "#30363d",
        "net": "#58a6ff", "c0": "#3fb950", "c1": "#f0883e", "c2": "#bc8cff",
    },
}  # fmt: skip

CLIENTS = [
    ("hospital", "is it benign?", "classification", 0.9),
    ("base station", "how much traffic?", "regression, large loss", 0.15),
    ("phone", "which activity?", "classification", 0.75),
]
"""Name, question, kind of task, and the height of its weight's bar."""

PICTURE = Template(
    """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 400" role="img"
  aria-labelledby="title description" font-family="system-ui, sans-serif" font-size="14">
<title id="title">One round of FedGradNorm</title>
<desc id="description">The server holds the shared network and a weight for each client. It sends
the network to every client. Each client keeps its data and its head, and returns its update, its
loss ratio and its gradient norm. The server adjusts the weights, and then takes one step.</desc>
<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
  orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="$line"/></marker></defs>
<rect x="20" y="12" width="720" height="128" rx="10" fill="$box" stroke="$edge"/>
<text x="36" y="38" fill="$ink" font-weight="600" font-size="16">Server</text>
<text x="36" y="66" fill="$net" font-weight="600">shared network</text>
<text x="36" y="88" fill="$soft" font-size="13">takes one step per round along the weighted</text>
<text x="36" y="105" fill="$soft" font-size="13">mean of the clients' updates</text>
<text x="520" y="38" fill="$ink" font-weight="600">a weight per client</text>
<line x1="520" y1="118" x2="700" y2="118" stroke="$line"/>
$bars
$clients
<text x="100" y="190" fill="$net" text-anchor="end">network</text>
<text x="162" y="184" fill="$ink">update</text>
<text x="162" y="202" fill="$ink">loss ratio</text>
<text x="162" y="220" fill="$ink">gradient norm</text>
</svg>
"""
)

NARROW = Template(
    """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 380 566" role="img"
  aria-labelledby="title description" font-family="system-ui, sans-serif" font-size="15">
<title id="title">One round of FedGradNorm</title>
<desc id="description">The server holds the shared network and a weight for each client. Each client
keeps its data and its head. Network and updates travel between them.</desc>
<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
  orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="$line"/></marker></defs>
<rect x="8" y="8" width="364" height="146" rx="10" fill="$box" stroke="$edge"/>
<text x="24" y="36" fill="$ink" font-weight="600" font-size="17">Server</text>
<text x="24" y="66" fill="$net" font-weight="600">shared network</text>
<text x="24" y="90" fill="$soft" font-size="14">steps along the</text>
<text x="24" y="110" fill="$soft" font-size="14">weighted mean of</text>
<text x="24" y="130" fill="$soft" font-size="14">the updates</text>
<text x="196" y="36" fill="$ink" font-weight="600">a weight per client</text>
<line x1="196" y1="134" x2="352" y2="134" stroke="$line"/>
<line x1="150" y1="236" x2="150" y2="162" stroke="$line" marker-start="url(#arrow)"/>
<line x1="190" y1="236" x2="190" y2="162" stroke="$line" stroke-dasharray="5 4"
  marker-end="url(#arrow)"/>
<text x="138" y="204" fill="$net" text-anchor="end">network</text>
<text x="202" y="184" fill="$ink">update</text>
<text x="202" y="205" fill="$ink">loss ratio</text>
<text x="202" y="226" fill="$ink">gradient norm</text>
$drawn
</svg>
"""
)

ROW = Template(
    """<rect x="$bar" y="$top" width="34" height="$height" rx="3" fill="$colour"/>
<rect x="8" y="$y" width="364" height="96" rx="10" fill="$box"
  stroke="$colour" stroke-width="1.5"/>
<text x="24" y="$name_y" fill="$ink" font-weight="600" font-size="17">$name</text>
<text x="24" y="$question_y" fill="$soft" font-size="14">“$question”</text>
<text x="24" y="$kind_y" fill="$soft" font-size="14">$kind</text>
<rect x="262" y="$head_box" width="94" height="32" rx="6" fill="none" stroke="$colour"/>
<text x="309" y="$head_y" fill="$colour" text-anchor="middle">own head</text>
<rect x="262" y="$data_box" width="94" height="32" rx="6" fill="none" stroke="$line"/>
<text x="309" y="$data_y" fill="$ink" text-anchor="middle">own data</text>"""
)

BAR = Template('<rect x="$x" y="$y" width="34" height="$height" rx="3" fill="$colour"/>')

CLIENT = Template(
    """<line x1="$down" y1="244" x2="$down" y2="150" stroke="$line" marker-start="url(#arrow)"/>
<line x1="$up" y1="244" x2="$up" y2="150" stroke="$line" stroke-dasharray="5 4"
  marker-end="url(#arrow)"/>
<rect x="$x" y="250" width="220" height="138" rx="10" fill="$box"
  stroke="$colour" stroke-width="1.5"/>
<text x="$text" y="276" fill="$ink" font-weight="600" font-size="16">$name</text>
<text x="$text" y="299" fill="$soft" font-size="13">“$question”</text>
<text x="$text" y="317" fill="$soft" font-size="13">$kind</text>
<rect x="$text" y="334" width="88" height="36" rx="6" fill="none" stroke="$colour"/>
<text x="$head" y="357" fill="$colour" text-anchor="middle">own head</text>
<rect x="$box2" y="334" width="88" height="36" rx="6" fill="none" stroke="$line"/>
<text x="$data" y="357" fill="$ink" text-anchor="middle">own data</text>"""
)


def drawn(theme: str) -> str:
    """The picture in the colours of one theme."""
    colours = THEMES[theme]
    bars, clients = [], []
    for place, (name, question, kind, weight) in enumerate(CLIENTS):
        colour, x, height = colours[f"c{place}"], 20 + 250 * place, round(70 * weight)
        bars.append(
            BAR.substitute(x=535 + 58 * place, y=118 - height, height=height, colour=colour)
        )
        clients.append(
            CLIENT.substitute(
                colours,
                colour=colour,
                name=name,
                question=question,
                kind=kind,
                x=x,
                text=x + 16,
                head=x + 60,
                box2=x + 116,
                data=x + 160,
                down=x + 90,
                up=x + 130,
            )
        )
    return PICTURE.substitute(colours, bars="\n".join(bars), clients="\n".join(clients))


def drawn_narrow(theme: str) -> str:
    """The picture for a phone: the clients below one another."""
    colours = THEMES[theme]
    rows = []
    for place, (name, question, kind, weight) in enumerate(CLIENTS):
        y, height = 244 + 106 * place, round(80 * weight)
        rows.append(
            ROW.substitute(
                colours,
                colour=colours[f"c{place}"],
                name=name,
                question=question,
                kind=kind,
                y=y,
                bar=208 + 50 * place,
                top=134 - height,
                height=height,
                name_y=y + 30,
                question_y=y + 56,
                kind_y=y + 78,
                head_box=y + 12,
                head_y=y + 33,
                data_box=y + 52,
                data_y=y + 73,
            )
        )
    return NARROW.substitute(colours, drawn="\n".join(rows))


SHAPES = {"overview": drawn, "overview-narrow": drawn_narrow}

if __name__ == "__main__":
    for shape, draw in SHAPES.items():
        for theme in THEMES:
            path = IMAGES / f"{shape}-{theme}.svg"
            path.write_text(draw(theme), encoding="utf-8")
            sys.stdout.write(f"{path}\n")
