"""A Lightning module with its CSV logger and its checkpoints of every epoch."""

from __future__ import annotations

import argparse

import lightning as L  # noqa: N812 - as its README does
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(L.LightningModule):
    """A small network that learns a sine."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _index: int) -> None:
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])


parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--max_epochs", type=int, default=3)
parser.add_argument("--log_dir", default="logs")
parser.add_argument("--ckpt_path")
args = parser.parse_args()

L.seed_everything(0)
x = torch.rand(2048, 1) * 6
y = torch.sin(x)
train = DataLoader(TensorDataset(x[:1792], y[:1792]), batch_size=16, shuffle=True)
valid = DataLoader(TensorDataset(x[1792:], y[1792:]), batch_size=64)
trainer = L.Trainer(max_epochs=args.max_epochs, accelerator="cpu", logger=CSVLogger(args.log_dir), log_every_n_steps=10)
trainer.fit(Regression(args.lr), train, valid, ckpt_path=args.ckpt_path)
