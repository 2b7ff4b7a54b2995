"""Hugging Face's Trainer on a tiny GPT-2 of random weights; nothing is downloaded.

dispatch -H n1:2,n2:2 examples/frameworks/hf_trainer.py
dispatch -H n1:2,n2:2 --launcher accelerate -- --multi_gpu examples/frameworks/hf_trainer.py
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
tokens = torch.arange(16) % 7
data = [{"input_ids": tokens, "labels": tokens} for _ in range(64)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=4, per_device_train_batch_size=2, report_to=[], save_strategy="no",
        disable_tqdm=True, logging_strategy="no", use_cpu=not torch.cuda.is_available(),
        ddp_backend=None if torch.cuda.is_available() else "gloo", learning_rate=1e-2,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    loss = trainer.train().training_loss
line = f"process {arguments.process_index} of {arguments.world_size}: 4 steps, loss {loss:.2f}\n"
sys.stdout.write(line)
sys.stdout.flush()
if dist.is_initialized():
    dist.barrier()
os._exit(0)  # on an orderly way out one of gloo's threads aborts at times
