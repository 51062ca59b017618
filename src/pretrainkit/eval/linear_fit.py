"""A linear layer fitted to the end on features that do not change.

Dimensions: N examples, D features, C classes (1 for numbers).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_SMALLEST_DEVIATION = 1e-6
_MOST_ITERATIONS = 300


def fit_linear(x_ND: Tensor, label_N: Tensor, num_classes: int, l2: float) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression, or ridge regression where the labels are numbers. Draws nothing.

    Args:
        x_ND: Features, on any device; computed with on the CPU in float64.
        label_N: int64 numbers of classes, or floating-point numbers.
        l2: Half of it times the squared weights (not biases) of standardised features is added to the mean loss, which
            for numbers is half of the squared error.

    Returns:
        (C, D) weights and (C,) biases for the features as they were given, float32 on the CPU.
    """
    x_ND, label_N = x_ND.detach().cpu().double(), label_N.cpu()
    mean_D, deviation_D = x_ND.mean(0), x_ND.std(0, correction=0).clamp(min=_SMALLEST_DEVIATION)
    x_ND = (x_ND - mean_D) / deviation_D
    if label_N.is_floating_point():
        weight_CD, bias_C = _ridge(x_ND, label_N.double(), l2)
    else:
        weight_CD, bias_C = _logistic(x_ND, label_N, num_classes, l2)
    weight_CD = weight_CD / deviation_D
    return weight_CD.float(), (bias_C - weight_CD @ mean_D).float()


def _ridge(x_ND: Tensor, label_N: Tensor, l2: float) -> tuple[Tensor, Tensor]:
    mean = label_N.mean()
    gram_DD = x_ND.T @ x_ND / len(x_ND) + l2 * torch.eye(x_ND.shape[1], dtype=x_ND.dtype)
    weight_D = torch.linalg.solve(gram_DD, x_ND.T @ (label_N - mean) / len(x_ND))
    return weight_D[None], mean[None]


def _logistic(x_ND: Tensor, label_N: Tensor, num_classes: int, l2: float) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        weight_CD = torch.zeros(num_classes, x_ND.shape[1], dtype=x_ND.dtype, requires_grad=True)
        bias_C = torch.zeros(num_classes, dtype=x_ND.dtype, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight_CD, bias_C], max_iter=_MOST_ITERATIONS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            found = F.cross_entropy(F.linear(x_ND, weight_CD, bias_C), label_N) + l2 / 2 * weight_CD.square().sum()
            found.backward()
            return found

        optimizer.step(loss)
    return weight_CD.detach(), bias_C.detach()
