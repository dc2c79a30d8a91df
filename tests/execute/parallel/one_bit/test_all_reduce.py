"""The compressed all-reduce beside its simulation, for all sizes and values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from suite.execute.parallel.one_bit import all_reduce
from suite.predict.analytic.one_bit_compression import compressed_elements
from tests.execute.parallel.one_bit import work
from tests.execute.parallel.one_bit.pool import Pool
from tests.execute.parallel.one_bit.simulation import Errors, averaged, no_errors, parts

pytestmark = pytest.mark.ranks

VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-42, 1e-38, 1e18, -1e19, 3e38]), st.floats(-1e3, 1e3, width=32)
)
NOT_FINITE = st.sampled_from([float("nan"), float("inf"), float("-inf")])


@st.composite
def steps_of_vectors(draw: st.DrawFn, values: st.SearchStrategy[float]) -> tuple[int, list[list[list[Tensor]]]]:
    """Ranks, and for each of 3 steps each rank's vectors."""
    ranks = draw(st.integers(2, 4))
    sizes = draw(st.lists(st.integers(1, 140), min_size=1, max_size=3))
    few = draw(st.lists(values, min_size=1, max_size=12))
    numbers = torch.Generator().manual_seed(draw(st.integers(0, 1000)))

    def vector(size: int) -> Tensor:
        return torch.tensor(few)[torch.randint(0, len(few), (size,), generator=numbers)]

    return ranks, [[[vector(size) for size in sizes] for _ in range(ranks)] for _ in range(3)]


def simulated(steps: list[list[list[Tensor]]]) -> list[list[tuple[Tensor, Errors] | None]]:
    """For each step and vector the mean and the errors; None for a step in which one is not finite."""
    ranks = len(steps[0])
    errors = [no_errors(vector.numel(), ranks) for vector in steps[0][0]]
    seen: list[list[tuple[Tensor, Errors] | None]] = []
    for step in steps:
        results = [averaged([of_rank[n] for of_rank in step], errors[n]) for n in range(len(errors))]
        if all(_finite(result) for result in results):
            errors = [after for _, after in results]
            seen.append([*results])
        else:
            seen.append([None] * len(errors))
    return seen


def _finite(result: tuple[Tensor, Errors]) -> bool:
    mean, errors = result
    return bool(torch.cat([mean, *errors.workers, *errors.servers]).isfinite().all())


def check(ranks: int, steps: list[list[list[Tensor]]], seen: list[Any]) -> None:
    """Assert that the ranks' results are the simulation's, bit by bit; nothing changes where it is not finite."""
    errors: list[Errors] = [no_errors(vector.numel(), ranks) for vector in steps[0][0]]
    for step, expected in enumerate(simulated(steps)):
        for number, result in enumerate(expected):
            if result is not None:
                errors[number] = result[1]
            for rank in range(ranks):
                vectors, workers, servers, done = seen[rank][step]
                assert done is (result is not None)
                mean = steps[step][rank][number] if result is None else result[0]
                assert torch.equal(vectors[number].nan_to_num(7.0), mean.nan_to_num(7.0))
                assert torch.equal(workers[number], errors[number].workers[rank])
                own = errors[number].servers[rank]
                assert torch.equal(servers[number][: own.numel()], own)
                assert not servers[number][own.numel() :].any()


@settings(max_examples=25)  # each is several exchanges of 2 to 4 processes
@given(steps_of_vectors(VALUES))
def test_any_values_are_averaged_as_in_the_simulation(pool: Pool, case: tuple[int, Any]) -> None:
    ranks, steps = case
    check(ranks, steps, pool(ranks, work.average, steps, [None] * len(steps[0][0])))


@given(steps_of_vectors(VALUES), st.data())
def test_what_is_not_finite_is_known_to_all_ranks_and_changes_nothing(
    pool: Pool, case: tuple[int, Any], data: st.DataObject
) -> None:
    ranks, steps = case
    rank = data.draw(st.integers(0, ranks - 1))
    vector = steps[1][rank][data.draw(st.integers(0, len(steps[1][rank]) - 1))]
    vector[data.draw(st.integers(0, vector.numel() - 1))] = data.draw(NOT_FINITE)
    seen = pool(ranks, work.average, steps, [None] * len(steps[0][0]))
    assert [seen[any_rank][1][3] for any_rank in range(ranks)] == [False] * ranks
    check(ranks, steps, seen)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_elements_outside_the_mask_are_zero_and_count_nowhere(ranks: int, pool: Pool) -> None:
    active = torch.arange(200) % 3 != 0
    active[:60] = False  # a whole part of 4 ranks
    steps = [[[work.gradient(1, rank, step, 200)] for rank in range(ranks)] for step in range(4)]
    seen = pool(ranks, work.average, steps, [active])
    errors = no_errors(200, ranks)
    for step in range(4):
        mean, errors = averaged([of_rank[0] for of_rank in steps[step]], errors, active)
        for rank in range(ranks):
            (vector,), (worker,), _, _ = seen[rank][step]
            assert torch.equal(vector, mean)
            assert torch.equal(worker, errors.workers[rank])
            assert not vector[~active].any()
            assert not worker[~active].any()


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("elements", [1, 7, 8, 64, 65, 1000])
def test_a_vector_is_padded_as_predicted(ranks: int, elements: int, pool: Pool) -> None:
    assert ranks * parts(elements, ranks) == compressed_elements(elements, ranks=ranks)
    ((_, _, (server,), _),) = pool(ranks, work.average, [[[torch.ones(elements)]] * ranks], [None])[0]
    assert ranks * server.numel() == compressed_elements(elements, ranks=ranks)


def test_one_rank_alone_keeps_its_vectors(pool: Pool) -> None:
    vector = work.gradient(0, 0, 0, 50)
    (((after,), (worker,), _, done),) = pool(1, work.average, [[[vector]]], [None])[0]
    assert done
    assert torch.equal(after, vector)
    assert not worker.any()
    vector[3] = float("nan")
    assert pool(1, work.average, [[[vector]]], [None])[0][0][3] is False


def test_no_vector_at_all_is_averaged(pool: Pool) -> None:
    assert pool(2, work.average, [[[], []]], []) == [[([], [], [], True)]] * 2


@pytest.mark.parametrize(
    ("vectors", "errors", "words"),
    [
        ([torch.zeros(4)], [], "feedback: allowed one for each of 1 vectors, got 0"),
        ([torch.zeros(4).half()], [(4, 8)], r"vectors\[0\].dtype: allowed torch.float32, got torch.float16"),
        ([torch.zeros(2, 2)], [(4, 8)], r"vectors\[0\].shape: allowed \(4,\), got \(2, 2\)"),
        ([torch.zeros(4)], [(5, 8)], r"worker error of vectors\[0\]: allowed \(4,\), got \(5,\)"),
        (
            [torch.zeros(4), torch.zeros(4)],
            [(4, 8), (5, 8)],
            r"worker error of vectors\[1\]: allowed \(4,\), got \(5,\)",
        ),
        ([torch.zeros(4)], [(4, 4)], r"server error of vectors\[0\]: allowed \(8,\), got \(4,\)"),
    ],
)
def test_other_vectors_are_refused(
    vectors: list[Tensor], errors: list[tuple[int, int]], words: str, pool: Pool
) -> None:
    with pytest.raises(RuntimeError, match=words):
        pool(2, work.average_wrongly, vectors, [(torch.zeros(a), torch.zeros(b)) for a, b in errors])


class OnGpu(Tensor):
    """A tensor of the CPU that says it is one of a GPU, whose kernels are interpreted."""

    is_cuda = True


def on_gpu(values: Tensor) -> Tensor:
    return values.as_subclass(OnGpu)


@pytest.mark.parametrize("elements", [8, 13, 2000])
def test_kernels_of_a_gpu_compress_as_pytorchs_operators_do(elements: int) -> None:
    if not pytest.importorskip("kernels.operator", reason="needs Triton").INTERPRETED:
        pytest.skip("kernels are compiled here, and take no tensor of the CPU")
    value, error = work.gradient(3, 0, 0, elements), work.gradient(3, 1, 0, elements)
    value[:2], error[:2] = -0.0, -0.0  # the sign of their sum is +
    before = value.clone(), error.clone()
    signs, scale, missed = vars(all_reduce._compressed(on_gpu(value), error, None)).values()
    signs_there, scale_there, missed_there = vars(all_reduce._compressed(value, error, None)).values()
    assert torch.equal(signs, signs_there)
    torch.testing.assert_close(scale, scale_there)  # sums in another order
    torch.testing.assert_close(missed, missed_there)
    assert torch.equal(value, before[0])
    assert torch.equal(error, before[1])
    packed, scales = torch.stack([signs, ~signs, signs]), torch.tensor([1.0, 2.0, 4.0])
    mean = all_reduce._mean(on_gpu(packed), scales, elements)
    torch.testing.assert_close(mean, all_reduce._mean(packed, scales, elements))
    assert mean.shape == (elements,)


def test_a_masked_vector_of_a_gpu_is_compressed_by_pytorchs_operators() -> None:
    """The kernel knows no mask."""
    value, active = work.gradient(3, 0, 0, 100), torch.arange(100) % 3 != 0
    ours, theirs = (all_reduce._compressed(each, torch.zeros(100), active) for each in (on_gpu(value), value))
    for one, other in zip(vars(ours).values(), vars(theirs).values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("gpu", "backend", "through_host"), [(True, "gloo", True), (True, "nccl", False), (False, "gloo", False)]
)
def test_messages_of_a_gpu_go_through_the_host_where_the_backend_cannot_read_its_memory(
    gpu: bool, backend: str, through_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "get_backend", lambda _: backend)
    outgoing = on_gpu(torch.arange(8)) if gpu else torch.arange(8)
    incoming = torch.zeros_like(outgoing)
    received = []

    def collective(into: Tensor, given: Tensor, *, group: object) -> None:
        received.append(into)
        into.copy_(given)

    all_reduce._run(collective, incoming, outgoing, None)
    assert torch.equal(incoming, outgoing)
    assert (received[0] is not incoming) is through_host
