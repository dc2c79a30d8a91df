"""The loss of each sequence and its gradient, against autograd of the paper's formula, sequence by sequence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from suite.execute.model.experts import RouterStatistics
from suite.execute.model.sequence_balance import balanced_by_sequence


def by_formula(scores_TE: Tensor, chosen: int) -> Tensor:
    """Equations 17 to 20 of arXiv 2412.19437 without the weight, of one sequence."""
    tokens, experts = scores_TE.shape
    largest = [sorted(range(experts), key=row.__getitem__, reverse=True)[:chosen] for row in scores_TE.tolist()]
    loss = torch.zeros((), dtype=scores_TE.dtype)
    for expert in range(experts):
        frequency = experts / (chosen * tokens) * sum(expert in own for own in largest)
        loss = loss + frequency * (scores_TE[:, expert] / scores_TE.sum(-1)).mean()
    return loss


@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 7).flatmap(lambda experts: st.tuples(st.just(experts), st.integers(1, experts))),
    st.sampled_from([0.5, 4.0]),
    st.integers(0, 9),
)
def test_the_gradient_is_that_of_the_mean_over_sequences(
    sequences: int, tokens: int, experts: tuple[int, int], upstream: float, seed: int
) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(sequences * tokens, experts[0], dtype=torch.float64, requires_grad=True)
    cotangent, weight = torch.randn_like(logits), 0.3
    statistics = RouterStatistics()
    statistics.upstream = upstream
    statistics.add(torch.ones(experts[0], dtype=torch.int32), torch.zeros(()))
    scores = logits.sigmoid()
    out = balanced_by_sequence(scores, sequences=sequences, chosen=experts[1], weight=weight, statistics=statistics)
    assert torch.equal(out, scores)
    out.backward(cotangent)
    got, logits.grad = logits.grad, None
    scores = logits.sigmoid()
    loss = torch.stack([by_formula(part, experts[1]) for part in scores.chunk(sequences)]).mean()
    ((scores * cotangent).sum() + upstream * weight * loss).backward()
    torch.testing.assert_close(got, logits.grad)
    assert statistics.sequence_loss == pytest.approx(loss.item())


@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 9))
def test_parts_of_sequences_have_the_mean_loss_and_the_gradients_of_whole_ones(
    sequences: int, tokens: int, seed: int
) -> None:
    torch.manual_seed(seed)
    whole_BTE = torch.rand(sequences, 2 * tokens, 5, dtype=torch.float64)

    def of(scores_BTE: Tensor, averaged: Callable[[Tensor], Tensor] | None) -> tuple[Tensor, float]:
        statistics, scores_NE = RouterStatistics(), scores_BTE.flatten(0, 1).clone().requires_grad_()
        statistics.averaged = averaged
        statistics.add(torch.ones(5, dtype=torch.int32), torch.zeros(()))
        out = balanced_by_sequence(scores_NE, sequences=sequences, chosen=2, weight=0.3, statistics=statistics)
        out.backward(torch.zeros_like(out))
        assert scores_NE.grad is not None
        assert statistics.sequence_loss is not None
        return scores_NE.grad.view_as(scores_BTE), statistics.sequence_loss

    parts = whole_BTE.chunk(2, 1)
    loads: list[Tensor] = []
    for part in parts:  # what each rank hands to the others
        of(part, lambda load_BE: loads.append(load_BE.clone()) or load_BE)  # type: ignore[func-returns-value]  # notes it
    gradients, losses = zip(*(of(part, lambda _: torch.stack(loads).mean(0)) for part in parts), strict=True)
    wanted, loss = of(whole_BTE, None)
    torch.testing.assert_close(torch.cat(gradients, 1) / 2, wanted)  # ranks average their gradients
    assert sum(losses) / 2 == pytest.approx(loss)
