"""Methods whose server sees all gradients: a direction that is no weighted mean."""

from fedgradnorm._methods.method import Method
from fedgradnorm.weighting._directions import ConFIG, GradDrop, TrimmedMean

Method(
    "config",
    ConFIG,
    summary="the direction with one angle to all updates",
    source="Liu, Chu, Thuerey 2024, equation 2",
    equation=(
        r"d = \frac{1}{N} \left( \sum_i g_i \cdot u \right) u, \quad "
        r"u = \frac{U^{+} \mathbf{1}}{|U^{+} \mathbf{1}|}, \quad U_i = \frac{g_i}{|g_i|}"
    ),
    cost="N^2 D",
).register()
Method(
    "graddrop",
    GradDrop,
    summary="every parameter follows one sign of the updates",
    source="Chen et al. 2020, algorithm 1",
    equation=(
        r"d = \frac{1}{N} \sum_i M_i g_i, \quad P = \frac{1}{2} \left( 1 + "
        r"\frac{\sum_i g_i}{\sum_i |g_i|} \right), \quad "
        r"M_i = 1[P > u, \, g_i > 0] + 1[P < u, \, g_i < 0], \; u \sim \mathcal{U}(0, 1)"
    ),
    cost="N D",
).register()
Method(
    "trimmed-mean",
    TrimmedMean,
    summary="mean of every parameter without its extremes",
    source="Yin et al. 2018, definition 2",
    equation=(
        r"d_k = \frac{1}{N - 2 b} \sum_{i = b + 1}^{N - b} g_{(i) k}, \quad "
        r"g_{(1) k} \le \cdots \le g_{(N) k}"
    ),
    cost="N log N D",
).register()
