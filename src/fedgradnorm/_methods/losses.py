"""Methods whose server sees losses, norms, or nothing."""

from fedgradnorm._methods.method import Method
from fedgradnorm.weighting._fixed import BySize
from fedgradnorm.weighting._loss_based import (
    AFL,
    DWA,
    FAMO,
    IMTLL,
    QFFL,
    ExcessMTL,
    GeometricMean,
    GO4Align,
    InverseFirstLoss,
    RandomWeights,
    Tchebycheff,
    Uncertainty,
)

Method(
    "inverse-first-loss",
    InverseFirstLoss,
    summary="constant weight 1 / first loss",
    source="baseline",
    equation=r"p_i = 1 / F_{i0}",
).register()
Method(
    "by-size",
    BySize,
    summary="weight by number of training examples",
    source="McMahan et al. 2017",
    equation=r"p_i = n_i",
).register()
Method(
    "geometric-mean",
    GeometricMean,
    summary="weight 1 / loss",
    source="Chennupati et al. 2019",
    equation=(
        r"p_i = 1 / F_i, \quad \nabla \left( \prod_i F_i \right)^{1/N} \propto "
        r"\sum_i \frac{1}{F_i} \nabla F_i"
    ),
).register()
Method(
    "rlw",
    RandomWeights,
    summary="random weights in every round",
    source="Lin et al. 2022, algorithm 2",
    equation=r"p = \mathrm{softmax}(z), \quad z_i \sim \mathcal{N}(0, 1)",
).register()
Method(
    "dwa",
    DWA,
    summary="the task that improved least counts most",
    source="Liu, Johns, Davison 2019, equation 7",
    equation=(
        r"p_i = \exp(w_i / T), \quad w_i = \frac{\bar{F}_i(t - 1)}{\bar{F}_i(t - 2)}, \; t \; "
        r"\mathrm{in \; epochs}"
    ),
).register()
Method(
    "uw",
    Uncertainty,
    summary="learned variance of every task",
    source="Kendall et al. 2018, equation 7",
    equation=(
        r"p_i = e^{-s_i}, \quad "
        r"\min_s \sum_i \left( \frac{1}{2} e^{-s_i} F_i + \frac{1}{2} s_i \right)"
    ),
).register()
Method(
    "imtl-l",
    IMTLL,
    summary="learned scale of every loss",
    source="Liu, Li, Kuang et al. 2021, equation 6",
    equation=r"p_i = e^{s_i}, \quad \min_s \sum_i \left( e^{s_i} F_i - s_i \right)",
).register()
Method(
    "famo",
    FAMO,
    summary="all losses fall at one rate",
    source="Liu et al. 2023, algorithm 1",
    equation=(
        r"p_i = z_i / F_i, \; z = \mathrm{softmax}(\xi), \quad "
        r"\xi \leftarrow \xi - \beta \left( \nabla z^{\top} "
        r"\left( \log F(t) - \log F(t + 1) \right) + \gamma \xi \right)"
    ),
).register()
Method(
    "q-ffl",
    QFFL,
    summary="weight loss^q: large losses count more",
    source="Li, Sanjabi et al. 2020, equation 2",
    equation=r"p_i = F_i^q, \quad \min_{\omega} \sum_i \frac{1}{q + 1} F_i^{q + 1}",
).register()
Method(
    "afl",
    AFL,
    summary="weights grow where losses are large",
    source="Mohri et al. 2019",
    equation=(
        r"p = \lambda, \quad \lambda \leftarrow \Pi_{\Delta}(\lambda + \eta_{\lambda} F), \quad "
        r"\min_{\omega} \max_{\lambda \in \Delta} \sum_i \lambda_i F_i"
    ),
).register()
Method(
    "stch",
    Tchebycheff,
    summary="smooth maximum of the loss ratios",
    source="Lin, Zhang et al. 2024",
    equation=r"p_i = r_i^{1 / \mu} / F_i, \quad \min_{\omega} \mu \log \sum_i r_i^{1 / \mu}",
).register()
Method(
    "go4align",
    GO4Align,
    summary="one weight per group of tasks with similar risks",
    source="Shen et al. 2024",
    equation=(
        r"p_i = \frac{1}{|K_i|} \sum_{j \in K_i} u_j, \quad "
        r"u_i = q_i \frac{\sum_j F_j}{F_i}, \quad q_i \leftarrow q_i e^{-\beta F_i}"
    ),
).register()
Method(
    "excess-mtl",
    ExcessMTL,
    summary="the task furthest from its own optimum counts most",
    source="He et al. 2024, algorithm 1",
    equation=(
        r"p_i \leftarrow p_i \exp(\eta E_i / E_{i0}), \quad "
        r"E_i = G_i^2 / \sqrt{\sum_t G_i(t)^2}"
    ),
).register()
