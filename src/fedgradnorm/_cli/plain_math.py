"""LaTeX of the methods' equations as plain text for a terminal."""

from __future__ import annotations

import re

SYMBOLS = {
    "leftarrow": "←", "to": "→", "sum": "Σ", "prod": "Π", "nabla": "∇", "partial": "∂", "top": "T",
    "in": "∈", "cdot": "·", "cdots": "...", "le": "≤", "ge": "≥", "ne": "≠", "sim": "~",
    "approx": "≈", "propto": "∝", "alpha": "α", "beta": "β", "gamma": "γ", "epsilon": "ε",  # noqa: RUF001
    "eta": "η", "lambda": "λ", "mu": "μ", "xi": "ξ", "phi": "φ", "omega": "ω", "Delta": "Δ",
    "Lambda": "Λ", "Pi": "Π", "quad": "  ",
}  # fmt: skip
"""Commands without arguments; one that is missing here keeps its name, as in ``log``."""

ACCENTS = {"bar": "̄", "tilde": "̃", "hat": "̂"}
"""Marks that follow a letter."""


def plain(latex: str) -> str:
    """An equation in characters.

    >>> plain(r"\\omega \\leftarrow \\frac{1}{N} \\sum_i \\omega_i")
    'ω ← 1/N Σ_i ω_i'
    """
    text, inside = re.sub(r"\\left(?![a-z]) *| *\\right(?![a-z]) *", "", latex), r"\{([^{}]*)\}"
    before = ""
    while text != before:  # from the innermost braces outward
        before = text
        text = re.sub(rf"\\(bar|tilde|hat){inside}", lambda m: m[2] + ACCENTS[m[1]], text)
        text = re.sub(rf"\\(?:mathrm|mathbf|mathcal){inside}", r"\1", text)
        text = re.sub(rf"\\sqrt{inside}", r"√(\1)", text)
        text = re.sub(rf"\\frac{inside}{inside}", _fraction, text)
        text = re.sub(rf"([_^]){inside}", lambda m: m[1] + _grouped(m[2]), text)
    text = re.sub(r"\\[;,]", " ", text)
    text = re.sub(r"\\([A-Za-z]+)", lambda m: SYMBOLS.get(m[1], m[1]), text)
    return re.sub(r" ([,;:])", r"\1", re.sub(r" +", " ", text)).strip()


def _fraction(found: re.Match[str]) -> str:
    return f"{_grouped(found[1])}/{_grouped(found[2])}"


def _grouped(text: str) -> str:
    """The text, in parentheses unless it is a single symbol."""
    single = re.fullmatch(r"\\?[\w.]+[̄̃̂]?(_\w+)?|\([^()]*\)|\|[^|]*\|", text)
    return text if single else f"({text})"
