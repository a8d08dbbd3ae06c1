"""The page's section on the benefit: a line per method and, of few clients, one per client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from fedgradnorm._benefit.benefit import MANY
from fedgradnorm._benefit.client_gain import GAINS, LOSES, UNCLEAR, ClientGain
from fedgradnorm._report.colours import Look, key
from fedgradnorm._report.group_benefit import GroupBenefit
from fedgradnorm._report.tables.benefit_grids import TITLE, gain_text, interval_text, metric_text
from fedgradnorm._stored.groups import Group

MANY_LINES = 8  # more are folded
MOST_DOTS = 200
_WIDTH, _HEIGHT, _PAD = 180, 22, 6  # of the strip of gains, in pixels
_LINES = (
    "Method",
    "Gain",
    "No significant difference",
    "Lose",
    "Worst",
    "Median",
    "Best",
    "Mean",
    "Every client",
)


def benefit_html(
    found: Sequence[GroupBenefit],
    groups: Sequence[Group],
    tasks: Sequence[str],
    looks: Sequence[Look],
) -> str:
    """The section, where any arm has one to be held against that trains alone."""
    if not found:
        return ""
    places = [next(i for i, one in enumerate(groups) if one is j.arm) for j in found]
    body = "".join(_line(one, at, looks[at]) for one, at in zip(found, places, strict=True))
    return (
        f'<section id="benefit"><h2>{TITLE}</h2>'
        f'<div class="about"><p>{escape(_about(found))}</p></div>'
        f"<details{_open(len(found), MANY_LINES)}><summary>Method by method</summary>"
        f'<div class="scroll"><table><thead><tr>{_head(_LINES)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details>"
        f"{_clients(found, places, tasks, looks)}</section>"
    )


def _open(rows: int, most: int) -> str:
    return " open" if rows <= most else ""


def _about(found: Sequence[GroupBenefit]) -> str:
    bases = dict.fromkeys(one.base.label for one in found)
    text = (
        f"Each client on its held-out data, over what it reaches alone ({', '.join(bases)}). "
        "A gain is positive where joining is better: errors in percent of what they are alone, "
        "accuracies in points. "
    )
    if any(one.by_rows for one in found):
        return text + "Gain and Lose are beyond a 95% interval, by bootstrap over held-out rows."
    if any(one.told for one in found):
        return text + "Gain and Lose are beyond a 95% interval over seeds (by Student's t)."
    return text + "One seed cannot tell a gain from luck: they are counted by their sign alone."


def _head(titles: Sequence[str]) -> str:
    return "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)


def _line(one: GroupBenefit, place: int, look: Look) -> str:
    order = one.order()
    ends = (f"{gain_text(c.gain, c.unit)} ({c.client})" for c in (order[0], order[-1]))
    worst, best = ends if order else ("-", "-")
    counts = (str(one.share(verdict)) for verdict in (GAINS, UNCLEAR, LOSES))
    cells = [*counts, worst, _by_unit(one.middle()), best, _by_unit(one.mean())]
    shown = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return (
        f'<tr data-methods="{place}"><td>{key(look)}{escape(one.arm.label)}</td>{shown}'
        f"<td>{_strip(order, look)}</td></tr>"
    )


def _by_unit(values: Mapping[str, float]) -> str:
    return ", ".join(gain_text(value, unit) for unit, value in values.items()) or "-"


def _strip(order: Sequence[ClientGain], look: Look) -> str:
    """A dot for every client, from losses on the left to gains on the right; the line is 0.

    Of very many clients some hundreds are drawn, evenly in the order of their gains.
    The largest gain reaches the edge, for errors and for accuracies each by itself.
    """
    top = {
        unit: max(
            (abs(o.gain) for o in order if o.unit == unit and math.isfinite(o.gain)), default=0
        )
        for unit in {o.unit for o in order}
    }

    def place(one: ClientGain) -> float:
        inside = min(max(one.gain / (top[one.unit] or 1.0), -1.0), 1.0)
        return round(_WIDTH / 2 + inside * (_WIDTH / 2 - _PAD), 1)

    middle = _HEIGHT / 2
    step = -(-len(order) // MOST_DOTS) or 1
    drawn = [*order[:-1:step], *order[-1:]]
    dots = "".join(
        f'<circle cx="{place(o)}" cy="{middle}" r="3" opacity=".55">'
        f"<title>{escape(f'{o.client}: {gain_text(o.gain, o.unit)}')}</title></circle>"
        for o in drawn
    )
    return (
        f'<svg class="interval m{look.colour}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="gains of {len(order)} clients">'
        f'<line class="axis" x1="{_WIDTH / 2}" x2="{_WIDTH / 2}" y1="1" y2="{_HEIGHT - 1}"/>'
        f'<line class="axis" x1="{_PAD}" x2="{_WIDTH - _PAD}" y1="{middle}" y2="{middle}"/>'
        f"{dots}</svg>"
    )


def _clients(
    found: Sequence[GroupBenefit],
    places: Sequence[int],
    tasks: Sequence[str],
    looks: Sequence[Look],
) -> str:
    """A line per client and method; nothing where there are many clients."""
    names = list(dict.fromkeys(c.client for one in found for c in one.clients))
    if len(names) > MANY:
        return ""
    titles = ("Client", "Method", "Metric", "Alone", "Joined", "Gain", "95% interval", "Verdict")
    body = "".join(
        _client(c, one, place, tasks, looks[place])
        for name in names
        for one, place in zip(found, places, strict=True)
        for c in one.clients
        if c.client == name
    )
    return (
        f"<details{_open(sum(len(one.clients) for one in found), 0)}>"
        "<summary>Client by client</summary>"
        f'<div class="scroll"><table><thead><tr>{_head(titles)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details>"
    )


def _client(
    one: ClientGain, benefit: GroupBenefit, place: int, tasks: Sequence[str], look: Look
) -> str:
    verdict = one.verdict if benefit.told else "-"
    cells = (
        one.metric, metric_text(one.alone, one.metric), metric_text(one.joined, one.metric),
        gain_text(one.gain, one.unit), interval_text(one), verdict,
    )  # fmt: skip
    at = f' data-tasks="{tasks.index(one.client)}"' if one.client in tasks else ""
    shown = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return (
        f'<tr data-methods="{place}"{at}><th scope="row">{escape(one.client)}</th>'
        f"<td>{key(look)}{escape(benefit.arm.label)}</td>{shown}</tr>"
    )
