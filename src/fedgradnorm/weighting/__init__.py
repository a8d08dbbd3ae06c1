"""How the server weighs its clients: one method, one file, one page."""

from fedgradnorm.weighting.base import Needs, Signals, Weighting
from fedgradnorm.weighting.by_task import ByTask
from fedgradnorm.weighting.directions import ConFIG, GradDrop, TrimmedMean
from fedgradnorm.weighting.famo import FAMO
from fedgradnorm.weighting.fixed import BySize, Equal, Static
from fedgradnorm.weighting.gradients import (
    IMTLG,
    MGDA,
    AlignedMTL,
    CAGrad,
    DualProj,
    FairGrad,
    GradVac,
    Krum,
    PCGrad,
    TorchJD,
    UPGrad,
)
from fedgradnorm.weighting.gradnorm import GradNorm
from fedgradnorm.weighting.loss_based import (
    AFL,
    DWA,
    QFFL,
    GeometricMean,
    InverseFirstLoss,
    RandomWeights,
)
from fedgradnorm.weighting.mgda import FedCMOO, FedMGDA
from fedgradnorm.weighting.nash import NashMTL
from fedgradnorm.weighting.uncertainty import IMTLL, Uncertainty

__all__ = [
    "AFL",
    "DWA",
    "FAMO",
    "IMTLG",
    "IMTLL",
    "MGDA",
    "QFFL",
    "AlignedMTL",
    "BySize",
    "ByTask",
    "CAGrad",
    "ConFIG",
    "DualProj",
    "Equal",
    "FairGrad",
    "FedCMOO",
    "FedMGDA",
    "GeometricMean",
    "GradDrop",
    "GradNorm",
    "GradVac",
    "InverseFirstLoss",
    "Krum",
    "NashMTL",
    "Needs",
    "PCGrad",
    "RandomWeights",
    "Signals",
    "Static",
    "TorchJD",
    "TrimmedMean",
    "UPGrad",
    "Uncertainty",
    "Weighting",
]
