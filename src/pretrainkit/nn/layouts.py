"""Which layout of attention a device has: for its streams of tokens."""

from torch import Tensor

from pretrainkit.nn.attention import AttentionLayout
from pretrainkit.nn.cpu.attention import TiledLayout
from pretrainkit.nn.cuda.attention import VarlenLayout


def stream_layout(starts: Tensor, max_length: int, num_tokens: int) -> AttentionLayout:
    """The layout of examples that lie one after another, with maybe unused tokens behind the last.

    Args:
        starts: int32 (B + 1,), where each begins and the last one ends.
        max_length: No example has more tokens.
        num_tokens: Of the stream.
    """
    if starts.device.type != "cpu":
        return VarlenLayout(starts, max_length, num_tokens)
    lengths = starts.diff().tolist()
    unused = num_tokens - sum(lengths)
    return TiledLayout((*lengths, *([unused] if unused else [])))
