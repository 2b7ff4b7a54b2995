"""A plain script with Hugging Face's Accelerator, as its own introduction has it."""

import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
loader = DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
first = last = 0.0
for (batch,) in loader:
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    first, last = first or loss.item(), loss.item()
total = accelerator.reduce(torch.ones(1), "sum").item()
rank, size = accelerator.process_index, accelerator.num_processes
sys.stdout.write(f"process {rank} of {size}: sum {total:.0f}, learnt {last < first}\n")
accelerator.end_training()
