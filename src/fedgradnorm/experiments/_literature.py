"""The methods one would compare with: weightings of the literature, and ways to personalise."""

from __future__ import annotations

from fedgradnorm import weighting as w
from fedgradnorm.experiments._averaged import static_from_run
from fedgradnorm.experiments._method import Method

_AVERAGED = {"update": "model", "server_optimizer": {"name": "sgd", "lr": 1.0}}
"""Clients send models and the server averages them."""

_GRAM = "N^2 D"
_PROGRAM = "N^2 D + a convex program"

_GIVEN = (
    Method("static", "weights chosen by hand", "baseline", w.Static),
    Method(
        "fedgradnorm-static",
        "a finished run's mean weights, held still",
        "Chen et al. 2018",
        static_from_run,
    ),
)

_BY_LOSS = (
    Method("inverse-first-loss", "weight 1 / first loss, for ever", "baseline", w.InverseFirstLoss),
    Method("geometric-mean", "weight 1 / loss", "Chennupati et al. 2019", w.GeometricMean),
    Method("rlw", "random weights in every round", "Lin et al. 2022", w.RandomWeights),
    Method("dwa", "who improved least counts most", "Liu, Johns, Davison 2019", w.DWA),
    Method("uw", "learned variance of every task", "Kendall et al. 2018", w.Uncertainty),
    Method("imtl-l", "learned scale of every loss", "Liu et al. 2021", w.IMTLL),
    Method("famo", "all losses fall at one rate", "Liu et al. 2023", w.FAMO),
    Method("q-ffl", "weight loss^q: large losses first", "Li et al. 2020", w.QFFL),
    Method("afl", "the worst mixture of clients", "Mohri et al. 2019", w.AFL),
)

_BY_GRADIENT = (
    Method("upgrad", "projections that harm nobody", "Quinton, Rey 2024", w.UPGrad, cost=_PROGRAM),
    Method(
        "dualproj",
        "the mean, projected to harm nobody",
        "Lopez-Paz, Ranzato 2017",
        w.DualProj,
        cost=_PROGRAM,
    ),
    Method("mgda", "shortest vector of the hull", "Sener, Koltun 2018", w.MGDA, cost=_GRAM),
    Method(
        "fsmgda",
        "MGDA on the tasks' mean updates",
        "Yang et al. 2023",
        w.MGDA,
        settings={"key": "task"},
        cost=_GRAM,
    ),
    Method("fedmgda", "MGDA on unit updates, in a box", "Hu et al. 2022", w.FedMGDA, cost=_GRAM),
    Method(
        "fedcmoo", "MGDA by projected gradient steps", "Askin et al. 2025", w.FedCMOO, cost=_GRAM
    ),
    Method("pcgrad", "conflicts projected away", "Yu et al. 2020", w.PCGrad, cost=_GRAM),
    Method("gradvac", "cosines kept at their mean", "Wang et al. 2021", w.GradVac, cost=_GRAM),
    Method("cagrad", "best worst case near the mean", "Liu et al. 2021", w.CAGrad, cost=_PROGRAM),
    Method("nash-mtl", "the bargaining solution", "Navon et al. 2022", w.NashMTL, cost=_PROGRAM),
    Method("imtl-g", "equal projections on all", "Liu et al. 2021", w.IMTLG, cost=_GRAM),
    Method(
        "aligned-mtl",
        "equal principal components",
        "Senushkin et al. 2023",
        w.AlignedMTL,
        cost=_GRAM,
    ),
    Method("fairgrad", "alpha-fair improvements", "Ban, Ji 2024", w.FairGrad, cost=_PROGRAM),
    Method("krum", "the most typical update", "Blanchard et al. 2017", w.Krum, cost=_GRAM),
    Method("config", "one cosine to all updates", "Liu et al. 2024", w.ConFIG, cost=_GRAM),
    Method("graddrop", "one sign per parameter", "Chen et al. 2020", w.GradDrop, cost="N D"),
    Method(
        "trimmed-mean",
        "mean without the extremes",
        "Yin et al. 2018",
        w.TrimmedMean,
        cost="N log N D",
    ),
)

_PERSONAL = (
    Method(
        "fedrep-classic",
        "FedRep with averaged models",
        "Collins et al. 2021",
        w.Equal,
        settings=_AVERAGED,
    ),
    Method(
        "fedprox",
        "averaged models, pulled back (mu = 0.01)",
        "Li et al. 2020",
        w.Equal,
        settings={**_AVERAGED, "proximal": 0.01},
    ),
    Method(
        "fedavg",
        "everything averaged by size, heads too",
        "McMahan et al. 2017",
        w.Equal,
        settings={
            **_AVERAGED,
            "schedule": "together",
            "head_optimizer": "sgd",
            "aggregate": "by_size",
            "heads": "all",
        },
    ),
    Method(
        "fedbabu",
        "random heads until the end, then tuned",
        "Oh et al. 2022",
        w.Equal,
        settings={"head_steps": 0, "final_head_steps": 200},
    ),
    Method(
        "ditto",
        "a personal network near the shared one",
        "Li et al. 2021",
        w.Equal,
        settings={"ditto": 0.1},
    ),
)

RIVALS: tuple[Method, ...] = (*_GIVEN, *_BY_LOSS, *_BY_GRADIENT, *_PERSONAL)
"""Everything beside FedGradNorm and the paper's own baselines."""
