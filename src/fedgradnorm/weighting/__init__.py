"""How the server weighs its clients."""

from fedgradnorm.weighting._base import Needs, Signals, Weighting
from fedgradnorm.weighting._directions import ConFIG, GradDrop, TrimmedMean
from fedgradnorm.weighting._excess import ExcessMTL
from fedgradnorm.weighting._fixed import BySize, Equal, Static
from fedgradnorm.weighting._go4align import GO4Align
from fedgradnorm.weighting._gradients import (
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
from fedgradnorm.weighting._gradnorm import GradNorm
from fedgradnorm.weighting._loss_based import (
    AFL,
    DWA,
    FAMO,
    IMTLL,
    QFFL,
    GeometricMean,
    InverseFirstLoss,
    RandomWeights,
    Tchebycheff,
    Uncertainty,
)
from fedgradnorm.weighting._mgda import FedCMOO, FedMGDA
from fedgradnorm.weighting._nash import NashMTL
from fedgradnorm.weighting._steady import Steady

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
    "CAGrad",
    "ConFIG",
    "DualProj",
    "Equal",
    "ExcessMTL",
    "FairGrad",
    "FedCMOO",
    "FedMGDA",
    "GO4Align",
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
    "Steady",
    "Tchebycheff",
    "TorchJD",
    "TrimmedMean",
    "UPGrad",
    "Uncertainty",
    "Weighting",
]
