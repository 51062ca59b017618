"""Run by test_evaluate.py as one of several processes: evaluates and saves the metrics and counts.

Arguments: the folder for the results, and the strategy. Its place comes from the environment, as from torchrun.
"""

import json
import sys
from pathlib import Path

from pretrainkit.dist.env import init_world
from pretrainkit.dist.parallelize import parallelize, unwrap
from pretrainkit.recipes.clip.config import ClipEvaluateConfig
from pretrainkit.recipes.clip.held_out import held_out_metrics
from pretrainkit.training.run import ParallelConfig
from support.toy_held_out import ToyEncoder, toy_classes, toy_pairs

if __name__ == "__main__":
    import torch

    world = init_world("cpu")
    encoder = ToyEncoder()
    model = parallelize(encoder, ParallelConfig(strategy=sys.argv[2]), world, torch.float32)
    config = ClipEvaluateConfig(batch_size=7, ranks=True)
    metrics = held_out_metrics(model, [toy_pairs()], [toy_classes()], config, world=world)
    counted = [unwrap(model).num_passes, unwrap(model).num_images, unwrap(model).num_captions]
    Path(sys.argv[1], f"{world.rank}.json").write_text(json.dumps({"metrics": metrics, "counted": counted}))
    world.close()
