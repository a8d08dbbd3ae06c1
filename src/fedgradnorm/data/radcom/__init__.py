"""RadComDynamic: radio signals, read from its file or generated."""

from fedgradnorm.data._source import Source
from fedgradnorm.data.radcom._generate import generate
from fedgradnorm.data.radcom._radcom import TASKS, clients, prepare
from fedgradnorm.data.radcom._radcom_file import read
from fedgradnorm.data.radcom._signal_set import MODULATIONS, SIGNALS, SNRS, WAVEFORMS, RadCom

__all__ = [
    "MODULATIONS",
    "SIGNALS",
    "SNRS",
    "TASKS",
    "WAVEFORMS",
    "RadCom",
    "clients",
    "generate",
    "prepare",
    "read",
]

Source("radcom", clients, "radio signals: generated, or RadComDynamic's file", ("path",)).register()
