"""``fgn.Balancer`` as part of a Lightning module: trained, saved with it, and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fedgradnorm as fgn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning"),  # of Lightning with this torch
]
TASKS = ("depth", "edges")


def module() -> Any:
    lightning = pytest.importorskip("lightning", reason="needs fedgradnorm[dev]")

    class Both(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
            self.heads = nn.ModuleDict({task: nn.Linear(6, 1) for task in TASKS})
            self.balance = fgn.Balancer(TASKS, shared=self.trunk[-1])
            self.history: list[dict[str, float]] = []

        def losses(self, x: Tensor) -> dict[str, Tensor]:
            features = self.trunk(x)
            found = {task: head(features).square().mean() for task, head in self.heads.items()}
            return {**found, "edges": 100 * found["edges"]}

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            loss = self.balance(self.losses(batch[0]))
            self.log_dict({f"weight/{task}": w for task, w in self.balance.weights.items()})
            self.history.append(self.balance.weights)
            return loss

        def validation_step(self, batch: list[Tensor], _: int) -> Tensor:
            return self.balance(self.losses(batch[0]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    lightning.seed_everything(0, verbose=False)
    return Both()


def fit(model: Any, epochs: int, folder: Path, resumed: Path | None = None) -> Path:
    import lightning

    rows = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(rows), batch_size=8)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
        default_root_dir=folder, num_sanity_val_steps=1,
    )  # fmt: skip
    trainer.fit(model, loader, loader, ckpt_path=None if resumed is None else str(resumed))
    trainer.save_checkpoint(folder / f"{epochs}.ckpt")
    return folder / f"{epochs}.ckpt"


def test_a_lightning_module_resumes_with_its_weights(tmp_path: Path) -> None:
    whole, first, second = module(), module(), module()
    fit(whole, 4, tmp_path)
    half = fit(first, 2, tmp_path)
    fit(second, 4, tmp_path, resumed=half)
    assert len(whole.history) == 16  # neither validation nor its sanity check counts as training
    assert whole.balance.steps == second.balance.steps == 16
    assert [*first.history, *second.history] == whole.history
    assert whole.history[0] != whole.history[-1]
    assert whole.history[-1]["edges"] < 0.5
