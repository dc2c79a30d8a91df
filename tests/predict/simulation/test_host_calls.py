"""The views and nodes that a prediction of time counts are those that PyTorch has for each line of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad, scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.linear_epilogues import fused_linear, gelu_feed_forward
from reference_runs.run import Activation
from suite.execute.model.attention import _by_group, _by_head
from suite.execute.model.loss import ChunkedCrossEntropy, CrossEntropy
from suite.execute.model.position import rotated, rotation, score_bias
from suite.execute.model.torch_operations import ACTIVATIONS
from suite.predict.simulation import host_calls
from suite.predict.simulation.host_calls import HostCalls
from tests.support.step_machine import MINIS

B, T, H, K, D, V = 2, 6, 2, 4, 8, 20
VIEWS = frozenset(
    {"view", "t", "permute", "unbind", "transpose", "expand", "_unsafe_view", "detach", "slice", "split"}
    | {"split_with_sizes", "unsqueeze"}
)
COPIES = "Clone"  # timed as "permuted": its node is counted nowhere


class Dispatched(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(operator._opname)
        return operator(*args, **(kwargs or {}))


def tensor(*shape: int) -> Tensor:
    """A result of an operator, whose gradient is needed."""
    return torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True) * 1


def heads() -> Tensor:
    return tensor(B, T, H, K).transpose(1, 2)


def graph(out: Tensor | tuple[Tensor, ...], inputs: list[Tensor]) -> list[str]:
    """The nodes between `out` and `inputs`."""
    seen: list[Any] = []
    waiting: list[Any] = [result.grad_fn for result in ([out] if isinstance(out, Tensor) else out)]
    ends = [x.grad_fn for x in inputs]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in ends and node not in seen:
            seen.append(node)
            waiting += [following for following, _ in node.next_functions]
    return [node.name().rpartition("::")[2].removesuffix("0").removesuffix("Backward") for node in seen]


def seen(function: Callable[..., Any], *inputs: Tensor) -> tuple[Counter[str], Counter[str]]:
    """Views and nodes of a line; leaves' own nodes are counted where gradients are."""
    with Dispatched() as dispatched:
        out = function(*inputs)
    views = Counter(name for name in dispatched.names if name in VIEWS)
    nodes = Counter(graph(out, list(inputs)))
    del nodes["AccumulateGrad"], nodes[COPIES]
    return views, nodes


def scores(q: Tensor, k: Tensor) -> Tensor:
    return torch.matmul(q, k.transpose(-1, -2))


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x.float() / 2.0 + 1.0, dim=-1).to(x.dtype)


def merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def grouped(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys, values = _by_group(x, 3, K)
    return queries, keys.flatten(1, 2), values.flatten(1, 2)


def by_head(x: Tensor) -> Tensor:
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def state(x: Tensor) -> tuple[Tensor, Tensor]:
    compressed, shared = x.split((5, 3), dim=-1)
    return compressed, shared.unsqueeze(1)


LINEAR = nn.Linear(D, 3 * D, dtype=torch.bfloat16)
BACK = nn.Linear(3 * D, D, dtype=torch.bfloat16)
RMS = nn.RMSNorm(D)
NORM = nn.LayerNorm(D, dtype=torch.bfloat16)


def of_epilogue(x: Tensor) -> Tensor:
    return fused_linear(x, LINEAR.weight, LINEAR.bias, fused=True, tuned=False)


def of_gelu(x: Tensor) -> Tensor:
    return gelu_feed_forward(x, (LINEAR.weight, LINEAR.bias), (BACK.weight, BACK.bias), tuned=False)


FEED_FORWARD = HostCalls(
    views=(*host_calls.BEFORE_GELU.views, *host_calls.AFTER_GELU.views),
    nodes=(*host_calls.BEFORE_GELU.nodes, *host_calls.AFTER_GELU.nodes),
)


LINES: dict[str, tuple[HostCalls, Callable[..., Any], Callable[[], list[Tensor]]]] = {
    "linear": (host_calls.LINEAR, LINEAR, lambda: [tensor(B, T, D)]),
    "linear by cuBLASLt": (host_calls.EPILOGUE_LINEAR, of_epilogue, lambda: [tensor(B, T, D)]),
    "feed-forward part by cuBLASLt": (FEED_FORWARD, of_gelu, lambda: [tensor(B, T, D)]),
    "split projection": (host_calls.SPLIT_PROJECTION, lambda x: _by_head(x, 3, K), lambda: [tensor(B, T, 3 * H * K)]),
    "split groups": (host_calls.SPLIT_GROUPS, grouped, lambda: [tensor(B, T, 5 * H * K)]),
    "heads": (host_calls.HEADS, by_head, lambda: [tensor(B, T, H * K)]),
    "split heads": (host_calls.SPLIT_HEADS, lambda x: by_head(x).split((3, 5), dim=-1), lambda: [tensor(B, T, 8 * H)]),
    "split state": (host_calls.SPLIT_STATE, state, lambda: [tensor(B, T, D)]),
    "shared key": (
        host_calls.SHARED_KEY,
        lambda x, y: torch.cat([x.expand(-1, H, -1, -1), y], dim=-1),
        lambda: [tensor(B, 1, T, K), heads()],
    ),
    "padded heads": (host_calls.PADDED_HEADS, lambda x: pad(x, (0, 3)), lambda: [tensor(B, H, T, K)]),
    "RMS norm": (host_calls.RMS_NORM, RMS, lambda: [torch.randn(B, T, D, requires_grad=True) * 1]),
    "context": (host_calls.CONTEXT, lambda w, v: merged(w @ v), lambda: [tensor(B, H, T, T), heads()]),
    "norm": (host_calls.NORM, NORM, lambda: [tensor(B, T, D)]),
    "fast GELU": (host_calls.FAST_GELU, ACTIVATIONS[Activation.FAST_GELU], lambda: [tensor(B, T, D)]),
}


def test_the_view_of_a_softmaxs_output_is_counted_with_the_scores() -> None:
    views, nodes = seen(scores, heads(), heads())
    of_softmax, softmax_nodes = seen(softmax, tensor(B, H, T, T))
    assert Counter(host_calls.SCORES.views) == views + of_softmax
    assert Counter(host_calls.SCORES.nodes) == nodes
    assert Counter(host_calls.SOFTMAX_OF_HALF.nodes) == softmax_nodes
    assert softmax_nodes - Counter(host_calls.SOFTMAX.nodes) == {"ToCopy": 2}


def test_a_fused_attentions_kept_output_is_in_its_timing() -> None:
    views, nodes = seen(
        lambda q, k, v: merged(scaled_dot_product_attention(q, k, v, is_causal=True)), heads(), heads(), heads()
    )
    assert views - Counter(host_calls.FUSED_ATTENTION.views) == {"detach": 1}
    assert Counter(host_calls.FUSED_ATTENTION.nodes) == nodes


def test_views_and_nodes_of_a_line_are_those_of_pytorch() -> None:
    counted, dispatched = {}, {}
    for line, (calls, function, inputs) in LINES.items():
        views, nodes = seen(function, *inputs())
        if not calls.views:  # in the timing of the operator itself
            views.clear()
        counted[line], dispatched[line] = (Counter(calls.views), Counter(calls.nodes)), (views, nodes)
    assert counted == dispatched

    def gated(x: Tensor) -> Tensor:
        gate, neighbour = x.unflatten(-1, (-1, 2)).unbind(-1)
        return gelu(gate) * neighbour

    assert Counter(host_calls.GATED.nodes) == seen(gated, tensor(B, T, 2 * D))[1]  # its views are in its timing


def test_losses_have_the_nodes_and_the_small_operators_of_pytorch() -> None:
    head = nn.Linear(D, V, bias=False, dtype=torch.bfloat16)
    targets = torch.zeros(B, T, dtype=torch.long)
    views, nodes = seen(lambda x: CrossEntropy()(nn.Identity(), x, targets, 1.0), tensor(B, T, V))
    assert (Counter(host_calls.LOSS.views), Counter(host_calls.LOSS.nodes)) == (views, nodes)
    names = []
    for chunks in (1, 2):
        with Dispatched() as dispatched:
            out = ChunkedCrossEntropy(chunks)(head, x := tensor(B, T, D), targets, 1.0)
        names.append(Counter(dispatched.names))
    assert Counter(host_calls.CHUNKED_LOSS.nodes) == Counter(graph(out, [x]))
    a_chunk = names[1] - names[0]
    assert Counter(host_calls.LOSS_CHUNK) - a_chunk == Counter()


def test_a_rotation_is_assumed_to_take_two_views_and_three_nodes_more() -> None:
    views, nodes = seen(lambda x: rotated(x, torch.ones(2, T, 2)), heads())
    assert Counter(host_calls.ROTATION.views) == views + Counter(assumed=2)
    assert Counter(host_calls.ROTATION.nodes) == nodes + Counter(assumed=3)


def test_masks_and_angles_take_the_passes_and_small_operators_of_pytorch() -> None:
    bloom, neox = MINIS["bloom-mini"].architecture, MINIS["gpt-neox-mini"].architecture
    with Dispatched() as mask:
        score_bias(bloom, heads=slice(0, bloom.heads), length=T, device=torch.device("cpu"))
    assert Counter(mask.names) == Counter([*host_calls.MASK, *host_calls.MASK_PASSES])
    positions = torch.arange(T)
    with Dispatched() as angles:
        rotation(neox, positions)
    assert Counter(angles.names) == Counter([*host_calls.ANGLES, *host_calls.ANGLES_PASSES])
