"""Prediction with a trained model: answers to inputs, and log-probabilities of given answers.

Examples are mappings with `inputs` and `targets`, sequences of ids; language models may lack the inputs. Results do not
depend on the batch size, the order or the number of the examples: draws are a function of the seed and the inputs. Only
the last digits of floating-point sums depend on the batch.

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

from pretrainkit.dist.devices import to_device
from pretrainkit.dist.parallelize import is_sharded, unwrap
from pretrainkit.dist.weights import full_state_dict
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
"""Maximum number of target tokens of a forward pass, which holds their probabilities over the whole vocabulary in
memory."""


class Answer(NamedTuple):
    ids: NDArray[np.int32]
    """Ids up to the end mark, which is the last id unless the answer was cut."""
    score: float
    """Log-probability; with beam search divided by the brevity penalty."""


class Predictor:
    """A model with a decoding method. Creating a predictor is a collective operation, using it is not."""

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
        """Raise InputError if the model is an encoder-only model.

        Args:
            config: A bound config.
            model: Plain, or under DDP. A model sharded by FSDP2 is copied whole to every rank, so that ranks may make
                different numbers of forward passes; the copy does not get later updates.
            decoding: Decoding method. Default: greedy.
            batch_size: Number of examples per forward pass.
            end_id: Id of the end mark.
            is_prefix: True if all input tokens of a decoder-only model attend to each other. Default: as the model was
                trained, by tasks or with a denoiser that makes inputs.
            autocast: The context manager of `Precision`.
        """
        if config.model.kind == "encoder_only":
            raise InputError(
                "a model of kind encoder_only cannot answer\n  use an encoder_decoder or decoder_only model"
            )
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; it must be at least 1")
        self.config, self.decoding = config, decoding or DecodingConfig()
        self.model, self._is_decoder = _whole(config, model), config.model.kind == "decoder_only"
        self.batch_size, self.end_id, self._autocast = batch_size, end_id, autocast
        has_inputs = config.data.task is not None or any(part.inputs is not None for part in config.data.denoising.all)
        self.is_prefix = has_inputs if is_prefix is None else is_prefix

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of an answer."""
        return self.decoding.max_length or self.config.data.target_length

    def predict(self, examples: Sequence[Example]) -> list[NDArray[np.int32]]:
        """Return the answer to each example: int32 ids up to and including the end mark."""
        return [best.ids for best, *_ in self.answers(examples)]

    def predict_with_values(self, examples: Sequence[Example]) -> tuple[list[NDArray[np.int32]], dict[str, list[Any]]]:
        """Return the result of `predict`, and log-probabilities: `scores` of answers, `token_scores` of their
        tokens."""
        answers = self.predict(examples)
        scored = self.token_scores(
            [{**example, "targets": ids} for example, ids in zip(examples, answers, strict=True)]
        )
        values = {"scores": [float(row.sum()) for row in scored], "token_scores": [row.tolist() for row in scored]}
        return answers, values

    def score(self, examples: Sequence[Example]) -> NDArray[np.float64]:
        """Return (B,) the log-probability of each example's targets: the sum over their tokens."""
        return np.array([row.sum(dtype=np.float64) for row in self.token_scores(examples)], np.float64)

    def answers(self, examples: Sequence[Example], num: int = 1) -> list[list[Answer]]:
        """Return `num` answers to each example: the best of a beam search, best first, or independent draws.

        A search may finish fewer. Raises InputError if the method cannot return `num`, or ids exceed the vocabulary."""
        method = self.decoding.method
        if num > 1 and (method == "greedy" or (method == "beam" and num > self.decoding.num_beams)):
            most = "greedy decoding returns one"
            if method == "beam":
                most = f"the search returns at most {self.decoding.num_beams} beams"
            raise InputError(
                f"{num} answers were requested, but {most}\n  use at least as many beams, or draw with a temperature"
            )
        self._check_ids(examples, "inputs")
        prompts = [np.asarray(example.get("inputs", ()), np.int64) for example in examples]
        answers: list[list[Answer]] = [[] for _ in examples]
        for rows in self._batches([len(prompt) for prompt in prompts]):
            for draw in range(num if method == "sample" else 1):
                for row, decoded in zip(rows, self._decode([prompts[row] for row in rows], draw), strict=True):
                    answers[row] += decoded[:num]
        return answers

    @torch.no_grad()
    def token_scores(self, examples: Sequence[Example]) -> list[NDArray[np.float32]]:
        """Return the log-probability of each target token of each example. Raises InputError if ids exceed the
        vocabulary."""
        for name in ("inputs", "targets"):
            self._check_ids(examples, name)
        scores: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(examples)
        lengths = [len(example.get("inputs", ())) + len(example["targets"]) for example in examples]

        def is_full(part: list[int], row: int) -> bool:
            return sum(len(examples[index]["targets"]) for index in (*part, row)) > _SCORED_TOKENS

        for batch in self._batches(lengths):
            # An example without targets has no row in the stream of predictions.
            for rows in _cut([row for row in batch if len(examples[row]["targets"])], is_full):
                for row, own in zip(rows, self._scores([examples[row] for row in rows]), strict=True):
                    scores[row] = own
        return scores

    def _check_ids(self, examples: Sequence[Example], name: str) -> None:
        """Check ids before the forward pass, because on a GPU a wrong id would end the process."""
        vocab_size = self.model.embedding.num_embeddings
        for number, example in enumerate(examples):
            ids = np.asarray(example.get(name, ()))
            if wrong := [index for index in (ids.min(initial=0), ids.max(initial=0)) if not 0 <= index < vocab_size]:
                raise InputError(
                    f"{name} of example {number} have the id {int(wrong[0])}, the model has 0 to {vocab_size - 1}\n"
                    "  encode the text with the tokenizer of the model"
                )

    def _batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return batches of examples of similar length, the longest first. Prompts of a search have equal lengths,
        because its stopping rules use the length of a whole row."""
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        needs_equal = self._is_decoder and self.decoding.method == "beam"

        def is_full(batch: list[int], row: int) -> bool:
            return len(batch) == self.batch_size or (needs_equal and lengths[row] != lengths[batch[0]])

        return _cut(order, is_full)

    def _decode(self, prompts: Sequence[NDArray[np.int64]], draw: int) -> list[list[Answer]]:
        decoding, device = self.decoding, self.model.embedding.weight.device
        # At least one slot wide, with zeros after each prompt.
        ids_BP = pad_sequence([torch.tensor(prompt) for prompt in (*prompts, np.zeros(1, np.int64))], True)[:-1]
        ids_BP = ids_BP.to(device)
        # The start of the answer in the output of a decoder.
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
                decoded = beam_search(self.model, inputs, num_beams=decoding.num_beams, alpha=decoding.alpha, **common)
                decoded = Decoded(decoded.ids_BL.flip(1), decoded.scores_B.flip(1))
            else:
                decoded = sample(self.model, inputs, max_new=self.max_length, **common)
        ids_BNL = decoded.ids_BL.view(len(prompts), -1, max_length).cpu().numpy()
        scores_BN = decoded.scores_B.view(len(prompts), -1).tolist()
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
        """Return float64 (B, L) draws for the positions of the answers, after the prompts."""
        draws = np.zeros((len(prompts), length))
        for row, (prompt, start) in enumerate(zip(prompts, starts, strict=True)):
            content = int.from_bytes(hashlib.blake2b(prompt.astype("<i8").tobytes(), digest_size=7).digest(), "little")
            key = fold_one(fold_one(stream_key(self.decoding.seed, "t5", "decoding"), content), draw)
            draws[row, start:] = uniform(np.array(key, np.uint64), length - start)
        return torch.from_numpy(draws)

    def _scores(self, examples: Sequence[Example]) -> list[NDArray[np.float32]]:
        """Return the log-probabilities of the target tokens of examples that have targets."""
        arrays = self._laid_out(examples)
        batch = {name: torch.from_numpy(array).to(self.model.embedding.weight.device) for name, array in arrays.items()}
        with self._autocast(), evaluation_mode(self.model):
            # Pretend to have dropout, to avoid FlexAttention, which would be compiled for every width of a batch.
            layout = best_pairs(self.model.embedding.weight, self.model.config.head_size, has_dropout=True)
            inputs, targets = read_batch(batch, self.model.config.kind, layout=layout)
            nll_K = self.model(inputs, targets.token_K).loss.nll_K
        # Predictions are in the order of the rows. A layout with padding also has slots without a prediction.
        flat = -nll_K[targets.weight_K > 0].float().cpu().numpy()
        ends = np.cumsum([len(example["targets"]) for example in examples])
        return np.split(flat, ends[:-1])

    def _laid_out(self, examples: Sequence[Example]) -> features.Arrays:
        targets = ragged([example["targets"] for example in examples])
        if self._is_decoder and not any("inputs" in example for example in examples):
            return features.language_model(targets, int(targets.lengths.max()), packer=features.one_per_row)
        inputs = ragged([example.get("inputs", ()) for example in examples])
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
    to_device(copy, device)
    copy.load_state_dict(full_state_dict(plain))
    return copy.eval()


def _cut(rows: Sequence[int], is_full: Callable[[list[int], int], bool]) -> list[list[int]]:
    """Return the rows in parts; a row begins a new part if the previous part is full for it."""
    parts: list[list[int]] = []
    for row in rows:
        if not parts or is_full(parts[-1], row):
            parts.append([])
        parts[-1].append(row)
    return parts
