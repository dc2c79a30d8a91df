"""1-bit Adam beside DeepSpeed 0.19.6's OnebitAdam and both of its compressed all-reduces, on gloo, in fp32.

Where there is no padding and no mask, the compressed all-reduce is the same bits on 2 and 4 ranks. On 3, DeepSpeed
multiplies every scale by 1 / 3 where we divide their sum, so that results differ by roundings. The optimizer's moments
and errors are the same bits too once the momentum's own sum, beta1 m + (1 - beta1) g, is written in DeepSpeed's order.

What DeepSpeed does otherwise:
- Bias correction is accepted and never applied: with its first steps' learning rate divided by 1 - beta1^t and so on
  (`work.same_rule`), its weights are ours.
- The first step is a dry run: its gradient is lost, but it counts, so that `freeze_step` - 1 steps are exact.
- Errors are dropped when a checkpoint is loaded. In the compressed stage a new optimizer then loses one more gradient
  to its dry run, and makes one exact step with gradients that nobody averages: the ranks' weights part for good.
- Padding counts in the scale, and is itself compressed with errors of its own.
- Elements outside a mask (`exp_avg_mask`) are set to 0 after averaging alone: they count in the scale, and their errors
  stay.
- Four messages a step for each tensor; ours are two for all.
- Weight decay is added to the update, as in ours; decay that is added to the gradient does not exist.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.end_to_end.peers import work
from tests.execute.parallel.one_bit.pool import Pool
from tests.execute.parallel.one_bit.simulation import sign

pytestmark = pytest.mark.ranks

EPSILON = 2.0**-24  # the most that one rounding changes in fp32, relatively
SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
WARM_UP = 20
STEPS = 80


@pytest.mark.parametrize("kind", ["nccl", "compressed"])
@pytest.mark.parametrize(("ranks", "elements"), [(2, 16), (2, 1008), (4, 32), (4, 4096)])
def test_the_compressed_all_reduce_is_theirs_bit_by_bit(ranks: int, elements: int, kind: str, pool: Pool) -> None:
    for rank, reported in enumerate(pool(ranks, work.averaged, kind, elements, 60)):
        for step, (ours, theirs) in enumerate(reported):
            for name, a, b in zip(("result", "worker error", "server error"), ours, theirs, strict=True):
                assert torch.equal(a, b), f"{name} of rank {rank} in step {step}: off by {(a - b).abs().max()}"


def test_on_three_ranks_the_mean_differs_by_its_roundings(pool: Pool) -> None:
    """DeepSpeed rounds 1 / 3, a scale times that and two sums, we two sums and a quotient, both then the sum with the
    error: u is off by at most 7 roundings of the mean scale and 2 of u. So signs may differ where |u| is below that,
    and the two scales s' by as much and the N / 3 + 4 roundings of two norms of N / 3 elements."""
    elements, count = 72 * 14, 60
    reported = pool(3, work.of_three, elements, count)
    part, flipped = elements // 3, 0
    for step in range(count):
        values, workers, servers, _, _, same = zip(*(of_rank[step] for of_rank in reported), strict=True)
        assert all(same)  # c, its scale and the worker error have no mean in them
        c = [value.double() + error.double() for value, error in zip(values, workers, strict=True)]
        scales = [each.square().mean().sqrt() for each in c]
        u = sum((sign(each) * scale for each, scale in zip(c, scales, strict=True)), torch.zeros(1)) / 3
        u = u + torch.cat(servers).double()
        # a scale itself is off by N / 2 + 2 roundings, in float64's u alone
        bound = (7 + elements / 2 + 2) * EPSILON * float(sum(scales)) / 3 + 2 * EPSILON * u.abs()
        ours, theirs = reported[0][step][3].double(), reported[0][step][4].double()
        differ = sign(ours) != sign(theirs)
        flipped += int(differ.sum())
        assert bool((u.abs()[differ] <= bound[differ]).all())
        apart = bound.view(3, part).max(1).values + (part + 4) * EPSILON * ours.view(3, part).abs().max(1).values
        assert bool(((ours.abs() - theirs.abs()).view(3, part).abs() <= apart.unsqueeze(1)).all())
    assert flipped <= 0.002 * elements * count


@pytest.mark.parametrize("kind", ["nccl", "compressed"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_training_is_theirs_where_both_do_the_same(ranks: int, kind: str, pool: Pool) -> None:
    """v is the same bits, and m and both errors after the warm-up. Before, m is off by momentum_bound a step, of which
    beta1 stays. The update x of a weight takes at most 16 roundings in both together, the weight itself 5, decay and
    the last sum included; what was off in a weight stays."""
    reported = pool(ranks, work.trained, kind, SETTINGS, WARM_UP, STEPS)
    for rank, (steps, off) in enumerate(reported):
        assert 0 < off <= 1
        for number, size in enumerate(work.SIZES):
            m_off = w_off = torch.zeros(math.prod(size), dtype=torch.float64)
            moment, weight = m_off, work.weights()[number].detach().double().flatten()
            for step, (all_ours, all_theirs) in enumerate(steps, start=1):
                where = f"parameter {number} of rank {rank} in step {step}"
                (w, m, v, *errors), (their_w, their_m, their_v, *their_errors) = all_ours[number], all_theirs[number]
                assert torch.equal(v, their_v), where
                if step <= WARM_UP:
                    given = torch.stack([each[number].flatten() for each in work.of_step(ranks, step)]).mean(0)
                    m_off = 0.9 * m_off + work.momentum_bound(moment.abs() + m_off, given, 0.9) * 1.01
                    assert bool(((m.double() - their_m.double()).abs() <= m_off).all()), where
                else:
                    m_off = torch.zeros_like(m_off)
                    assert torch.equal(m, their_m), where
                    assert len(errors) == len(their_errors) == 2
                    for a, b in zip(errors, their_errors, strict=True):
                        assert torch.equal(a, b), where
                rule = work.same_rule(SETTINGS, step, WARM_UP)
                per_m = rule["lr"] / (v.double().sqrt() + rule["eps"])
                size_of_w = torch.maximum(weight.abs(), their_w.double().abs())
                w_off = w_off + per_m * m_off + 1.01 * EPSILON * (16 * per_m * m.double().abs() + 5 * size_of_w)
                assert bool(((w.double() - their_w.double()).abs() <= w_off).all()), where
                moment, weight = m.double(), their_w.double()
            assert float(w_off.max()) < 1e-3  # a step is 1e-2


def test_all_ranks_hold_the_same_momentum_as_theirs_do(pool: Pool) -> None:
    reported = pool(2, work.trained, "nccl", SETTINGS, 3, 8)
    for (ours, theirs), (ours_there, theirs_there) in zip(reported[0][0][3:], reported[1][0][3:], strict=True):
        for number in range(len(work.SIZES)):
            assert torch.equal(ours[number][1], ours_there[number][1])
            assert torch.equal(theirs[number][1], theirs_there[number][1])
            assert not torch.equal(ours[number][3], ours_there[number][3])


def test_their_first_step_changes_nothing_but_the_count(pool: Pool) -> None:
    before, after = pool(2, work.first_step)[0]
    for weight, ((now, m, v, *_), count) in zip(before, after, strict=True):
        assert torch.equal(now, weight)
        assert not m.any()
        assert not v.any()
        assert count == 1


def test_their_bias_correction_changes_nothing(pool: Pool) -> None:
    with_it, without = (pool(2, work.with_bias_correction, reported)[0] for reported in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(with_it, without, strict=True))


def test_their_errors_are_dropped_and_their_ranks_part_after_loading(pool: Pool) -> None:
    reported = pool(2, work.from_checkpoint)
    for errors, kept, after, averages in reported:
        assert all(error.any() for of_parameter in errors for error in of_parameter)
        assert [len(of_parameter) for of_parameter in errors] == [2, 2]
        assert kept == [[], []]
        assert averages is False
        assert torch.equal(after[0], after[1])  # a gradient is lost
    (_, _, ours, _), (_, _, there, _) = reported
    assert [torch.equal(a, b) for a, b in zip(ours, there, strict=True)] == [True, True, False, False]


def test_their_scale_counts_padding(pool: Pool) -> None:
    elements, padded = 1000, 1024
    reported = pool(4, work.averaged, "nccl", elements, 2)[0]
    (_, ours, _), (_, theirs, _) = reported[1]
    values = work.vector(0, 1, elements)

    def scale(error: Tensor) -> Tensor:
        return (values - error)[:elements].abs()

    root_mean_square = values.double().square().mean().sqrt()
    torch.testing.assert_close(scale(ours).double(), root_mean_square.expand(elements), rtol=1e-5, atol=0)
    less = root_mean_square * math.sqrt(elements / padded)
    torch.testing.assert_close(scale(theirs[:elements]).double(), less.expand(elements), rtol=1e-5, atol=0)
    assert theirs[elements:].all()


def test_their_mask_leaves_errors(pool: Pool) -> None:
    weight, error = pool(2, work.masked)[0]
    assert not weight.any()
    assert error.abs().min() > 0


def test_theirs_sends_four_messages_for_each_tensor(pool: Pool) -> None:
    ours, theirs = pool(2, work.messages)[0]
    assert ours == [("all_gather", 1), ("all_to_all", 1)]
    tensors = len(work.SIZES)
    assert sum(count for operation, count in theirs if operation == "all_gather") == 3 * tensors
    assert sum(count for operation, count in theirs if operation == "all_to_all") == tensors
