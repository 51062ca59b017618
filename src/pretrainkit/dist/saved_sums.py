"""Tensors that compiled blocks keep for the backward pass. Importing this module loads torch's compiler, which takes
seconds."""

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

_HALF = (torch.bfloat16, torch.float16)
_STATISTICS = (torch.ops.aten.var_mean.correction, torch.ops.aten.mean.dim)
_BEFORE_STATISTICS = (
    torch.ops.prims.convert_element_type.default,
    torch.ops.aten.pow.Tensor_Scalar,
    torch.ops.aten.view.default,
)


class SaveResidualSums(CustomGraphPass):
    """Keep the input of each norm for the backward pass if it is a sum in half precision, such as a residual sum.

    Otherwise torch keeps its summands. Each kernel that needs the sum then reads two tensors or more and adds them
    again. This took 7 to 11 % of the memory traffic outside products and attention in BERT, T5, PIXEL and 4M on paper
    (docs/gpu.md), and the sum is no larger than the summand that it replaces.
    """

    def __call__(self, graph: Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor):
            # Activation checkpointing has decided already.
            if node.meta["val"].dtype in _HALF and "recompute" not in node.meta and _enters_norm(node):
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE

    def uuid(self) -> Any:
        """Return what distinguishes the code made with this pass in torch's caches."""
        return get_hash_for_files((__file__,))


def _enters_norm(node: Node) -> bool:
    """True if a mean or variance is taken of the node's value, or of its squares."""
    return any(
        user.target in _STATISTICS or (user.target in _BEFORE_STATISTICS and _enters_norm(user)) for user in node.users
    )
