"""Memory of a rank for the sigmoid loss of SigLIP: embeddings passed from rank to rank, beside gathered ones.

    python benchmarks/siglip_memory.py [--ranks 1,2,4,8] [--pairs 2048] [--width 1024]

Each rank is a process on this machine, with gloo. It has `pairs` pairs and towers that are one linear layer each. The
result is what a step adds to the resident memory of rank 0 at its peak, as Linux counts it (`VmHWM`), in MB:
embeddings, their gradients, chunks of the logits and buffers of the exchange.
"""

import argparse
import ctypes
import os
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor, nn
from torch.distributed import TCPStore
from torch.multiprocessing import get_context
from torch.nn.functional import normalize

from pretrainkit.dist.env import World, init_world
from pretrainkit.recipes.clip.losses import ScoreProducts
from pretrainkit.recipes.clip.objective import ClipObjective
from pretrainkit.recipes.clip.presets import tiny
from pretrainkit.training.accumulate import accumulate
from pretrainkit.training.precision import Precision

INPUT_WIDTH = 16


class Towers(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(INPUT_WIDTH, width), nn.Linear(INPUT_WIDTH, width)
        self.scale, self.logit_bias = nn.Parameter(torch.tensor(10.0)), nn.Parameter(torch.full((1,), -10.0))
        self.score_products = ScoreProducts()

    def logit_scale(self) -> Tensor:
        return self.scale

    def forward(self, image_features: Tensor, text_features: Tensor, num_tokens: Tensor) -> dict[str, Tensor]:
        images_BE, texts_BE = self.image(image_features), self.text(text_features)
        return {"image": normalize(images_BE, dim=-1), "text": normalize(texts_BE, dim=-1)}


def peak_kilobytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["VmHWM"].split()[0])


def added_megabytes(world: World, num_pairs: int, width: int, *, gathers: bool) -> float:
    """Return the megabytes that a step adds at its peak to the memory before it."""
    config = tiny().changed(objective={"loss": "siglip", "logits_megabytes": 2})
    model, objective = Towers(width), ClipObjective(config)
    precision = Precision(device=torch.device("cpu"), compute_dtype=torch.float32, uses_tf32=False, scaler=None)

    def step(num: int) -> None:
        features = {f"{name}_features": torch.randn(num, INPUT_WIDTH) for name in ("image", "text")}
        batch = {"num_tokens": torch.ones(num), **features}
        accumulate(objective, model, [batch], precision=precision, world=world)

    ways = mock.patch.object(ClipObjective, "exchanged", return_value=None) if gathers else mock.MagicMock()
    with ways:
        step(8)  # threads, connections and gradients of the towers
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        before = peak_kilobytes()
        step(num_pairs)
        return (peak_kilobytes() - before) * 1024 / 1e6


def run_rank(port: int, rank: int, num_ranks: int, num_pairs: int, width: int, results: object) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    os.environ |= {name: str(value) for name, value in place.items()}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    torch.set_num_threads(1)
    world = init_world("cpu")
    megabytes = [added_megabytes(world, num_pairs, width, gathers=gathers) for gathers in (False, True)]
    if rank == 0:
        results.put(megabytes)
    world.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--pairs", type=int, default=2048)
    parser.add_argument("--width", type=int, default=1024)
    options = parser.parse_args()
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "1000000"  # large tensors are given back to the system, and not kept
    context = get_context("spawn")
    print(f"MB of rank 0, {options.pairs} pairs per rank, width {options.width}\nranks  neighbours  gathered")
    for num_ranks in map(int, options.ranks.split(",")):
        store, results = TCPStore("localhost", 0, is_master=True, wait_for_workers=False), context.Queue()
        arguments = (num_ranks, options.pairs, options.width, results)
        ranks = [context.Process(target=run_rank, args=(store.port, rank, *arguments)) for rank in range(num_ranks)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        assert not any(rank.exitcode for rank in ranks)
        blocks, gathered = results.get()
        print(f"{num_ranks:5}  {blocks:10.0f}  {gathered:8.0f}", flush=True)


if __name__ == "__main__":
    main()
