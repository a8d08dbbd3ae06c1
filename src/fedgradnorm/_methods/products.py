"""Methods whose server sees the inner products of all updates."""

from fedgradnorm._methods.method import Method
from fedgradnorm.weighting._products import (
    IMTLG,
    MGDA,
    AlignedMTL,
    CAGrad,
    DualProj,
    FairGrad,
    FedCMOO,
    FedMGDA,
    GradVac,
    Krum,
    NashMTL,
    PCGrad,
    UPGrad,
)

GRAM = "N^2 D"
PROGRAM = "N^2 D + a convex program"

Method(
    "upgrad",
    UPGrad,
    summary="updates, each projected to harm no task",
    source="Quinton, Rey 2024, proposition 1",
    equation=r"p = \sum_i \arg \min_{v \ge e_i / N} v^{\top} G v",
    cost=PROGRAM,
).register()
Method(
    "dualproj",
    DualProj,
    summary="mean update, projected to harm no task",
    source="Lopez-Paz, Ranzato 2017, equation 11",
    equation=r"p = \arg \min_{v \ge \mathbf{1} / N} v^{\top} G v",
    cost=PROGRAM,
).register()
Method(
    "mgda",
    MGDA,
    summary="shortest weighted mean of the updates",
    source="Désidéri 2012; Sener, Koltun 2018, algorithm 2",
    equation=r"p = \arg \min_{v \in \Delta} v^{\top} G v",
    cost=GRAM,
).register()
Method(
    "fsmgda",
    MGDA,
    settings={"weight_per": "task"},
    summary="MGDA on the tasks' mean updates",
    source="Yang et al. 2023",
    equation=(
        r"p = \arg \min_{v \in \Delta} \left| \sum_k v_k \bar{g}_k \right|^2, \quad "
        r"\bar{g}_k \; \mathrm{the \; mean \; update \; of \; task} \; k"
    ),
    cost=GRAM,
).register()
Method(
    "fedmgda",
    FedMGDA,
    summary="MGDA on unit updates, with weights near 1/N",
    source="Hu et al. 2022, algorithm 1 (FedMGDA+)",
    equation=(
        r"p_i = \frac{\lambda_i}{|g_i|}, \quad \lambda = "
        r"\arg \min_{\lambda \in \Delta, \, |\lambda_i - 1/N| \le \epsilon} "
        r"\left| \sum_i \lambda_i \frac{g_i}{|g_i|} \right|^2"
    ),
    cost=GRAM,
).register()
Method(
    "fedcmoo",
    FedCMOO,
    summary="MGDA by projected gradient steps",
    source="Askin et al. 2025, FindWeights",
    equation=(
        r"p = \lambda, \quad \lambda \leftarrow \Pi_{\Delta}(\lambda - \beta G \lambda) \; "
        r"\mathrm{repeated}"
    ),
    cost=GRAM,
).register()
Method(
    "pcgrad",
    PCGrad,
    summary="conflicting parts of updates projected away",
    source="Yu et al. 2020, algorithm 1",
    equation=(
        r"\sum_i p_i g_i = \sum_i \tilde{g}_i, \quad \tilde{g}_i \leftarrow \tilde{g}_i - "
        r"\frac{\min(\tilde{g}_i \cdot g_j, 0)}{|g_j|^2} g_j \; "
        r"\mathrm{for} \; j \ne i \; \mathrm{in \; random \; order}"
    ),
    cost=GRAM,
).register()
Method(
    "gradvac",
    GradVac,
    summary="conflicting updates turned to their usual angle",
    source="Wang et al. 2021",
    equation=(
        r"\tilde{g}_i \leftarrow \tilde{g}_i + \frac{|\tilde{g}_i| \left( \hat{\phi}_{ij} "
        r"\sqrt{1 - \phi_{ij}^2} - \phi_{ij} \sqrt{1 - \hat{\phi}_{ij}^2} \right)}"
        r"{|g_j| \sqrt{1 - \hat{\phi}_{ij}^2}} g_j \; \mathrm{if} \; "
        r"\phi_{ij} < \hat{\phi}_{ij}, \quad \hat{\phi}_{ij} \leftarrow "
        r"(1 - \beta) \hat{\phi}_{ij} + \beta \phi_{ij}"
    ),
    cost=GRAM,
).register()
Method(
    "cagrad",
    CAGrad,
    summary="best worst case in a region around the mean",
    source="Liu, Liu et al. 2021, algorithm 1",
    equation=(
        r"p = \frac{1}{N} + \frac{c |g_0|}{|g_w|} w, \quad w = \arg \min_{w \in \Delta} "
        r"g_w \cdot g_0 + c |g_0| |g_w|, \quad g_w = \sum_i w_i g_i, \; "
        r"g_0 = \frac{1}{N} \sum_i g_i"
    ),
    cost=PROGRAM,
).register()
Method(
    "nash-mtl",
    NashMTL,
    summary="Nash bargaining between the tasks",
    source="Navon et al. 2022, section 3.2",
    equation=r"(G p)_i = 1 / p_i",
).register()
Method(
    "imtl-g",
    IMTLG,
    summary="equal projections on all updates",
    source="Liu, Li, Kuang et al. 2021, equations 1 and 2",
    equation=(
        r"p = \frac{G^{+} d}{\mathbf{1}^{\top} G^{+} d}, \; d_i = |g_i|: \quad "
        r"\sum_j p_j g_j \cdot \frac{g_i}{|g_i|} \; \mathrm{equal \; for \; all} \; i"
    ),
    cost=GRAM,
).register()
Method(
    "aligned-mtl",
    AlignedMTL,
    summary="equal principal components",
    source="Senushkin et al. 2023, algorithm 1",
    equation=(
        r"p = \sqrt{\lambda_{\min}} V \Lambda^{-1/2} V^{\top} \frac{\mathbf{1}}{N}, \quad "
        r"G = V \Lambda V^{\top}"
    ),
    cost=GRAM,
).register()
Method(
    "fairgrad",
    FairGrad,
    summary="alpha-fair improvements",
    source="Ban, Ji 2024, equation 4",
    equation=r"(G p)_i = p_i^{-1 / \alpha}",
    cost=PROGRAM,
).register()
Method(
    "krum",
    Krum,
    summary="the update nearest to its neighbors",
    source="Blanchard et al. 2017",
    equation=(
        r"p_k = 1, \; p_{i \ne k} = 0, \quad k = \arg \min_i \sum_{j \to i} |g_i - g_j|^2, \quad "
        r"j \to i \; \mathrm{the} \; N - b - 2 \; \mathrm{nearest}"
    ),
    cost=GRAM,
).register()
