"""Benchmark masking of 4M batches, from tokens and texts: ours against sample by sample. One core, CPU seconds.

    [ML4M=FOLDER] python benchmarks/fourm_masking.py [--rounds 5] [--batch 128] [--quick]

With the sources of the original, apple/ml-4m (see `ml4m.py`), the peer is its `UnifiedMasking`, which masks one sample
after another and stacks them at the end, as its loader does. Without these sources, the peer follows the published
description of 4M's masking with the original's tools: torch's Dirichlet distributions and permutations, the tokenizers
library for each text, and Python lists for spans; again one sample after another. All contestants get image tokens as
arrays and everything else as texts of ordinary lengths. The mixtures are the published ones. Ours is measured as in
training (slots packed) and with the original's rule (slots padded). A useful token is in a slot that is not padding.
All contestants take turns in each round; the best round counts. A last table shows how full the slots are, and how far
the shares of modalities differ between the rules."""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import default_collate

import ml4m
from pretrainkit import rng
from pretrainkit.data.aligned_crops import centre_square
from pretrainkit.recipes.fourm.config import FourMDataConfig, MaskingConfig
from pretrainkit.recipes.fourm.masking import Masking
from pretrainkit.recipes.fourm.mixtures import KEEPS, PUBLISHED, Bound
from pretrainkit.recipes.fourm.modality import MOD7, MOD21, Modality, published
from pretrainkit.recipes.fourm.readers import Chunks
from pretrainkit.recipes.fourm.source import FourMSource, Sample
from pretrainkit.recipes.fourm.text import TextVocabulary
from pretrainkit.tokenizers.subwords import COCO_CLASSES, train_multimodal

SETTINGS = (
    ("7 modalities", MOD7, "mod7-all2all-rgb2all", 128),
    ("21 modalities", MOD21, "mod21-all2allmix-rgb2all-capT5bias", 256),
)
TEXT = "a the of on in with man woman dog cat sitting standing table street red blue large small two near holding"
WORDS = TEXT.split()


def numbers(generator: np.random.Generator, axes: str) -> list[str]:
    return [f"v{axis}={generator.integers(1000)}" for axis in axes]


def content(modality: Modality, generator: np.random.Generator) -> Any:
    """Return random content of a modality for one sample, in the form that readers return."""
    if modality.kind == "image":
        return generator.integers(0, modality.vocab_size, modality.max_tokens).astype(np.int32)
    if modality.kind == "pixels":
        return None
    if modality.kind == "vectors":
        return np.zeros((generator.integers(10, 30), 8), np.float32)
    match modality.key:
        case "caption":
            return " ".join(generator.choice(WORDS, generator.integers(8, 20)))
        case "det":
            boxes = range(generator.integers(0, 14))
            return [word for _ in boxes for word in (*numbers(generator, "0123"), str(generator.choice(COCO_CLASSES)))]
        case "metadata":
            return Chunks([numbers(generator, "10") for _ in range(19)])
        case "color_palette":
            return numbers(generator, "1" + "000" * generator.integers(1, 8))
        case "human_poses":
            return ["none"] if (people := generator.integers(0, 4)) == 0 else numbers(generator, "0" * 39 * people)
        case _:
            return numbers(generator, "0" * (22 + 21 * int(generator.integers(3, 13))))


class Original:
    """Masking by the original's own code, apple/ml-4m."""

    def __init__(self, modalities: list[Modality], bound: Bound, tokens: int, tokenizer: Tokenizer) -> None:
        self.masking = ml4m.make_masking(modalities, bound, tokens, tokenizer)
        self.names = [modality.name for modality in modalities]

    def __call__(self, samples: list[dict[str, Any]]) -> dict[int, dict[str, Tensor]]:
        return dict(enumerate(default_collate([self.masking(sample) for sample in samples]).values()))


def for_the_original(modality: Modality, content: Any) -> Any:
    """Convert content to the form that the original reads: words and chunks to text, arrays to tensors."""
    if modality.kind == "pixels":
        return torch.zeros(3, 1, 1)
    if isinstance(content, np.ndarray):
        return torch.from_numpy(content if modality.kind == "vectors" else content.astype(np.int64))
    if isinstance(content, Chunks):
        return [" ".join(words) for words in content.words]
    return content if isinstance(content, str) else " ".join(content)


class SampleBySample:
    """Masking of one sample after another, as in the original."""

    def __init__(self, modalities: list[Modality], bound: Bound, tokens: int, tokenizer: Tokenizer) -> None:
        self.modalities, self.tokens, self.tokenizer = modalities, tokens, tokenizer
        self.weights = torch.tensor(bound.weights_K)
        self.inputs, self.targets = (
            [torch.distributions.Dirichlet(torch.tensor(row).clamp(min=1e-9)) for row in table]
            for table in (bound.inputs_KD, bound.targets_KD)
        )
        self.keep = bound.keep_KD
        self.most = torch.tensor([modality.max_tokens for modality in modalities])
        self.is_image = torch.tensor([modality.kind in ("image", "pixels") for modality in modalities])
        vocabulary = tokenizer.get_vocab()
        self.sentinels = [vocabulary[f"[S_{number}]"] for number in range(1, 200)]
        self.sentinel_set = set(self.sentinels)
        self.eos = vocabulary["[EOS]"]

    def __call__(self, samples: list[list[Any]]) -> dict[int, dict[str, Tensor]]:
        masked = [self.mask(sample) for sample in samples]
        return {
            number: {name: torch.stack([sample[number][name] for sample in masked]) for name in masked[0][number]}
            for number in range(len(self.modalities))
        }

    def budget(self, dirichlet: torch.distributions.Dirichlet, limits: Tensor) -> list[int]:
        budget = (dirichlet.sample() * self.tokens).floor().long()
        short = self.tokens - int(budget.sum())
        if short > 0:
            budget += torch.bincount(dirichlet.sample((short,)).argmax(dim=-1), minlength=len(budget))
        limited: list[int] = torch.minimum(budget, limits).tolist()
        return limited

    def mask(self, sample: list[Any]) -> list[dict[str, Tensor]]:
        component = int(torch.multinomial(self.weights, 1))
        inputs = self.budget(self.inputs[component], self.most)
        limits = torch.where(self.is_image, self.most - torch.tensor(inputs), self.most)
        targets = self.budget(self.targets[component], limits)
        return [
            self.image(modality, content, inputs[number], targets[number])
            if modality.kind in ("image", "pixels")
            else self.sequence(modality, content, inputs[number], targets[number], KEEPS[self.keep[component, number]])
            for number, (modality, content) in enumerate(zip(self.modalities, sample, strict=True))
        ]

    def image(self, modality: Modality, content: Any, num_in: int, num_out: int) -> dict[str, Tensor]:
        size = modality.max_tokens
        order = torch.argsort(torch.rand(size))
        input_mask = torch.ones(size, dtype=torch.bool)
        input_mask[order[:num_in]] = False
        target_mask = torch.ones(size, dtype=torch.bool)
        target_mask[order[num_in : num_in + num_out]] = False
        attention = torch.zeros(size, dtype=torch.int)
        attention[int((~target_mask).to(torch.int).argmax())] = num_out
        ids = torch.zeros(size, dtype=torch.long) if content is None else torch.from_numpy(content).long()
        return {"tensor": ids, "input_mask": input_mask, "target_mask": target_mask, "attention": attention}

    def sequence(self, modality: Modality, content: Any, num_in: int, num_out: int, keep: str) -> dict[str, Tensor]:
        chunks = self.chunks(modality, content)
        probability = float(torch.rand(1)) if keep == "random" else 1.0 if keep == "all" else float(torch.rand(1) < 0.5)
        probability = probability if num_in else 0.0
        while True:
            input_ids, target_ids = self.spans(chunks, (torch.rand(len(chunks)) <= probability).tolist())
            if not num_in or len(input_ids) <= num_in:
                break
            probability *= 0.9
        input_ids = input_ids if num_in else []
        if len(target_ids) > num_out:
            target_ids = self.cut(target_ids, num_out)
        size = (modality.max_tokens + 1) * 2
        ids = torch.zeros(size, dtype=torch.long)
        ids[: len(input_ids)] = torch.tensor(input_ids, dtype=torch.long)
        ids[num_in : num_in + len(target_ids)] = torch.tensor(target_ids, dtype=torch.long)
        input_mask, target_mask = torch.ones(size, dtype=torch.bool), torch.ones(size, dtype=torch.bool)
        input_mask[: len(input_ids)] = False
        target_mask[num_in : num_in + len(target_ids)] = False
        attention = torch.zeros(size, dtype=torch.int)
        attention[num_in : num_in + len(target_ids)] = 1
        return {"tensor": ids, "input_mask": input_mask, "target_mask": target_mask, "attention": attention}

    def chunks(self, modality: Modality, content: Any) -> list[list[int]]:
        if modality.kind == "vectors":
            return [[10_000 + number] for number in range(len(content))]
        if isinstance(content, Chunks):
            chunks, length = [], 0
            for chunk in [*(self.tokenizer.encode(" ".join(words)).ids for words in content.words), [self.eos]]:
                length += len(chunk)
                if length > modality.max_tokens:
                    break
                chunks.append(chunk)
            return chunks
        text = content if isinstance(content, str) else " ".join(content)
        return [[token] for token in [*self.tokenizer.encode(text).ids, self.eos][: modality.max_tokens]]

    def spans(self, chunks: list[list[int]], is_kept: list[bool]) -> tuple[list[int], list[int]]:
        input_ids: list[int] = []
        target_ids: list[int] = []
        num_spans, was_hidden = 0, False
        for chunk, kept in zip(chunks, is_kept, strict=True):
            if kept:
                input_ids += chunk
            else:
                if not was_hidden:
                    input_ids.append(self.sentinels[num_spans])
                    target_ids.append(self.sentinels[num_spans])
                    num_spans += 1
                target_ids += chunk
            was_hidden = not kept
        return input_ids, [*target_ids, self.sentinels[num_spans]]

    def cut(self, target_ids: list[int], limit: int) -> list[int]:
        places = [place for place, token in enumerate(target_ids) if token in self.sentinel_set]
        places = places[:-1] if len(places) > 1 else places
        start = places[int(torch.randint(len(places), (1,)))]
        if len(target_ids) - start < limit:
            start = next((place for place in places if len(target_ids) - place <= limit), len(target_ids) - 1)
        return target_ids[start : start + limit]


def useful(batch: dict[str, np.ndarray]) -> int:
    return int(batch["encoder_length"].sum() + batch["decoder_length"].sum())


def useful_of_peer(batch: dict[int, dict[str, Tensor]], modalities: list[Modality]) -> int:
    total = 0
    for number, modality in enumerate(modalities):
        targets = (~batch[number]["target_mask"]).sum(dim=1)
        total += int((~batch[number]["input_mask"]).sum()) if modality.is_input else 0
        if modality.is_target:
            total += int((targets if modality.kind == "image" else (targets - 1).clamp(min=0)).sum())
    return total


def compare(title: str, names: tuple[str, ...], mixture: str, tokens: int, options: argparse.Namespace) -> list[str]:
    """Return the rows of both tables for a setting."""
    modalities = [published(name) for name in names]
    bound = Bound(PUBLISHED[mixture], modalities, names)
    counts = {word.encode(): 10 for word in sorted({*WORDS, "none", "human"})}
    text = train_multimodal(counts, 4330, classes=COCO_CLASSES, num_sentinels=200, num_bins=1000)
    folder = options.folder
    (folder / "tokenizer.json").write_text(text)
    vocabulary, generator = TextVocabulary(folder), np.random.default_rng(0)
    samples = [[content(modality, generator) for modality in modalities] for _ in range(options.batch)]
    kept = [Sample("", centre_square(8, 8), dict(enumerate(sample))) for sample in samples]
    maskings = {
        unused: Masking(
            MaskingConfig(num_input_tokens=tokens, num_target_tokens=tokens, mixture=mixture, unused=unused),
            modalities,
            bound,
            vocabulary.sentinels[1],
        )
        for unused in ("pack", "pad")
    }
    source = object.__new__(FourMSource)
    source.modalities, source.vocabulary, source.data = tuple(modalities), vocabulary, FourMDataConfig(batch_size=1)
    tokenizer = Tokenizer.from_str(text)
    peer: Callable[[Any], dict[int, dict[str, Tensor]]] = SampleBySample(modalities, bound, tokens, tokenizer)
    peer_samples: Any = samples
    if ml4m.find_sources() is not None:
        peer = Original(modalities, bound, tokens, tokenizer)
        pairs = [zip(modalities, sample, strict=True) for sample in samples]
        peer_samples = [
            {modality.name: for_the_original(modality, content) for modality, content in pair} for pair in pairs
        ]
    turns, base_name = [0], "sample by sample" if ml4m.find_sources() is None else "apple/ml-4m"

    def ours(unused: str) -> tuple[int, int]:
        turns[0] += 1
        batch = maskings[unused](source.contents(kept), rng.fold(turns[0], np.arange(len(kept))))
        return len(kept), useful(batch)

    def peers() -> tuple[int, int]:
        return len(samples), useful_of_peer(peer(peer_samples), modalities)

    engines: dict[str, Callable[[], tuple[int, int]]] = {
        base_name: peers,
        "ours, padded": lambda: ours("pad"),
        "ours, packed": lambda: ours("pack"),
    }
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    for _ in range(options.rounds + 1):  # the first round is a warm-up
        for name, engine in engines.items():
            began, num, num_tokens = time.process_time(), 0, 0
            while num < options.samples:
                done, good = engine()
                num, num_tokens = num + done, num_tokens + good
            seconds = time.process_time() - began
            rates[name].append((num / seconds, num_tokens / seconds))
    best = {name: np.array(rate[1:]).max(axis=0) for name, rate in rates.items()}
    base = best[base_name]
    rows = []
    for name, rate in best.items():
        samples_of, tokens_of = rate / base
        rows.append(
            f"| {title}, {name} | {rate[0]:,.0f} | {samples_of:.1f} | {rate[1] / 1e3:,.0f} k | {tokens_of:.1f} |"
        )
    return rows + fill(title, maskings, source.contents(kept), tokens, len(modalities))


def fill(title: str, maskings: dict[str, Masking], contents: Any, tokens: int, num: int) -> list[str]:
    """Return the rows of the table of slots, which start with a space."""
    by_rule = {}
    for unused, masking in maskings.items():
        lengths, shares = np.zeros(2), np.zeros((2, num))
        for turn in range(12):
            batch = masking(contents, rng.fold(turn, np.arange(contents.num)))
            for side, name in enumerate(("encoder", "decoder")):
                real = np.arange(tokens) < batch[f"{name}_length"][:, None]
                lengths[side] += real.mean() / 12
                shares[side] += np.bincount(batch[f"{name}_modality"][real], minlength=num)
        by_rule[unused] = lengths, shares / shares.sum(axis=1, keepdims=True)
    gap = np.abs(by_rule["pack"][1] - by_rule["pad"][1]).max(axis=1)
    return [
        f" | {title}, {'packed' if unused == 'pack' else 'padded'} | {100 * lengths[0]:.1f} | {100 * lengths[1]:.1f} | "
        + (f"{100 * gap[0]:.1f} | {100 * gap[1]:.1f} |" if unused == "pack" else "| |")
        for unused, (lengths, _) in by_rule.items()
    ]


def main() -> None:
    import tempfile
    from pathlib import Path

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=128, help="samples per batch")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.samples = options.batch if options.quick else 3 * options.batch
    options.rounds = 1 if options.quick else options.rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        options.folder = Path(folder)
        rows = [row for setting in SETTINGS for row in compare(*setting, options)]
    print(f"Batches of {options.batch}, best of {options.rounds} rounds, one core.\n")
    print("| contestant | samples / CPU-s | times the samples | useful tokens / CPU-s | times the tokens |")
    print("|---|---|---|---|---|")
    print("\n".join(row for row in rows if not row.startswith(" ")))
    print("\n### Slots that are filled\n")
    print("| slots | encoder, % | decoder, % | largest shift of a share in the encoder, points | in the decoder |")
    print("|---|---|---|---|---|")
    print("\n".join(row.strip() for row in rows if row.startswith(" ")))


if __name__ == "__main__":
    main()
