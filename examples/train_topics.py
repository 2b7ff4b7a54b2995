"""Train a small GPT on Python's own help texts, on as many ranks as the launcher starts.

An ordinary data-parallel script, written as for torchrun; it knows nothing of its launcher. Each
rank takes its share of every batch; rank 0 prints the loss and saves the state, so that a run
that was stopped goes on with --resume:

    dispatch -H hostfile examples/train_topics.py --steps 60 --out runs/topics --resume
"""

import argparse
import gc
import os
import socket
import time
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

CONTEXT = 64  # bytes of text the model sees at once
WIDTH = 96
HEADS = 4
LAYERS = 2


class Block(nn.Module):
    """Attention to the past, then a small network on each position."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.before_network = nn.LayerNorm(WIDTH)
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        shape = (batch, length, 3, HEADS, WIDTH // HEADS)
        packed = self.query_key_value(self.before_attention(x)).view(shape)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.network(self.before_network(x))


class Model(nn.Module):
    """Bytes in, the odds of every next byte out."""

    def __init__(self) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, WIDTH)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = nn.LayerNorm(WIDTH)
        self.odds = nn.Linear(WIDTH, 256, bias=False)
        self.apply(self.start_small)

    @staticmethod
    def start_small(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        place = torch.arange(text.shape[1], device=text.device)
        return self.odds(self.last(self.blocks(self.byte(text) + self.place(place))))


def help_text() -> torch.Tensor:
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def share(text: torch.Tensor, step: int, batch: int, rank: int, world: int) -> torch.Tensor:
    """This rank's rows of the batch of ``step``: the same batch whatever the number of ranks."""
    order = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - CONTEXT - 1, (batch,), generator=order)
    return torch.stack([text[i : i + CONTEXT + 1] for i in starts[rank::world].tolist()])


def save(path: str, state: dict) -> None:
    """Write the whole state or nothing: a reader never meets half a file."""
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)


def choose_device() -> torch.device:
    """The GPU of this local rank, or the CPU with a fair share of the host's cores."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        return device
    if "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    return torch.device("cpu")


def train(options: argparse.Namespace, device: torch.device) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    here = [device] if device.type == "cuda" else None
    model = DistributedDataParallel(Model().to(device), device_ids=here)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    path = os.path.join(options.out, "state.pt")
    first, state = 0, [None]
    if options.out and rank == 0:
        os.makedirs(options.out, exist_ok=True)
        if options.resume and os.path.exists(path):
            state[0] = torch.load(path, map_location="cpu", weights_only=True)
    dist.broadcast_object_list(state, device=device)  # the others may have another disk
    if state[0]:
        model.module.load_state_dict(state[0]["model"])
        optimizer.load_state_dict(state[0]["optimizer"])
        first = state[0]["step"]
        if rank == 0:
            print(f"resuming after step {first}", flush=True)

    text = help_text()
    started = time.monotonic()
    for step in range(first + 1, options.steps + 1):
        rows = share(text, step, options.batch, rank, world).to(device)
        odds = model(rows[:, :-1])
        loss = functional.cross_entropy(odds.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = step == options.steps
        if step == 1 or step % 10 == 0 or last:
            mean = loss.detach()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item() / world:.3f}", flush=True)
        if options.out and rank == 0 and (last or step % options.save_every == 0):
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            save(path, {**state, "step": step})
    if rank == 0:
        seconds = time.monotonic() - started
        print(f"done: {max(0, options.steps - first)} steps in {seconds:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="train a small GPT on Python's help texts")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64, help="rows of all ranks together")
    parser.add_argument("--out", default="", help="directory for the state; none is kept without")
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--resume", action="store_true", help="go on from the state in --out")
    options = parser.parse_args()

    device = choose_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if options.batch < world:
        raise SystemExit(f"--batch {options.batch}: {world} ranks need a row each")
    what = f"{torch.get_num_threads()} cpu threads"
    if device.type == "cuda":
        what = torch.cuda.get_device_name(device)
    print(f"rank {rank} of {world} on {socket.gethostname()}: {what}", flush=True)
    train(options, device)
    # The model holds on to the process group; a gloo group that lives until the interpreter's
    # end aborts there about once in 15 runs. So let go of the model first.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
