"""The methods on their page, from their entries in the registry."""

from __future__ import annotations

import inspect
from pathlib import Path

from papers import linked

import fedgradnorm
from fedgradnorm import weighting
from fedgradnorm._methods import METHODS, Method
from fedgradnorm._round.settings import key_of
from fedgradnorm.weighting import Needs

SEES = {
    Needs.NOTHING: ("Nothing but updates", "only the updates"),
    Needs.SIZE: ("Numbers of examples", "a number of examples per client"),
    Needs.LOSS: ("Losses", "a loss per client"),
    Needs.LOSS | Needs.NORM: ("Losses and gradient norms", "a loss and a gradient norm per client"),
    Needs.NORM: ("Losses and gradient norms", "a gradient norm per client"),
    Needs.GRAM: ("Inner products", "the inner products of all updates"),
    Needs.GRADIENT: ("All gradients", "every client's gradient"),
}
"""What a server must see for a method: as a title, and in a sentence."""


def methods(module: str) -> str:
    """The methods that a module of ``fedgradnorm._methods`` declares, one paragraph each."""
    names = [name for name in METHODS if METHODS.module_of(name).endswith(f".{module}")]
    return "\n".join(_entry(METHODS[name]) for name in names)


def method_tabs() -> str:
    """A tab for all methods and one for each thing that a server must see, with a table each."""
    tabs = {"All": list(METHODS.values())}
    for title, _ in SEES.values():
        tabs[title] = [one for one in METHODS.values() if SEES[one.needs][0] == title]
    listed = [method.name for title, group in tabs.items() if title != "All" for method in group]
    assert sorted(listed) == sorted(METHODS), "a method that no tab shows"
    inner = "\n".join(
        f":::{{tab-item}} {title} ({len(group)})\n{_table(group)}\n:::"
        for title, group in tabs.items()
    )
    return f"::::{{tab-set}}\n{inner}\n::::\n"


def _table(group: list[Method]) -> str:
    rows = [f"| [`{m.name}`](#{_anchor(m)}) | {m.summary} | {_sums(m)} |" for m in group]
    header = ["| method | what it does | needs only sums |", "|---|---|---|"]
    return "\n".join(["", *header, *rows, ""])


def _sums(method: Method) -> str:
    return "no" if method.beyond_sums else "yes"


def _anchor(method: Method) -> str:
    return f"method-{method.name}"


def _entry(method: Method) -> str:
    fixed = {key_of(name): value for name, value in method.settings.items()}
    fixed |= {f"weighting.{name}": value for name, value in method.fixed.items()}
    sets = ", ".join(f"`{key} = {value!r}`" for key, value in fixed.items())
    return "\n".join(
        [
            f"[`{method.name}`]{{#{_anchor(method)}}}",
            f": {method.summary[:1].upper()}{method.summary[1:]}.",
            "",
            f"  $${method.equation}$$",
            "",
            f"  Source: {linked(method.source)}. The server sees {SEES[method.needs][1]}; "
            f"cost {_cost(method)}.{f' Sets {sets}.' if sets else ''} Code: {_code(method)}.",
            "",
        ]
    )


def _cost(method: Method) -> str:
    """The cost as a formula: ``N^2 D + a convex program``, with the words left as words."""
    formula, plus, words = method.cost.partition(" + ")
    typeset = formula.replace("log", r"\log")
    return f"${typeset}${plus}{words}"


def _code(method: Method) -> str:
    """The class in the reference, and its file among the sources that the site shows."""
    maker = method.weighting
    path = Path(inspect.getfile(maker)).relative_to(Path(fedgradnorm.__file__).parents[1])
    if not inspect.isclass(maker):
        return f"`{path}`"
    page = f"_modules/{path.with_suffix('.html')}#{maker.__name__}"
    return f'{{py:class}}`~{_place(maker)}` in <a href="{page}"><code>{path.name}</code></a>'


def rules() -> str:
    """The weightings that are made by a method's name, with their options and sources."""
    named: dict[type, list[str]] = {}
    for method in METHODS.values():
        if inspect.isclass(method.weighting) and not _is_public(method.weighting):
            named.setdefault(method.weighting, []).append(f"`{method.name}`")
    return "\n".join(
        f"### {', '.join(names)}\n\n"
        f"```{{eval-rst}}\n.. autoclass:: {_place(maker)}\n   :no-members:\n```\n"
        for maker, names in named.items()
    )


def _is_public(maker: type) -> bool:
    return getattr(weighting, maker.__name__, None) is maker


def _place(maker: type) -> str:
    return f"{'fedgradnorm.weighting' if _is_public(maker) else maker.__module__}.{maker.__name__}"
