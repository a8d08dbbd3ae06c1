"""The papers that methods name as their sources, as links with the whole title."""

from __future__ import annotations

import re

ARXIV = "https://arxiv.org/abs/"
PAPERS = {
    "Arivazhagan et al. 2019": ("1912.00818", "Federated learning with personalization layers"),
    "Askin et al. 2025": (
        "2410.16398",
        "Federated communication-efficient multi-objective optimization",
    ),
    "Ban, Ji 2024": ("2402.15638", "Fair resource allocation in multi-task learning"),
    "Blanchard et al. 2017": (
        "1703.02757",
        "Machine learning with adversaries: Byzantine tolerant gradient descent",
    ),
    "Chen et al. 2018": (
        "1711.02257",
        "GradNorm: Gradient normalization for adaptive loss balancing in deep multitask networks",
    ),
    "Chen et al. 2020": (
        "2010.06808",
        "Just pick a sign: Optimizing deep multitask models with gradient sign dropout",
    ),
    "Chennupati et al. 2019": (
        "1904.08492",
        "MultiNet++: Multi-stream feature aggregation and geometric loss strategy",
    ),
    "Collins et al. 2021": (
        "2102.07078",
        "Exploiting shared representations for personalized federated learning",
    ),
    "Désidéri 2012": (
        "https://doi.org/10.1016/j.crma.2012.03.014",
        "Multiple-gradient descent algorithm (MGDA) for multiobjective optimization",
    ),
    "He et al. 2024": ("2402.02009", "Robust multi-task learning with excess risks"),
    "Hu et al. 2022": ("2006.11489", "Federated learning meets multi-objective optimization"),
    "Kendall et al. 2018": (
        "1705.07115",
        "Multi-task learning using uncertainty to weigh losses for scene geometry and semantics",
    ),
    "Li et al. 2021": (
        "2012.04221",
        "Ditto: Fair and robust federated learning through personalization",
    ),
    "Li, Sahu et al. 2020": ("1812.06127", "Federated optimization in heterogeneous networks"),
    "Li, Sanjabi et al. 2020": ("1905.10497", "Fair resource allocation in federated learning"),
    "Lin, Jiang et al. 2023": ("2308.12029", "Dual-balancing for multi-task learning"),
    "Lin, Zhang et al. 2024": (
        "2402.19078",
        "Smooth Tchebycheff scalarization for multi-objective optimization",
    ),
    "Lin et al. 2022": (
        "2111.10603",
        "Reasonable effectiveness of random weighting: A litmus test for multi-task learning",
    ),
    "Liu, Chu, Thuerey 2024": (
        "2408.11104",
        "ConFIG: Towards conflict-free training of physics informed neural networks",
    ),
    "Liu et al. 2023": ("2306.03792", "FAMO: Fast adaptive multitask optimization"),
    "Liu, Johns, Davison 2019": ("1803.10704", "End-to-end multi-task learning with attention"),
    "Liu, Li, Kuang et al. 2021": (
        "https://openreview.net/forum?id=IMPnRXEWpvr",
        "Towards impartial multi-task learning",
    ),
    "Liu, Liu et al. 2021": (
        "2110.14048",
        "Conflict-averse gradient descent for multi-task learning",
    ),
    "Lopez-Paz, Ranzato 2017": ("1706.08840", "Gradient episodic memory for continual learning"),
    "McMahan et al. 2017": (
        "1602.05629",
        "Communication-efficient learning of deep networks from decentralized data",
    ),
    "Mohri et al. 2019": ("1902.00146", "Agnostic federated learning"),
    "Mortaheb, Vahapoglu, Ulukus 2022": (
        "2203.13663",
        "FedGradNorm: Personalized federated gradient-normalized multi-task learning",
    ),
    "Navon et al. 2022": ("2202.01017", "Multi-task learning as a bargaining game"),
    "Oh et al. 2022": (
        "2106.06042",
        "FedBABU: Towards enhanced representation for federated image classification",
    ),
    "Quinton, Rey 2024": ("2406.16232", "Jacobian descent for multi-objective optimization"),
    "Sener, Koltun 2018": ("1810.04650", "Multi-task learning as multi-objective optimization"),
    "Senushkin et al. 2023": (
        "2305.19000",
        "Independent component alignment for multi-task learning",
    ),
    "Shen et al. 2024": (
        "2404.06486",
        "GO4Align: Group optimization for multi-task alignment",
    ),
    "Wang et al. 2021": (
        "2010.05874",
        "Gradient vaccine: Investigating and improving multi-task optimization",
    ),
    "Yang et al. 2023": ("2310.09866", "Federated multi-objective learning"),
    "Yin et al. 2018": (
        "1803.01498",
        "Byzantine-robust distributed learning: Towards optimal statistical rates",
    ),
    "Yu et al. 2020": ("2001.06782", "Gradient surgery for multi-task learning"),
}
"""Authors and year, as ``Method.source`` has them: number on arXiv, or address, and title."""
NAMED = re.compile("|".join(map(re.escape, sorted(PAPERS, key=len, reverse=True))))


def linked(source: str) -> str:
    """A method's source in Markdown: every paper is a link, its title is shown on hovering."""

    def link(found: re.Match[str]) -> str:
        place, title = PAPERS[found[0]]
        address = place if place.startswith("https:") else f"{ARXIV}{place}"
        return f'[{found[0]}]({address} "{title}")'

    return NAMED.sub(link, source)
