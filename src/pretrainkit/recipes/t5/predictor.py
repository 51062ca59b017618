"""A trained model as a function: answers to inputs, and how likely given answers are.

Examples are mappings with `inputs` and `targets`, sequences of ids; language models may lack the inputs. What comes out
does not depend on the size of the batches, on the order of the examples, or on their number: draws are a function of
the seed and of the inputs. (The last digits of floating-point sums do depend on what is computed together.)

Dimensions: B examples of a batch, N answers to one, P slots of prompts, L slots of answers, K target tokens.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from pretrainkit.dist.parallelize import is_sharded, unwrap
from pretrainkit.dist.weights import allocate, full_state_dict
from pretrainkit.errors import InputError
from pretrainkit.eval.evaluator import evaluation_mode
from pretrainkit.nn.layouts import best_pairs
from pretrainkit.recipes.t5 import features
from pretrainkit.recipes.t5.config import T5Run
from pretrainkit.recipes.t5.decode import END_ID, IMPOSSIBLE, Decoded, beam_search, sample
from pretrainkit.recipes.t5.decoding_config import DecodingConfig
from pretrainkit.recipes.t5.inputs import read_batch
from pretrainkit.recipes.t5.model import T5
from pretrainkit.recipes.t5.ragged import ragged
from pretrainkit.rng import fold_one, stream_key, uniform

Example = Mapping[str, Any]
_SCORED_TOKENS = 2048
"""Most target tokens of a forward pass, whose probabilities of the whole vocabulary are in memory together."""


class Answer(NamedTuple):
    ids: NDArray[np.int32]
    """Up to the end mark, which is the last one unless the answer was cut."""
    score: float
    """The log-probability; from a beam search, over the brevity penalty."""


class Predictor:
    """A model with a way of making answers. Making one is a collective, using it is not."""

    def __init__(
        self,
        config: T5Run,
        model: nn.Module,
        decoding: DecodingConfig | None = None,
        *,
        batch_size: int = 64,
        end_id: int = END_ID,
        is_prefix: bool | None = None,
        autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Raises InputError where the model is an encoder alone.

        Args:
            config: Bound.
            model: Plain, or under DDP. One that FSDP2 has sharded is copied whole to every rank, so that ranks need not
                make equally many forward passes; its later updates are not seen.
            decoding: How answers are made. Default: greedily.
            batch_size: Examples per forward pass.
            end_id: Of the end mark.
            is_prefix: Decoders alone: whether the tokens of inputs all see each other. Default: as the model was
                trained, by tasks or with a denoiser that makes inputs.
            autocast: As of `Precision`.
        """
        if config.model.kind == "encoder_only":
            raise InputError(
                "a model of kind encoder_only makes no answers\n  use an encoder_decoder or decoder_only model"
            )
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; it is a number of examples, at least 1")
        self.config, self.decoding = config, decoding or DecodingConfig()
        self.model, self._is_decoder = _whole(config, model), config.model.kind == "decoder_only"
        self.batch_size, self.end_id, self._autocast = batch_size, end_id, autocast
        has_inputs = config.data.task is not None or any(one.inputs is not None for one in config.data.denoising.all)
        self.is_prefix = has_inputs if is_prefix is None else is_prefix

    @property
    def max_length(self) -> int:
        """Most tokens of an answer."""
        return self.decoding.max_length or self.config.data.target_length

    def predict(self, examples: Sequence[Example]) -> list[NDArray[np.int32]]:
        """The answer to each example: int32 ids up to the end mark, which is included."""
        return [best.ids for best, *_ in self.answers(examples)]

    def predict_with_values(self, examples: Sequence[Example]) -> tuple[list[NDArray[np.int32]], dict[str, list[Any]]]:
        """As `predict`, with the log-probability of each answer as `scores` and of its tokens as `token_scores`."""
        found = self.predict(examples)
        tokens = self.token_scores([{**one, "targets": ids} for one, ids in zip(examples, found, strict=True)])
        values = {"scores": [float(one.sum()) for one in tokens], "token_scores": [one.tolist() for one in tokens]}
        return found, values

    def score(self, examples: Sequence[Example]) -> NDArray[np.float64]:
        """(B,) the log-probability of the targets of each example: the sum over their tokens."""
        return np.array([one.sum(dtype=np.float64) for one in self.token_scores(examples)], np.float64)

    def answers(self, examples: Sequence[Example], num: int = 1) -> list[list[Answer]]:
        """`num` answers to each example: the best of a beam search, best first, or as many draws. Fewer where a search
        finished some, but fewer than that. Raises InputError where the method gives fewer, or inputs have ids that the
        model does not know."""
        method = self.decoding.method
        if num > 1 and (method == "greedy" or (method == "beam" and num > self.decoding.num_beams)):
            raise InputError(
                f"{num} answers are asked for, and decoding "
                + ("greedily gives one" if method == "greedy" else f"with {self.decoding.num_beams} beams gives those")
                + "\n  use at least so many beams, or draw with a temperature"
            )
        self._check_ids(examples, "inputs")
        prompts = [np.asarray(one.get("inputs", ()), np.int64) for one in examples]
        found: list[list[Answer]] = [[] for _ in examples]
        for rows in self._batches([len(prompt) for prompt in prompts]):
            for draw in range(num if method == "sample" else 1):
                for row, made in zip(rows, self._decode([prompts[row] for row in rows], draw), strict=True):
                    found[row] += made[:num]
        return found

    @torch.no_grad()
    def token_scores(self, examples: Sequence[Example]) -> list[NDArray[np.float32]]:
        """The log-probability of each target token of each example. Raises InputError where there are ids that the
        model does not know."""
        for name in ("inputs", "targets"):
            self._check_ids(examples, name)
        found: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(examples)
        lengths = [len(one.get("inputs", ())) + len(one["targets"]) for one in examples]

        def is_full(part: list[int], row: int) -> bool:
            return sum(len(examples[one]["targets"]) for one in (*part, row)) > _SCORED_TOKENS

        for batch in self._batches(lengths):
            # An example without targets has no row of its own in the stream of predictions.
            for rows in _cut([row for row in batch if len(examples[row]["targets"])], is_full):
                scores = self._scores([examples[row] for row in rows])
                for row, own in zip(rows, scores, strict=True):
                    found[row] = own
        return found

    def _check_ids(self, examples: Sequence[Example], name: str) -> None:
        """Here, because on a GPU the first wrong one would end the process."""
        num_known = self.model.embedding.num_embeddings
        for number, example in enumerate(examples):
            ids = np.asarray(example.get(name, ()))
            if wrong := [one for one in (ids.min(initial=0), ids.max(initial=0)) if not 0 <= one < num_known]:
                raise InputError(
                    f"{name} of example {number} have the id {int(wrong[0])}, the model knows 0 to {num_known - 1}\n"
                    "  encode the text with the tokenizer of the model"
                )

    def _batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """Examples of similar length, the longest first. Prompts of a search are equally long: its rules look at the
        length of a whole row."""
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        needs_equal = self._is_decoder and self.decoding.method == "beam"

        def is_full(batch: list[int], row: int) -> bool:
            return len(batch) == self.batch_size or (needs_equal and lengths[row] != lengths[batch[0]])

        return _cut(order, is_full)

    def _decode(self, prompts: Sequence[NDArray[np.int64]], draw: int) -> list[list[Answer]]:
        decoding, device = self.decoding, self.model.embedding.weight.device
        # At least one slot wide, with zeros behind each prompt.
        ids_BP = pad_sequence([torch.tensor(prompt) for prompt in (*prompts, np.zeros(1, np.int64))], True)[:-1]
        ids_BP = ids_BP.to(device)
        # Where the answer begins in what a decoder says.
        starts = [len(prompt) if self._is_decoder else 0 for prompt in prompts]
        max_length = self.max_length + (ids_BP.shape[1] if self._is_decoder else 0)
        common: dict[str, Any] = {"max_length": max_length, "end_id": self.end_id}
        if self._is_decoder:
            common |= {"prompt_BP": ids_BP, "is_prefix": self.is_prefix}
        if decoding.method == "sample":
            common |= {"temperature": decoding.temperature, "top_k": decoding.top_k, "top_p": decoding.top_p}
            common["uniform_BL"] = self._draws(prompts, starts, draw, max_length).to(device)
        with self._autocast():
            inputs = None if self._is_decoder else ids_BP
            if decoding.method == "beam":
                made = beam_search(self.model, inputs, num_beams=decoding.num_beams, alpha=decoding.alpha, **common)
                made = Decoded(made.ids_BL.flip(1), made.scores_B.flip(1))
            else:
                made = sample(self.model, inputs, max_new=self.max_length, **common)
        ids_BNL = made.ids_BL.view(len(prompts), -1, max_length).cpu().numpy()
        scores_BN = made.scores_B.view(len(prompts), -1).tolist()
        return [
            [
                Answer(self._up_to_end(ids[start:]), score)
                for ids, score in zip(ids_NL, scores, strict=True)
                if score > IMPOSSIBLE / 2
            ]
            for ids_NL, scores, start in zip(ids_BNL, scores_BN, starts, strict=True)
        ]

    def _up_to_end(self, ids: NDArray[np.int64]) -> NDArray[np.int32]:
        ends = np.flatnonzero(ids == self.end_id)
        return ids[: min(ends[0] + 1 if len(ends) else len(ids), self.max_length)].astype(np.int32)

    def _draws(self, prompts: Sequence[NDArray[np.int64]], starts: Sequence[int], draw: int, length: int) -> Tensor:
        """float64 (B, L): of the answers' places, behind the prompts."""
        found = np.zeros((len(prompts), length))
        for row, (prompt, start) in enumerate(zip(prompts, starts, strict=True)):
            content = int.from_bytes(hashlib.blake2b(prompt.astype("<i8").tobytes(), digest_size=7).digest(), "little")
            key = fold_one(fold_one(stream_key(self.decoding.seed, "t5", "decoding"), content), draw)
            found[row, start:] = uniform(np.array(key, np.uint64), length - start)
        return torch.from_numpy(found)

    def _scores(self, examples: Sequence[Example]) -> list[NDArray[np.float32]]:
        """The log-probabilities of the target tokens of examples that have some."""
        arrays = self._laid_out(examples)
        batch = {name: torch.from_numpy(array).to(self.model.embedding.weight.device) for name, array in arrays.items()}
        with self._autocast(), evaluation_mode(self.model):
            # As with dropout: FlexAttention would be compiled for every batch, because their widths differ.
            layout = best_pairs(self.model.embedding.weight, self.model.config.head_size, has_dropout=True)
            inputs, targets = read_batch(batch, self.model.config.kind, layout=layout)
            nll_K = self.model(inputs, targets.token_K).loss.nll_K
        # In the order of the rows; a layout with padding has slots without a prediction.
        flat = -nll_K[targets.weight_K > 0].float().cpu().numpy()
        ends = np.cumsum([len(one["targets"]) for one in examples])
        return np.split(flat, ends[:-1])

    def _laid_out(self, examples: Sequence[Example]) -> features.Arrays:
        targets = ragged([one["targets"] for one in examples])
        if self._is_decoder and not any("inputs" in one for one in examples):
            return features.language_model(targets, int(targets.lengths.max()), packer=features.one_per_row)
        inputs = ragged([one.get("inputs", ()) for one in examples])
        if self.model.config.kind == "encoder_decoder":
            widths = int(inputs.lengths.max(initial=1)), int(targets.lengths.max())
            return features.encoder_decoder(inputs, targets, max(1, widths[0]), widths[1], packer=features.one_per_row)
        length = int((inputs.lengths + targets.lengths).max())
        batch = features.prefix_language_model(inputs, targets, length, packer=features.one_per_row)
        if not self.is_prefix:
            del batch["decoder_causal_attention"]
        return batch


def _whole(config: T5Run, model: nn.Module) -> T5:
    plain = unwrap(model)
    assert isinstance(plain, T5)
    if not is_sharded(plain):
        return plain
    device = plain.embedding.weight.device
    with torch.device("meta"):
        copy = T5(config.model)
    allocate(copy, str(device))
    copy.load_state_dict(full_state_dict(plain))
    return copy.eval()


def _cut(rows: Sequence[int], is_full: Callable[[list[int], int], bool]) -> list[list[int]]:
    """Return the rows in parts; a row begins a new part where the one before is full for it."""
    parts: list[list[int]] = []
    for row in rows:
        if not parts or is_full(parts[-1], row):
            parts.append([])
        parts[-1].append(row)
    return parts
