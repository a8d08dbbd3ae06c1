"""FedGradNorm and the paper's baselines."""

from fedgradnorm._methods.method import LOCAL, Method
from fedgradnorm._runs.history import static_from_run
from fedgradnorm.weighting import Equal, GradNorm, Static
from fedgradnorm.weighting._steady import Steady

PAPER = "Mortaheb, Vahapoglu, Ulukus 2022, algorithm 2"
PACE = (
    r"p \leftarrow p - \eta \, \mathrm{Adam}(\nabla_p L), \quad "
    r"L = \sum_i \left| p_i G_i - \bar{G} \, r_i^{\gamma} \right|, \quad "
    r"\bar{G} = \frac{1}{N} \sum_j p_j G_j"
)

Method(
    "fedgradnorm",
    GradNorm,
    summary="weights step toward a common pace of all tasks",
    source=PAPER,
    equation=PACE,
).register()
Method(
    "fedgradnorm-direct",
    GradNorm,
    {"rule": "direct"},
    summary="jumps to the weights FedGradNorm would converge to",
    source="this package",
    equation=(r"\log p_i \leftarrow s \log p_i + (1 - s) \log q_i, \quad q_i = r_i^{\gamma} / G_i"),
).register()
Method(
    "equal-norms",
    GradNorm,
    {"rule": "direct", "gamma": 0.0},
    summary="direct rule without its pace term: equal norms",
    source="this package; the gradient balance of DB-MTL, Lin, Jiang et al. 2023",
    equation=r"\log p_i \leftarrow s \log p_i - (1 - s) \log G_i",
).register()
Method(
    "fedgradnorm-steady",
    Steady,
    summary="direct rule on means over all rounds: small clients",
    source="this package",
    equation=(
        r"p_i = R_i^{\gamma} / A_i, \quad A_i^2 = \frac{1}{T_i} \sum_t G_i(t)^2, \quad "
        r"R_i = \frac{1}{T_i} \sum_t F_i(t) / F_{i0}"
    ),
).register()
Method(
    "fedrep",
    Equal,
    summary="equal weights; head first, then network",
    source="Collins et al. 2021",
    equation=(
        r"p_i = 1, \quad h_i \leftarrow h_i - \eta_h \nabla_h F_i(\omega, h_i), \; "
        r"\mathrm{then} \; g_i = \nabla_{\omega} F_i(\omega, h_i)"
    ),
).register()
Method(
    "fedper",
    Equal,
    settings={"phases": "joint"},
    summary="equal weights; head and network together",
    source="Arivazhagan et al. 2019",
    equation=r"p_i = 1, \quad (g_i, \nabla_h F_i) = \nabla F_i(\omega, h_i)",
).register()
Method(
    LOCAL,
    Equal,
    settings={"share": "none"},
    summary="nothing shared: each client trains alone",
    source="baseline",
    equation=r"(\omega_i, h_i) \leftarrow (\omega_i, h_i) - \eta \nabla F_i(\omega_i, h_i)",
).register()
Method(
    "central",
    GradNorm,
    settings={"phases": "joint", "step_with": "previous", "participation": 1.0},
    summary="GradNorm in one process, everybody in each step",
    source="Chen et al. 2018, algorithm 1",
    equation=r"\omega \leftarrow \omega - \frac{\eta}{N} \sum_i p_i g_i, \; \mathrm{then} \; "
    + PACE,
).register()
Method(
    "static",
    Static,
    summary="weights chosen by hand",
    source="baseline",
    equation=r"p_i = c_i",
).register()
Method(
    "fedgradnorm-static",
    static_from_run,
    summary="a finished run's mean weights, kept constant",
    source="Chen et al. 2018, section 5.3",
    equation=r"p_i = \frac{1}{T_i} \sum_t p_i(t)",
).register()
Method(
    "fedgradnorm-paper",
    GradNorm,
    {"rule": "absolute", "floor": None},
    {"report_loss": "after", "head_init": "random"},
    summary="Algorithm 2 to the letter: loss after the step, no floor",
    source=PAPER,
    equation=PACE + r", \quad F_i \; \mathrm{after \; the \; local \; step}",
).register()
