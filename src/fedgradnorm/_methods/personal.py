"""Other ways to personalize, which are settings: any of them goes with any weighting."""

from fedgradnorm._methods.method import Method
from fedgradnorm.weighting import Equal

AVERAGED = {"sends": "model", "server_optimizer": {"name": "sgd", "lr": 1.0}}
"""Clients send models and the server averages them."""

Method(
    "fedrep-classic",
    Equal,
    settings=AVERAGED,
    summary="FedRep with averaged models",
    source="Collins et al. 2021, algorithm 1",
    equation=(
        r"\omega \leftarrow \frac{1}{N} \sum_i \omega_i, \quad \omega_i = \omega - \eta "
        r"\sum_s \nabla_{\omega} F_i(\omega_{i,s}, h_i)"
    ),
).register()
Method(
    "fedprox",
    Equal,
    settings={**AVERAGED, "proximal": 0.01},
    tunable=["proximal"],
    summary="averaged models, local steps pulled back (mu = 0.01)",
    source="Li, Sahu et al. 2020, algorithm 2",
    equation=(
        r"\omega \leftarrow \frac{1}{N} \sum_i \omega_i, \quad \omega_i \approx "
        r"\arg \min_w F_i(w) + \frac{\mu}{2} |w - \omega|^2"
    ),
).register()
Method(
    "fedavg",
    Equal,
    settings={
        **AVERAGED,
        "phases": "joint",
        "head_optimizer": "sgd",
        "aggregate": "by_size",
        "heads": "all",
    },
    summary="models averaged by client size, heads included",
    source="McMahan et al. 2017",
    equation=(r"(\omega, h) \leftarrow \sum_i \frac{n_i}{n} (\omega_i, h_i), \quad n = \sum_i n_i"),
).register()
Method(
    "fedbabu",
    Equal,
    settings={"head_steps": 0, "heads": "task", "final_head_steps": 200},
    tunable=["heads", "final_head_steps"],
    summary="one random head per task, tuned at the end",
    source="Oh et al. 2022, algorithm 1",
    equation=(
        r"g_i = \nabla_{\omega} F_i(\omega, h_{k 0}) \; \mathrm{for \; all \;} i \; "
        r"\mathrm{of \; task \;} k, \quad \mathrm{at \; the \; end} \; "
        r"h_i \leftarrow h_i - \eta_h \nabla_h F_i(\omega, h_i)"
    ),
).register()
Method(
    "ditto",
    Equal,
    settings={"ditto": 0.1},
    tunable=["ditto"],
    summary="a personal network near the shared one",
    source="Li et al. 2021, algorithm 1",
    equation=(r"v_i \leftarrow v_i - \eta \left( \nabla F_i(v_i) + \lambda (v_i - \omega) \right)"),
).register()
