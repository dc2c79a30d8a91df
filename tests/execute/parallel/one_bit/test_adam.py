"""1-bit Adam compared with a simulation of all its ranks in one process."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.execute.parallel.one_bit import OneBitAdam, Renewal, Settled
from suite.predict.analytic.one_bit_compression import compressed_all_reduce_sent_bytes, compressed_elements
from tests.execute.parallel.one_bit import work
from tests.execute.parallel.one_bit.pool import Pool
from tests.execute.parallel.one_bit.simulation import Adam

pytestmark = pytest.mark.ranks

SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1, "warmup_steps": 20}


def simulated(elements: int, ranks: int, steps: int, settings: dict[str, Any], *, zeros: int) -> list[torch.Tensor]:
    """Weights after each step."""
    rule = Adam(torch.linspace(-2, 2, elements), settings)
    weights = []
    for step in range(steps):
        rule.update(work.gradients(ranks, step, elements, zeros=zeros))
        weights.append(rule.weight.detach().clone())
    return weights


@pytest.mark.covering(2)
@pytest.mark.parametrize("renewal", [None, Renewal(steps=10)], ids=["frozen", "renewed"])
@pytest.mark.parametrize("zeros", [0, 100])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_80_steps_are_the_simulation_bit_by_bit(ranks: int, zeros: int, renewal: Renewal | None, pool: Pool) -> None:
    settings = SETTINGS | {"renewal": renewal}
    seen = pool(ranks, work.train, 1003, 80, settings, zeros)
    expected = simulated(1003, ranks, 80, settings, zeros=zeros)
    for rank in range(ranks):
        for step, (ours, theirs) in enumerate(zip(seen[rank], expected, strict=True)):
            assert torch.equal(ours, theirs), f"rank {rank}, step {step}: {(ours - theirs).abs().max()}"


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_model_is_trained_by_exact_adam_and_then_in_one_bit(ranks: int, pool: Pool) -> None:
    steps = 8
    seen = pool(ranks, work.with_a_model, steps)
    ours, theirs, collectives, sizes, exact = seen[0]
    for step in range(work.WARM_UP):
        # its own all-reduce and that of the hook divide and add in their own order: a rounding of every gradient
        close = {"rtol": 0.0, "atol": 1e-5} if ranks == 3 else {"rtol": 0.0, "atol": 0.0}
        torch.testing.assert_close(ours[step], theirs[step], **close)
    assert not torch.equal(ours[-1], theirs[-1])
    for rank in range(1, ranks):
        assert all(torch.equal(a, b) for a, b in zip(ours, seen[rank][0], strict=True)), "ranks have diverged"
    parameters = ours[0].numel()
    assert sizes == [20 * 16, 16 * 16, 16 * 16, 20 * 16]  # embedding, two layers, head
    assert exact == parameters - sum(sizes)
    padded = sum(compressed_elements(size, ranks=ranks) for size in sizes)
    payload = padded // 8 + 4 * len(sizes) * ranks
    for step, counted in enumerate(collectives):
        if 2 <= step < work.WARM_UP:  # in the first two DistributedDataParallel arranges its buckets
            assert {operation for operation, _, _ in counted} == {"all_reduce"}
            assert sum(size for _, size, _ in counted) == 4 * parameters
        elif step >= work.WARM_UP:
            assert counted == [("all_gather", payload, 1), ("all_reduce", 4 * exact, 1), ("all_to_all", payload, 1)]
    sent = sum(compressed_all_reduce_sent_bytes(size, ranks=ranks) for size in sizes)
    assert sent == 2 * (ranks - 1) * payload // ranks


def test_one_rank_alone_sends_nothing_after_the_warm_up(pool: Pool) -> None:
    _, _, collectives, _, _ = pool(1, work.with_a_model, work.WARM_UP + 2)[0]
    assert all(collectives[: work.WARM_UP])
    assert not any(collectives[work.WARM_UP :])


@pytest.mark.parametrize(
    ("ranks", "wrapped", "hooked", "warnings"),
    [(2, True, False, 1), (2, True, True, 0), (2, False, False, 0), (1, True, False, 0)],
)
def test_gradients_that_are_averaged_after_the_warm_up_are_warned_of_once(
    ranks: int, wrapped: bool, hooked: bool, warnings: int, pool: Pool
) -> None:
    for seen in pool(ranks, work.warned, wrapped, hooked):
        assert len(seen) == warnings
        assert all("average_gradients_of" in words for words in seen)
        assert all(words.startswith("work.py: ") for words in seen)  # who called `step`


def test_gradients_of_nothing_are_not_said_to_be_averaged(pool: Pool) -> None:
    assert pool(2, work.warned_without_gradients) == [0, 0]


def test_a_parameter_that_starts_late_is_corrected_from_its_own_first_step(pool: Pool) -> None:
    """A gradient that never changes makes every step of Adam the learning rate, once m and v are corrected."""
    # a missing gradient counts as 0 after the warm-up; of the 20 steps 1 to 5, 11 and 12 are exact
    for settings, compressed in (((48, 50, 60), 10), ((4, 5, 20, Renewal(steps=2)), 13)):
        seen, never, counted = pool(2, work.late, *settings)[0]
        for ours, theirs in seen:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        torch.testing.assert_close(never, torch.full((4, 4), 2 * (1 - 0.1 * 0.1) ** compressed))
        assert counted == compressed


def test_the_first_group_says_how_long_the_second_moment_remembers(pool: Pool) -> None:
    renewed = pool(2, work.exact_steps, 60, {"warmup_steps": 20, "renewal": Renewal()}, [0.9, 0.5])
    assert renewed == [[*range(1, 21), *range(41, 51)]] * 2
    for beta2, window in (([0.9, 0.5], 10), ([0.3, 0.9], 1)):
        norms = [sum(1 - beta**step for beta in beta2) for step in range(100)]
        ended = next(step for step in range(window + 1, 100) if norms[step - window] >= 0.96 * norms[step])
        assert pool(2, work.exact_steps, 60, {"warmup_steps": Settled()}, beta2) == [[*range(1, ended + 1)]] * 2


def test_settings_that_are_not_given_are_those_of_adam() -> None:
    ours, theirs = (inspect.signature(optimizer).parameters for optimizer in (OneBitAdam, torch.optim.Adam))
    for name in ("lr", "betas", "eps", "weight_decay"):
        assert ours[name].default == theirs[name].default


def test_frozen_parameters_stay_as_they_are(pool: Pool) -> None:
    sizes, (trained, matrix, vector, later), once = pool(2, work.frozen, False)[0]
    assert sizes == [16]
    assert bool((trained < 1).all())
    assert bool((matrix == 1).all())
    assert bool((vector == 1).all())
    assert torch.equal(later, once)
    assert bool((once < 1).all())
    with pytest.raises(RuntimeError, match="allowed frozen as at the end of the warm-up, got gradients of others"):
        pool(2, work.frozen, True)


def test_groups_have_their_own_rates_and_vectors(pool: Pool) -> None:
    compressed, exact, weights, refused = pool(2, work.in_groups, 5)[0]
    assert compressed == [8, 12, 7]
    assert exact == [20]
    for number, weight in enumerate(weights):  # a gradient that never changes makes every step the learning rate
        torch.testing.assert_close(weight, torch.full_like(weight, -0.5 * (number + 1)), rtol=1e-5, atol=0)
    assert refused == "add_param_group: allowed before the first step"


def test_decay_is_added_to_the_gradient_where_asked_for(pool: Pool) -> None:
    settings = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.3, "warmup_steps": 4}
    weight, m, v = 2.0, 0.0, 0.0
    for step, ours in enumerate(pool(2, work.with_coupled_decay, settings, 12)[0], start=1):
        gradient = 1 + 0.3 * weight
        m = 0.9 * m + 0.1 * gradient
        v = 0.99 * v + 0.01 * gradient**2 if step <= 4 else v
        weight -= 0.1 / (1 - 0.9**step) * m / ((v / (1 - 0.99 ** min(step, 4))) ** 0.5 + 1e-8)
        torch.testing.assert_close(ours, torch.full((2, 4), weight), rtol=0, atol=1e-5)


def test_a_closure_is_called_and_gradients_stay(pool: Pool) -> None:
    for rank, (losses, own, mean) in enumerate(pool(2, work.with_closure)):
        assert len(losses) == 4
        assert losses[0] == 11 * (2 * rank + 1)
        assert losses[3] < losses[0]
        assert torch.equal(own, torch.full((2, 4), 2.0 * rank + 1))
        assert torch.equal(mean, torch.full((3,), 2.0))


def test_a_gradient_that_one_rank_lacks_counts_as_zero(pool: Pool) -> None:
    seen = pool(2, work.without_gradient_on_one)
    assert all(torch.equal(a, b) for a, b in zip(seen[0][1], seen[1][1], strict=True))
    for before, after in zip(*seen[0], strict=True):
        assert bool((after < before).all())


def test_gradients_accumulate_over_micro_batches(pool: Pool) -> None:
    whole, parts = (pool(2, work.accumulated, count)[0] for count in (1, 2))
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


# a fresh DistributedDataParallel adds up 3 ranks' gradients in another order, until its buckets are the final ones
@pytest.mark.parametrize(("ranks", "before"), [(2, 2), (2, work.WARM_UP), (2, 6), (3, work.WARM_UP), (3, 6)])
def test_training_goes_on_from_a_file_bit_by_bit(ranks: int, before: int, pool: Pool) -> None:
    for straight, resumed in pool(ranks, work.resumed, before, 4):
        assert torch.equal(straight, resumed)


@pytest.mark.parametrize("before", [8, 9, 10, 13])  # before, in, at the end of and after the first renewal
def test_training_goes_on_through_a_renewal_bit_by_bit(before: int, pool: Pool) -> None:
    for straight, resumed in pool(2, work.resumed, before, 6, {"renewal": Renewal(steps=2)}):
        assert torch.equal(straight, resumed)


@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 3), (3, 1), (2, 2)])
def test_another_number_of_ranks_goes_on_with_what_is_to_be_corrected(old: int, new: int, pool: Pool) -> None:
    seen = pool(old, work.saved, 7)
    weights, own, portable, _ = seen[0]
    assert all(torch.equal(a, b) for a, b in zip(*(of[2]["one_bit"]["worker_errors"] for of in seen[:2]), strict=True))
    again = pool(new, work.loaded, weights, portable, 3)
    for number in range(4):
        before = sum(errors[number][0] for _, _, _, errors in seen) / old
        before += torch.cat([errors[number][1] for _, _, _, errors in seen])[: before.numel()]
        after = sum(errors[number][0] for errors, _ in again) / new
        after += torch.cat([errors[number][1] for errors, _ in again])[: after.numel()]
        torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-8)
        assert before.abs().max() > 1e-4
    assert all(loss < 2.0 for _, losses in again for loss in losses)
    if (old, new) != (2, 2):
        with pytest.raises(RuntimeError, match=rf"allowed rank 0 of {new}, or portable_state_dict\(\), got rank 0 of"):
            pool(new, work.loaded, weights, own, 1)


def test_the_state_of_another_optimizer_is_refused(pool: Pool) -> None:
    weights, own, _, _ = pool(2, work.saved, 5)[0]
    with pytest.raises(RuntimeError, match="allowed that of OneBitAdam, got none under 'one_bit'"):
        pool(2, work.loaded, weights, {key: own[key] for key in ("state", "param_groups")}, 1)
    groups = [{**own["param_groups"][0], "compressed": False}]
    with pytest.raises(RuntimeError, match=r'"compressed" of the groups: allowed \[None\], got \[False\]'):
        pool(2, work.loaded, weights, own | {"param_groups": groups}, 1)
    own["one_bit"]["rank"] = own["one_bit"]["ranks"] = None
    own["one_bit"]["worker_errors"][1] = torch.zeros(3)
    with pytest.raises(
        RuntimeError, match=r"errors: allowed \[320, 256, 256, 320\] elements, got \[320, 3, 256, 320\]"
    ):
        pool(2, work.loaded, weights, own, 1)


@pytest.mark.parametrize("bad_step", [1, 5])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38], ids=str)
@pytest.mark.parametrize("name", ["layers.0.1.weight", "layers.1.0.bias"])
def test_a_gradient_that_is_not_finite_is_left_out_on_all_ranks(
    name: str, value: float, bad_step: int, pool: Pool
) -> None:
    seen = pool(2, work.with_bad_gradients, name, value, bad_step)
    for rank in range(2):
        assert [skipped for _, _, skipped in seen[rank]] == [step == bad_step for step in range(8)]
        (before, state_before, _), (after, state_after, _) = seen[rank][bad_step - 1 : bad_step + 1]
        assert torch.equal(before, after)
        assert all(torch.equal(a, b) for a, b in zip(state_before, state_after, strict=True))
        assert seen[rank][-1][0].isfinite().all()
        assert all(torch.equal(seen[0][step][0], seen[rank][step][0]) for step in range(8))


def test_the_norm_of_gradients_in_half_precision_is_taken_in_fp32(pool: Pool) -> None:
    assert pool(1, work.in_half) == [[False] * 4]


@pytest.mark.parametrize("bad_step", [None, 2, 6])
@pytest.mark.parametrize("sharded", [True, False])
def test_a_scaled_loss_trains_the_same(sharded: bool, bad_step: int | None, pool: Pool) -> None:
    seen = pool(2, work.scaled, sharded, bad_step)
    for rank in range(2):
        assert [skipped for _, skipped, _ in seen[rank]] == [step == bad_step for step in range(8)]
        assert all(torch.equal(seen[0][step][0], seen[rank][step][0]) for step in range(8))
    if bad_step is None:  # a power of two changes no digit
        for step, weights in enumerate(pool(2, work.unscaled)[0]):
            assert torch.equal(seen[0][step][0], weights)
    elif sharded:
        assert seen[0][-1][2] == seen[1][-1][2] == 512.0


def test_the_warm_up_ends_once_the_second_moment_has_settled_on_all_ranks(pool: Pool) -> None:
    seen = pool(2, work.settled, 60, 10, 0, 2)
    (ended, norms), (ended_there, norms_there) = seen
    assert ended == ended_there

    def is_settled(step: int, of: list[float], window: int = 10) -> bool:
        return step > window and of[step - window - 1] >= 0.96 * of[step - 1]

    expected = next((step for step in range(1, 61) if is_settled(step, norms) and is_settled(step, norms_there)), None)
    assert ended == expected
    soon, norms = pool(2, work.settled, 60, 5, 0, 0)[0]  # a tenth of a window is less than a step
    assert soon == next(step for step in range(1, 61) if is_settled(step, norms, 5))
    later, _ = pool(2, work.settled, 60, 10, 57, 2)[0]
    assert later == 57
    assert pool(2, work.settled, 60, None, 0, 2) == seen  # 1 / (1 - beta2) is 10
    assert pool(2, work.settled, 60, 10, 0, 2, ended - 3) == seen
    assert pool(2, work.settled, 60, 10, 0, 0, None, True)[0][0] == 11  # nothing is compressed, so that nothing moves
    (rarely, norms), _ = pool(2, work.settled, 120, 40, 0, 0)
    first = next(step for step in range(41, 121) if norms[step - 41] >= 0.96 * norms[step - 1])
    assert first % 4
    assert rarely == first + 4 - first % 4  # looked at every tenth of a window


@given(warm_up=st.integers(1, 1000), factor=st.floats(1.05, 8.0), steps=st.integers(1, 50), step=st.integers(1, 10**6))
def test_a_renewal_begins_whenever_the_steps_have_grown_by_its_factor(
    warm_up: int, factor: float, steps: int, step: int
) -> None:
    begins, begin = [], float(warm_up)
    while begin * factor < step:
        begin *= factor
        begins.append(begin)
    expected = bool(begins) and step <= begins[-1] + steps
    assert Renewal(factor, steps).is_exact(step, warm_up=warm_up, beta2=0.9) == expected


def test_a_renewal_is_as_long_as_the_second_moment_remembers() -> None:
    exact = [step for step in range(1, 100) if Renewal().is_exact(step, warm_up=20, beta2=0.9)]
    assert exact == [*range(41, 51), *range(81, 91)]


def test_the_least_and_the_largest_settings_are_taken() -> None:
    assert (Settled(share=1.0, window=1), Renewal(steps=1)) == (Settled(1.0, 1), Renewal(2.0, 1))


@pytest.mark.parametrize(
    ("rule", "settings", "words"),
    [
        (Renewal, {"factor": 1.0}, "factor: allowed above 1, got 1.0"),
        (Renewal, {"factor": float("nan")}, "factor: allowed above 1, got nan"),
        (Renewal, {"steps": 0}, "steps: allowed 1 or more, got 0"),
        (Settled, {"share": 0.0}, "share: allowed above 0 up to 1, got 0.0"),
        (Settled, {"share": 1.5}, "share: allowed above 0 up to 1, got 1.5"),
        (Settled, {"window": 0}, "window: allowed 1 or more, got 0"),
    ],
)
def test_a_renewal_or_warm_up_that_cannot_be_is_refused(rule: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rule(**settings)


@pytest.mark.parametrize(
    ("settings", "elements", "words"),
    [
        ([{"warmup_steps": 0}] * 2, [4, 4], "warmup_steps: allowed 1 or more, got 0"),
        ([{"warmup_steps": 2.5}] * 2, [4, 4], "warmup_steps: allowed a whole number or Settled, got 2.5"),
        (
            [{"warmup_steps": 3, "dtype": torch.complex64}] * 2,
            [4, 4],
            "group 0: allowed real numbers, got torch.complex64",
        ),
        ([{"warmup_steps": 3}, {"warmup_steps": 4}], [4, 4], "got others on rank 1"),
        ([{"warmup_steps": 3}, {"warmup_steps": 3, "renewal": Renewal()}], [4, 4], "got others on rank 1"),
        ([{"warmup_steps": 3}] * 2, [4, 5], "got others on rank 1"),
    ],
)
def test_settings_that_cannot_work_are_refused_on_all_ranks(
    settings: list[dict[str, Any]], elements: list[int], words: str, pool: Pool
) -> None:
    with pytest.raises(RuntimeError, match=words) as error:
        pool(2, work.constructed, settings, elements)
    assert str(error.value).count(words) == 2


def test_parameters_that_are_sharded_over_the_ranks_are_refused(pool: Pool) -> None:
    with pytest.raises(RuntimeError, match=r"parameter 0 of group 0: allowed whole .*, got sharded over ranks \[0, 1,"):
        pool(4, work.sharded, True)
    pool(4, work.sharded, False)


def test_parameters_that_are_sharded_over_other_ranks_are_averaged_part_by_part(pool: Pool) -> None:
    for part in pool(4, work.sharded_beside):
        torch.testing.assert_close(part, torch.full((2, 8), 0.6))


def test_a_model_that_averages_over_other_ranks_is_refused(pool: Pool) -> None:
    words = r"process group of the model: allowed the optimizer's, ranks \[2, 3\], got \[0, 1, 2, 3\]"
    with pytest.raises(RuntimeError, match=words):
        pool(4, work.another_group)
