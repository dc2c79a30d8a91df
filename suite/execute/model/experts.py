"""A mixture of experts: a router chooses feed-forward parts for each token, which compute its tokens expert by expert.

Shape letters besides the model's: N tokens of a micro-batch, E experts, C of them a token, R = N C rows that experts
compute, in the order of the experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import grouped_mm, linear

from reference_runs.run import Architecture, Balancing, Gate
from suite.execute.model.expert_capacity import Places, collected, placed
from suite.execute.model.row_order import Copied, Returned
from suite.execute.model.sequence_balance import balanced_by_sequence
from suite.execute.model.torch_operations import Operations

ALIGNED_BYTES = 16  # rows of what CUDA's grouped product reads begin at multiples of it


class RouterStatistics:
    """Counts of a router since `clear`: filled by backward passes, so that recomputation counts nothing twice.

    Attributes:
        upstream: the gradient that the loss will get, and with it the auxiliary loss.
        averaged: over the ranks that have the other positions of the sequences; None where this one has whole ones.
    """

    averaged: Callable[[Tensor], Tensor] | None

    def __init__(self) -> None:
        self.upstream = 1.0
        self.averaged = None
        self.clear()

    def clear(self) -> None:
        self._loads: Tensor | None = None
        self._dropped: Tensor | None = None
        self._auxiliary: Tensor | None = None
        self._of_sequences: Tensor | None = None
        self._micro_batches = 0

    @property
    def rows(self) -> Tensor:
        """Rows that came to each expert, dropped ones too, [E], int32, after a backward pass."""
        assert self._loads is not None
        return self._loads

    def add(self, loads_E: Tensor, auxiliary: Tensor, places: int | None = None) -> None:
        """The rows that come to each expert in one micro-batch, and its auxiliary loss, unweighted.

        Args:
            places: that each expert has; None: as many as come.
        """
        over_E = torch.zeros_like(loads_E) if places is None else (loads_E - places).clamp(min=0)
        self._loads = loads_E if self._loads is None else self._loads + loads_E
        self._dropped = over_E if self._dropped is None else self._dropped + over_E
        self._auxiliary = auxiliary if self._auxiliary is None else self._auxiliary + auxiliary
        self._micro_batches += 1

    def add_sequence_loss(self, loss: Tensor) -> None:
        """The sequence-wise loss of one micro-batch, unweighted."""
        self._of_sequences = loss if self._of_sequences is None else self._of_sequences + loss

    @property
    def loads(self) -> list[int]:
        """Rows that each expert computed; none before the first backward pass."""
        if self._loads is None or self._dropped is None:
            return []
        return [int(load) for load in (self._loads - self._dropped).tolist()]

    @property
    def dropped(self) -> int:
        """Rows that no expert computed."""
        return 0 if self._dropped is None else int(self._dropped.sum())

    @property
    def auxiliary_loss(self) -> float:
        """Mean over micro-batches of E sum_i f_i P_i."""
        return 0.0 if self._auxiliary is None else float(self._auxiliary) / self._micro_batches

    @property
    def sequence_loss(self) -> float | None:
        """Mean over micro-batches of the sequence-wise loss; None without one."""
        return None if self._of_sequences is None else float(self._of_sequences) / self._micro_batches


class Dispatch(NamedTuple):
    """Where each row goes.

    Args:
        order: [R], of the rows token by token, the one that is at each place in the order of the experts.
        inverse: [R], the place of each.
        ends: [E], the row after each expert's last one, int32.
    """

    order: Tensor
    inverse: Tensor
    ends: Tensor

    @classmethod
    def of(cls, chosen_NC: Tensor, experts: int) -> Dispatch:
        of_rows, order_R = torch.sort(chosen_NC.flatten(), stable=True)
        ends_E = torch.searchsorted(of_rows, torch.arange(experts, device=chosen_NC.device), right=True, out_int32=True)
        inverse_R = torch.empty_like(order_R)
        inverse_R[order_R] = torch.arange(len(order_R), device=order_R.device)
        return cls(order_R, inverse_R, ends_E)


class GroupedProduct(torch.autograd.Function):
    """x_RK, expert by expert, by the transposes of its matrices [E M, K]: [R, M].

    On CUDA by PyTorch's grouped product, where rows are aligned to its 16 bytes; elsewhere by a product an expert.
    """

    @staticmethod
    def forward(ctx: Any, x_RK: Tensor, weight: Tensor, ends_E: Tensor) -> Tensor:
        ctx.save_for_backward(x_RK, weight, ends_E)
        weight_EMK = weight.unflatten(0, (len(ends_E), -1))
        return _by_expert(x_RK, weight_EMK.transpose(1, 2), ends_E)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x_RK, weight, ends_E = ctx.saved_tensors
        gradient_RM = gradients[0].contiguous()
        weight_EMK = weight.unflatten(0, (len(ends_E), -1))
        of_x = _by_expert(gradient_RM, weight_EMK, ends_E)
        return of_x, _of_weights(gradient_RM, x_RK, ends_E).flatten(0, 1), None


def ends_on_host(ends_E: Tensor, _rows: int) -> list[int]:
    """`ends_E` of so many `_rows`, as Python reads it. A dry run, whose tensors have no numbers, has its own."""
    return [int(end) for end in ends_E.tolist()]


def _by_expert(x_RK: Tensor, weight_EKM: Tensor, ends_E: Tensor) -> Tensor:
    """The rows of each expert by its matrix, [R, M]."""
    if _grouped(x_RK, weight_EKM.shape[-1]):
        return grouped_mm(x_RK, weight_EKM, offs=ends_E)
    out_RM = x_RK.new_empty(x_RK.shape[0], weight_EKM.shape[-1])
    first = 0
    for end, weight_KM in zip(ends_on_host(ends_E, len(x_RK)), weight_EKM, strict=True):
        torch.mm(x_RK[first:end], weight_KM, out=out_RM[first:end])
        first = end
    return out_RM


def _of_weights(gradient_RM: Tensor, x_RK: Tensor, ends_E: Tensor) -> Tensor:
    """The transposed rows of each expert's gradient by those of its input, [E, M, K]."""
    if _grouped(x_RK, gradient_RM.shape[1]):
        return grouped_mm(gradient_RM.T, x_RK, offs=ends_E)
    out_EMK = x_RK.new_empty(len(ends_E), gradient_RM.shape[1], x_RK.shape[1])
    first = 0
    for end, out_MK in zip(ends_on_host(ends_E, len(x_RK)), out_EMK, strict=True):
        torch.mm(gradient_RM[first:end].T, x_RK[first:end], out=out_MK)
        first = end
    return out_EMK


def _grouped(x_RK: Tensor, columns: int) -> bool:
    unaligned = any(size * x_RK.element_size() % ALIGNED_BYTES for size in (x_RK.shape[1], columns))
    return x_RK.is_cuda and len(x_RK) > 0 and not unaligned


class _Balanced(torch.autograd.Function):
    """The router's scores [N, E]; backward, the auxiliary loss adds its gradient, and statistics count.

    With f_i the share of N tokens that choose expert i, computed or dropped, and P_i its mean probability, the loss is
        weight E sum_i f_i P_i,   whose gradient of each token's probability of expert i is weight E f_i / N
    where f does not depend on the scores. Fedus et al. 2021, arXiv 2101.03961, equations 4 to 6.
    Where ranks have parts of the sequences, f is of all their tokens (Megatron-LM, core/transformer/moe/router.py), and
    P of a rank's own: the mean of the ranks' losses is that of whole sequences.
    """

    @staticmethod
    def forward(
        ctx: Any, scores_NE: Tensor, ends_E: Tensor, statistics: RouterStatistics, weight: float, places: int | None
    ) -> Tensor:
        ctx.save_for_backward(ends_E, scores_NE.mean(0))
        ctx.statistics, ctx.weight, ctx.tokens, ctx.places = statistics, weight, len(scores_NE), places
        return scores_NE.view_as(scores_NE)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        ends_E, mean_E = ctx.saved_tensors
        loads_E = ends_E.diff(prepend=ends_E.new_zeros(1))
        averaged = ctx.statistics.averaged if ctx.weight else None
        mean_load_E = loads_E if averaged is None else averaged(loads_E.float())
        share_E = mean_load_E / ctx.tokens * len(loads_E)
        ctx.statistics.add(loads_E, share_E @ mean_E, ctx.places)
        if not ctx.weight:
            return gradients[0], None, None, None, None
        factor = ctx.weight * ctx.statistics.upstream / ctx.tokens
        return gradients[0] + share_E * factor, None, None, None, None


class Router(nn.Module):
    """Chooses and weighs the experts of each token, in fp32.

    The chosen are the C with the largest scores, a softmax or a sigmoid of a product; within `groups_per_token` of its
    groups of experts, where there are any. A group counts as its best expert, with sigmoid scores as its best two.
    Gates are the scores of the chosen, divided by their sum unless they are a softmax over all; times `gate_scale`.
    Where a bias balances the experts, it is added to the scores for the choice alone.
    Sources: Jiang et al. 2024, arXiv 2401.04088, section 2.1; DeepSeek-AI 2024, arXiv 2405.04434, section 2.2.2, and
    arXiv 2412.19437, section 2.1.2.

    Attributes:
        bias: of each expert, fp32; None without.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        assert architecture.experts is not None
        assert architecture.experts_per_token is not None
        self.weight = nn.Parameter(torch.empty(architecture.experts, architecture.hidden))
        self.chosen, self.groups = architecture.experts_per_token, architecture.expert_groups
        self.groups_per_token = architecture.groups_per_token
        self.sigmoid = architecture.gate is Gate.SIGMOID
        self.renormalises = architecture.gate is not Gate.SOFTMAX
        self.scale = architecture.gate_scale
        auxiliary = architecture.balancing is Balancing.AUXILIARY_LOSS
        layers = architecture.layers - architecture.dense_layers
        self.loss_weight = (architecture.auxiliary_loss_weight or 0.0) / layers if auxiliary else 0.0
        self.sequence_weight = architecture.sequence_loss_weight
        self.rate = architecture.balancing_rate
        self.bias: Tensor | None
        balanced = architecture.balancing is Balancing.BIAS
        self.register_buffer("bias", torch.zeros(architecture.experts) if balanced else None)
        self.statistics = RouterStatistics()
        self._architecture = architecture

    def forward(self, x_ND: Tensor, *, sequences: int = 1) -> tuple[Tensor, Dispatch | Places]:
        """Gates [N, C], and where the rows go: with a capacity to places, and gates of dropped ones are 0.

        Args:
            sequences: of N / sequences tokens each.
        """
        each = self._architecture.expert_places(tokens=len(x_ND))
        scores_NE = linear(x_ND.float(), self.weight.float())
        scores_NE = scores_NE.sigmoid() if self.sigmoid else scores_NE.softmax(-1)
        with torch.no_grad():
            ranked_NE = scores_NE if self.bias is None else scores_NE + self.bias
            chosen_NC = self._within_groups(ranked_NE).topk(self.chosen, dim=-1).indices
            del ranked_NE
            dispatch = Dispatch.of(chosen_NC, scores_NE.shape[1])
            places = None if each is None else Places.of(chosen_NC, scores_NE.shape[1], each)
        balanced: Tensor = _Balanced.apply(scores_NE, dispatch.ends, self.statistics, self.loss_weight, each)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if self.sequence_weight is not None:
            balanced = balanced_by_sequence(
                balanced,
                sequences=sequences,
                chosen=self.chosen,
                weight=self.sequence_weight,
                statistics=self.statistics,
            )
        gates_NC = balanced.gather(1, chosen_NC)
        if self.renormalises:
            gates_NC = gates_NC / gates_NC.sum(-1, keepdim=True)
        gates_NC = gates_NC if self.scale is None else gates_NC * self.scale
        return (gates_NC, dispatch) if places is None else (gates_NC * places.kept, places)

    def balance(self, rows_E: Tensor) -> None:
        """Move the bias of each expert by the rate: up where it had fewer rows than the mean in a step, else down.

        Source: Wang et al. 2024, arXiv 2408.15664, algorithm 1; DeepSeek-AI 2024, arXiv 2412.19437, section 2.1.2.
        """
        assert self.bias is not None
        assert self.rate is not None
        rows_E = rows_E.float()
        self.bias += self.rate * torch.sign(rows_E.mean() - rows_E)

    def _within_groups(self, scores_NE: Tensor) -> Tensor:
        """Scores of the experts that a token may choose; of all others less than any score."""
        if self.groups is None or self.groups_per_token is None:
            return scores_NE
        by_group = scores_NE.unflatten(-1, (self.groups, -1))
        best = by_group.topk(min(2, by_group.shape[-1]) if self.sigmoid else 1, dim=-1).values.sum(-1)
        allowed = torch.zeros_like(best, dtype=torch.bool)
        allowed.scatter_(1, best.topk(self.groups_per_token, dim=-1).indices, True)
        masked: Tensor = by_group.masked_fill(~allowed.unsqueeze(-1), -torch.inf).flatten(-2)
        return masked


class ExpertMatrices(nn.Module):
    """One matrix of each expert, one below the other: [E M, K]."""

    def __init__(self, experts: int, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts * rows, columns))

    def forward(self, x_RK: Tensor, ends_E: Tensor) -> Tensor:
        out: Tensor = GroupedProduct.apply(x_RK, self.weight, ends_E)  # type: ignore[no-untyped-call]  # as above
        return out


class RoutedExperts(nn.Module):
    """The feed-forward parts among which a router chooses; rows as in `FeedForward`, expert by expert."""

    def __init__(self, architecture: Architecture, operations: Operations) -> None:
        super().__init__()
        experts, hidden, width = architecture.experts or 0, architecture.hidden, architecture.expert_width
        self.operations = operations
        self.expansion = ExpertMatrices(experts, (2 if architecture.activation.gated else 1) * width, hidden)
        self.contraction = ExpertMatrices(experts, hidden, width)

    def forward(self, x_RD: Tensor, ends_E: Tensor) -> Tensor:
        out: Tensor = self.contraction(self.operations.activated(self.expansion(x_RD, ends_E)), ends_E)
        return out


class RowExchange(Protocol):
    """Has rows computed by the experts of other ranks."""

    def __call__(self, rows_RD: Tensor, ends_E: Tensor, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Output of all experts for `rows_RD`, in its order; `compute` takes rows and ends of this rank's experts."""


class Experts(nn.Module):
    """Feed-forward part of experts that a router chooses.

    Args:
        shared: what every token passes besides.

    Attributes:
        exchange: with the ranks that have the other experts; None where this one has all.
        entered, left: what tensor-parallel ranks, which have parts of each expert, do to hidden states before and after
            it; None where this one has them whole.
    """

    exchange: RowExchange | None
    entered: Callable[[Tensor], Tensor] | None
    left: Callable[[Tensor], Tensor] | None

    def __init__(self, architecture: Architecture, operations: Operations, shared: nn.Module | None) -> None:
        super().__init__()
        hidden = architecture.hidden
        self.router = Router(architecture)
        self.experts = RoutedExperts(architecture, operations)
        self.shared_experts = shared
        self.shared_gate = nn.Linear(hidden, 1, bias=False) if architecture.shared_gate else None
        self.exchange = self.entered = self.left = None

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # sizes depend on the routing: it runs eagerly
    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.entered is not None:
            x_BTD = self.entered(x_BTD)
        x_ND = x_BTD.flatten(0, 1)
        gates_NC, dispatch = self.router(x_ND, sequences=len(x_BTD))
        y_RD = self._at_places(x_ND, dispatch) if isinstance(dispatch, Places) else self._dropless(x_ND, dispatch)
        weighed_NCD = y_RD.unflatten(0, gates_NC.shape) * gates_NC.to(y_RD.dtype).unsqueeze(-1)
        out: Tensor = weighed_NCD.sum(1).view_as(x_BTD)
        del y_RD, weighed_NCD
        if self.shared_experts is not None:
            out = out + self._shared(self.shared_experts, x_BTD)
        return out if self.left is None else self.left(out)

    def _shared(self, experts: nn.Module, x_BTD: Tensor) -> Tensor:
        """Output of the shared experts for every token, weighed where they have a gate."""
        out: Tensor = experts(x_BTD)
        return out if self.shared_gate is None else out * self.shared_gate(x_BTD).sigmoid()

    def _dropless(self, x_ND: Tensor, dispatch: Dispatch) -> Tensor:
        """Output of the experts for each row, [R, D], in the order of the tokens."""
        order_R, inverse_R, ends_E = dispatch
        rows_RD: Tensor = Copied.apply(x_ND, order_R, inverse_R)  # type: ignore[no-untyped-call]  # as above
        y_RD = self._computed(rows_RD, ends_E)
        del rows_RD
        returned: Tensor = Returned.apply(y_RD, order_R, inverse_R)  # type: ignore[no-untyped-call]  # as above
        return returned

    def _at_places(self, x_ND: Tensor, places: Places) -> Tensor:
        """The same of experts with a capacity."""
        return collected(self._computed(placed(x_ND, places), places.ends), places)

    def _computed(self, rows_XD: Tensor, ends_E: Tensor) -> Tensor:
        """Output of the experts for rows in their order, computed here or on the ranks that have them."""
        exchange = self.exchange
        out: Tensor = self.experts(rows_XD, ends_E) if exchange is None else exchange(rows_XD, ends_E, self.experts)
        return out
