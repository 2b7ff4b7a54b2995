"""A Lightning trainer that is told nothing of the cluster but its size."""

import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


trainer = lightning.Trainer(
    accelerator="cpu", strategy="ddp", num_nodes=2, devices=2, max_steps=3, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Model(), DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=4, num_workers=0))
rank, size = trainer.global_rank, trainer.world_size
sys.stdout.write(f"rank {rank} of {size} took {trainer.global_step} steps\n")
