"""Whether several token shards may be used together."""

from collections.abc import Sequence

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.tokenizers.shards import TokenShards


def refuse_different_tokenizers(shards: Sequence[TokenShards]) -> None:
    """Raises DataError where token shards were made with different tokenizers."""
    first = shards[0]
    for other in shards[1:]:
        if other.manifest["tokenizer"] != first.manifest["tokenizer"]:
            names = [
                f"{one.manifest['tokenizer']['fingerprint'][:12]} with {one.vocab_size} pieces"
                for one in (first, other)
            ]
            raise DataError(
                f"{first.folder} and {other.folder} were made with different tokenizers ({names[0]}; {names[1]})\n"
                "  encode both with the same one: pretrainkit tokenizer encode"
            )


def refuse_shared_documents(train: Sequence[TokenShards], valid: Sequence[TokenShards]) -> None:
    """Raises DataError where a held-out document is also in the training data.

    Held-out data is the smaller: only its hashes are kept.
    """
    for held_out in valid:
        hashes = np.unique(np.concatenate([held_out.document_hashes(shard) for shard in range(held_out.num_shards)]))
        for shards in train if len(hashes) else ():
            is_shared = np.zeros(len(hashes), np.bool_)
            for shard in range(shards.num_shards):
                trained = shards.document_hashes(shard)
                nearest = np.minimum(np.searchsorted(hashes, trained), len(hashes) - 1)
                is_shared[nearest[hashes[nearest] == trained]] = True
            if is_shared.any():
                raise DataError(
                    f"{is_shared.sum()} of the {len(hashes)} different documents of data.valid={held_out.folder} are "
                    f"also in data.train={shards.folder}: a loss on them would say nothing\n"
                    "  hold documents out when the corpus is made, which keeps copies of a text on one side: "
                    "pretrainkit corpus shards --heldout 0.01"
                )
