"""Contrastive objective: match each image of a batch with its caption.

Dimensions: b pairs of a microbatch or rank, B of the whole batch, D embedding width.
"""

from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.dist.parallelize import gather_root_weights, unwrap
from pretrainkit.recipes.clip.config import ClipRun
from pretrainkit.recipes.clip.flops import PairFlops
from pretrainkit.recipes.clip.losses import Matches, SigmoidScore, SoftmaxScore, score_rows
from pretrainkit.recipes.clip.model import DualEncoder
from pretrainkit.recipes.clip.pairs import REASONS
from pretrainkit.training.objective import Batch, BlockwiseObjective, Cost, Embedded, HostBatch, LossSum

_INPUTS = ("image", "image_features", "input_ids", "num_tokens", "text_features")
"""Fields of a batch that the model reads."""
_GROUPS = ("image_group", "caption_group")
_BAD_ROWS = tuple(f"bad_{reason.replace(' ', '_')}" for reason in REASONS[1:])


class ClipObjective(BlockwiseObjective):
    """The loss is `contrastive_loss`; the other terms are for the log.

    `i2t_accuracy` and `t2i_accuracy` are the shares of images (texts) whose most similar text (image) in the batch is
    their own. With mixup, the one with the larger share of their target counts as their own, and `hard_loss` is the
    loss with each pair as its only target, which ZeroVL prints.
    """

    def __init__(self, config: ClipRun) -> None:
        self._settings = config.objective
        self._flops = PairFlops(config)

    @property
    def scales(self) -> dict[str, float]:
        hard = {"hard_loss": 0.0} if self._settings.mixup is not None else {}
        return {"contrastive_loss": 1.0, **hard, "i2t_accuracy": 0.0, "t2i_accuracy": 0.0, "temperature": 0.0}

    def embed(self, model: nn.Module, batch: Batch) -> Embedded:
        mixup = batch.get("mixup")
        shares: dict[str, Tensor] = {}
        if mixup is not None:
            share, is_image = mixup[0], mixup[1] > 0.5
            whole = torch.ones_like(share)
            shares = {
                "image_share": torch.where(is_image, share, whole),
                "text_share": torch.where(is_image, whole, share),
            }
        vectors = model(**{name: batch[name] for name in _INPUTS if name in batch}, **shares)
        return Embedded({"image": vectors["image"], "text": vectors["text"]}, self._labels(batch))

    def _labels(self, batch: Batch) -> dict[str, Tensor]:
        num_pairs, device = len(batch["num_tokens"]), batch["num_tokens"].device
        labels = {}
        if self._settings.duplicates != "negatives":
            labels = {name: batch[name] for name in _GROUPS}
        if (mixup := batch.get("mixup")) is not None:
            # Pair i of the microbatch is mixed with pair num_pairs - 1 - i.
            labels["partner_offset"] = num_pairs - 1 - 2 * torch.arange(num_pairs, device=device)
            labels["share"] = mixup[:1].expand(num_pairs)
        return labels

    def loss_from(
        self, model: nn.Module, vectors: dict[str, Tensor], labels: dict[str, Tensor], rows: slice
    ) -> dict[str, LossSum]:
        settings = self._settings
        plain = cast(DualEncoder, unwrap(model))
        image_BD, text_BD = vectors["image"], vectors["text"]
        scale = plain.logit_scale().to(image_BD)
        matches = self._matches(labels, rows, len(image_BD))
        columns = slice(matches.first_column, matches.first_column + matches.num_columns)
        score = partial(
            score_rows,
            scale=scale,
            score_products=plain.score_products,
            first_row=rows.start,
            megabytes=settings.logits_megabytes,
        )
        if settings.loss == "siglip":
            assert plain.logit_bias is not None
            sigmoid, bias = SigmoidScore(matches), plain.logit_bias[0].to(image_BD)
            i2t = score(image_BD[rows], text_BD[columns], bias=bias, score=sigmoid)
            with torch.no_grad():  # the same logits again, only for the accuracy
                t2i = score(text_BD[rows], image_BD[columns], bias=bias, score=sigmoid)
            loss = i2t.loss
        else:
            softmax = SoftmaxScore(matches, settings.label_smoothing)
            image_MD, text_MD = image_BD[columns], text_BD[columns]
            if not settings.gather_gradient:
                image_MD, text_MD = image_MD.detach(), text_MD.detach()
            i2t = score(image_BD[rows], text_MD, bias=None, score=softmax)
            t2i = score(text_BD[rows], image_MD, bias=None, score=softmax)
            loss = (i2t.loss + t2i.loss) / 2
        unit = torch.ones_like(scale).detach()
        num_pairs = unit * (rows.stop - rows.start)
        terms = {
            "contrastive_loss": LossSum(loss, num_pairs),
            "i2t_accuracy": LossSum(i2t.num_right, num_pairs),
            "t2i_accuracy": LossSum(t2i.num_right, num_pairs),
            "temperature": LossSum((1 / scale).detach(), unit),
        }
        if settings.mixup is not None:
            hard_loss = (i2t.hard_loss + t2i.hard_loss) / 2 if "share" in labels else loss.detach()
            terms["hard_loss"] = LossSum(hard_loss, num_pairs)
        return terms

    def exchanged(self, world_size: int) -> tuple[str, str] | None:
        """Return the names of the embeddings to exchange between ranks; None if they are not exchanged. Only the
        sigmoid loss with duplicates as negatives supports it. To treat duplicates in another way, ranks would also have
        to exchange the groups of equal images and captions."""
        settings = self._settings
        is_plain = settings.loss == "siglip" and settings.duplicates == "negatives"
        return ("image", "text") if is_plain and settings.gather and settings.gather_group_size is None else None

    def block_loss(
        self, model: nn.Module, rows_bD: Tensor, columns_bD: Tensor, first_row: int, first_column: int
    ) -> Tensor:
        plain = cast(DualEncoder, unwrap(model))
        assert plain.logit_bias is not None
        matches = Matches(first_column=first_column, num_columns=len(columns_bD))
        return score_rows(
            rows_bD,
            columns_bD,
            plain.logit_scale().to(rows_bD),
            plain.logit_bias[0].to(rows_bD),
            SigmoidScore(matches, has_targets=first_row == first_column),
            score_products=plain.score_products,
            first_row=first_row,
            megabytes=self._settings.logits_megabytes,
        ).loss

    def block_terms(
        self, model: nn.Module, loss: Tensor, nearest_column_b: Tensor, nearest_row_b: Tensor, first_row: int
    ) -> dict[str, LossSum]:
        scale = cast(DualEncoder, unwrap(model)).logit_scale().detach().to(loss)
        unit, pair_b = torch.ones_like(scale), torch.arange(len(nearest_row_b), device=loss.device) + first_row
        num_pairs = unit * len(pair_b)
        return {
            "contrastive_loss": LossSum(loss, num_pairs),
            "i2t_accuracy": LossSum((nearest_column_b == pair_b).sum().to(loss), num_pairs),
            "t2i_accuracy": LossSum((nearest_row_b == pair_b).sum().to(loss), num_pairs),
            "temperature": LossSum(1 / scale, unit),
        }

    def _matches(self, labels: dict[str, Tensor], rows: slice, num_pairs: int) -> Matches:
        settings = self._settings
        first, stop = 0, num_pairs
        num_rows = rows.stop - rows.start
        num_ranks_together = 1 if not settings.gather else settings.gather_group_size
        # All ranks have the same number of consecutive rows, so a group of ranks is a block of the batch.
        if num_ranks_together is not None and num_rows:
            num_together = num_rows * num_ranks_together
            first = rows.start // num_together * num_together
            stop = min(first + num_together, num_pairs)
        partner_B = None
        if "share" in labels:
            offset_B = labels["partner_offset"]
            partner_B = torch.arange(num_pairs, device=offset_B.device) + offset_B
        return Matches(
            first_column=first,
            num_columns=stop - first,
            duplicates=settings.duplicates,
            groups_B=tuple(labels[name] for name in _GROUPS) if settings.duplicates != "negatives" else (),
            partner_B=partner_B,
            share=labels["share"][0] if partner_B is not None and num_pairs else None,
        )

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """Return the terms for a single batch. They do not measure retrieval, which is harder with more pairs."""
        vectors, labels = self.embed(model, batch)
        gather_root_weights(model)
        return self.loss_from(model, vectors, labels, slice(0, len(vectors["image"])))

    def after_update(self, model: nn.Module) -> None:
        cast(DualEncoder, unwrap(model)).project_temperature()

    def cost(self, batch: HostBatch) -> Cost:
        """Return the number of pairs, the tokens and slots of captions (not patches), the FLOPs, and the number of
        replaced rows by reason."""
        num_tokens_b = np.asarray(batch["num_tokens"], np.int64)
        num_by_reason = np.bincount(batch["bad"], minlength=len(_BAD_ROWS) + 1) if "bad" in batch else None
        return Cost(
            examples=len(num_tokens_b),
            tokens=int(num_tokens_b.sum()),
            slots=int(batch["input_ids"].size) if "input_ids" in batch else int(num_tokens_b.sum()),
            flops=self._flops(
                batch["image"].shape[2:] if "image" in batch else None, num_tokens_b, has_captions="input_ids" in batch
            ),
            notes={} if num_by_reason is None else dict(zip(_BAD_ROWS, num_by_reason[1:].tolist(), strict=True)),
        )
