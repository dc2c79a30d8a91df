"""A calibration times the range of the miniatures' shapes, and none of those shapes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import miniatures, reference_run
from reference_runs.layout import Layout, parse_layout
from reference_runs.miniature import miniature
from suite.acceptance.presets import EFFORTS
from suite.calibration.calibrate import planned_calibration
from suite.calibration.density import DENSITIES, DTYPES, QUICK_DENSITIES, Scope
from suite.calibration.grids import MOST_ROW_ELEMENTS, axis_points
from suite.calibration.needs import lacking, needs_of
from suite.calibration.plan import LINE, MEMORY_SECONDS, TABLE, Planned, plan, reference_steps
from suite.calibration.plan import counts_at_once as counts
from suite.calibration.shapes import Linear, Shapes, miniature_layouts, shapes
from suite.job.options import StepOptions
from suite.machine import cpu_caches
from suite.machine.gpu import H100, HEAD_DIM_STEP, sdpa_backend
from suite.machine.half_precision import Kernels
from suite.machine.operations import COLLECTIVES
from suite.machine.profile import REPEATED, UNSEEN
from suite.machine.timing_tables import Axis, Line, Subject
from suite.machine.timings import Timing
from suite.predict.simulation.step_time import step_seconds

SCALES = [("cpu", 1), ("cpu", 2), ("cpu", 4), ("cuda", 1), ("cuda", 8)]


@cache
def planned(device: str, ranks: int) -> tuple[Shapes, list[Planned]]:
    scope = Scope(device, ranks, 2, DENSITIES[device])
    return scope.shapes, plan(scope)


def tables(entries: list[Planned], operation: str, variant: str, dtype: str, ranks: int) -> Iterator[tuple[Axis, ...]]:
    for entry in entries:
        s = entry.task.subject
        if entry.kind == TABLE and (s.operation, s.variant, s.dtype, s.ranks) == (operation, variant, dtype, ranks):
            yield entry.axes


def inside(axes: tuple[Axis, ...], sizes: tuple[int, ...]) -> bool:
    return all(axis.points[0] <= size <= axis.points[-1] for axis, size in zip(axes, sizes, strict=True))


def test_one_rank_for_each_core_is_timed_where_there_are_more_ranks() -> None:
    expected = {
        ("cpu", 3, 4): {1, 2, 3, 4},  # of four that share three cores, what three take is asked for
        ("cpu", 6, 8): {1, 2, 4, 6, 8},
        ("cpu", 2, 4): {1, 2, 4},
        ("cpu", 3, 2): {1, 2},
        ("cuda", 3, 4): {1, 2, 4},
    }
    for (device, cores, ranks), at_once in expected.items():
        entries = plan(Scope(device, ranks, cores, DENSITIES[device]))
        assert {one.task.subject.ranks for one in entries if one.task.subject.operation == "product"} == at_once
    assert [counts(ranks) for ranks in (1, 2, 3, 6, 8)] == [(1,), (1, 2), (1, 2, 3), (1, 2, 4, 6), (1, 2, 4, 8)]


ORDERS = {"NT": (0, 1, 2), "NN": (0, 2, 1), "TN": (1, 2, 0)}  # of tokens, outputs, inputs


@pytest.mark.covering(1)
@pytest.mark.parametrize(("device", "ranks"), SCALES)
@pytest.mark.parametrize("name", miniatures())
def test_every_shape_of_every_miniature_lies_inside_a_table_of_each_dtype_and_number_of_ranks(
    name: str, device: str, ranks: int
) -> None:
    _, entries = planned(device, ranks)
    own = [shapes(a, layout) for who, a, layout in miniature_layouts(device, ranks=ranks) if who == name]
    assert own
    for count in counts(ranks):
        for dtype in DTYPES:
            for used in own:
                for variant, order in ORDERS.items():
                    for layer in used.block_layers | used.output_layers:
                        sizes = tuple(layer[place] for place in order)
                        found = [inside(axes, sizes) for axes in tables(entries, "product", variant, dtype, count)]
                        assert any(found), (variant, sizes)
                    for sizes in used.attentions:
                        (axes,) = tables(entries, "batched_product", variant, dtype, count)
                        assert inside(axes, sizes)
                for variant in ("forward", "backward"):
                    for sizes in used.attentions:
                        (axes,) = tables(entries, "attention", variant, dtype, count)
                        assert inside(axes, sizes)
                    for sizes in used.norms:
                        for operation in ("layer_norm", "rms_norm"):
                            (axes,) = tables(entries, operation, variant, dtype, count)
                            assert inside(axes, sizes)
                    for operation, several in (("softmax", used.softmaxes), ("cross_entropy", used.losses)):
                        (axes,) = tables(entries, operation, variant, "fp32", count)
                        last = axes[0].points[-1]
                        # tensors of more than 4 GB are extrapolated by their rows
                        cut = last * axes[1].points[-1] >= MOST_ROW_ELEMENTS
                        assert all(inside(axes, (min(rows, int(last)) if cut else rows, n)) for rows, n in several)
                        assert not cut or device == "cuda"


@pytest.mark.parametrize(("device", "ranks"), SCALES)
def test_no_shape_that_is_timed_is_one_of_a_miniature(device: str, ranks: int) -> None:
    used, entries = planned(device, ranks)
    own = {
        "product": {
            tuple(layer[p] for p in order)
            for layer in used.block_layers | used.output_layers
            for order in ORDERS.values()
        },
        "batched_product": used.attentions,
        "attention": used.attentions,
        "layer_norm": used.norms,
        "rms_norm": used.norms,
        "embedding": used.norms,
        "softmax": used.softmaxes,
        "cross_entropy": used.losses,
    }
    timed = 0
    for entry in entries:
        left_out = own.get(entry.task.subject.operation, {(size,) for size in used.activations | used.parameters})
        assert not left_out & set(entry.task.sizes), entry.task.subject
        timed += len(entry.task.sizes)
    assert timed > 500


@pytest.mark.parametrize(("device", "ranks"), SCALES)
def test_unseen_sizes_lie_inside_a_table_and_are_none_of_its_points_and_repeated_ones_are(
    device: str, ranks: int
) -> None:
    _, entries = planned(device, ranks)
    points = {(entry.task.subject, sizes) for entry in entries if entry.kind == TABLE for sizes in entry.task.sizes}
    ranges = [(entry.task.subject, entry.axes) for entry in entries if entry.kind == TABLE]
    kinds = {UNSEEN: 0, REPEATED: 0}
    for entry in entries:
        if entry.kind in (TABLE, LINE):
            continue
        for sizes in entry.task.sizes:
            kinds[entry.kind] += 1
            assert ((entry.task.subject, sizes) in points) == (entry.kind == REPEATED)
            assert (entry.task.subject, entry.axes) in ranges
            assert inside(entry.axes, sizes)
            in_own = all(size in axis.points for size, axis in zip(sizes, entry.axes, strict=True))
            assert in_own == (entry.kind == REPEATED)
    assert kinds[UNSEEN] > kinds[REPEATED] > 40


def test_the_sizes_of_a_task_are_the_points_of_its_axes_in_the_table_s_order() -> None:
    _, entries = planned("cpu", 1)
    for entry in entries:
        if entry.kind == TABLE:
            expected = 1
            for axis in entry.axes:
                expected *= len(axis.points)
            assert len(entry.task.sizes) == expected
            assert entry.task.sizes[0] == tuple(axis.points[0] for axis in entry.axes)
            assert entry.task.sizes[-1] == tuple(axis.points[-1] for axis in entry.axes)
            assert list(entry.task.sizes) == sorted(entry.task.sizes)


def test_every_collective_is_timed_in_every_group_and_ranks_share_the_cores() -> None:
    _, entries = planned("cpu", 4)
    groups = {
        (e.task.subject.operation, e.task.subject.ranks) for e in entries if e.task.subject.operation in COLLECTIVES
    }
    assert groups == {(name, ranks) for name in COLLECTIVES for ranks in (2, 4)} - {("send", 4)}
    threads = {(e.task.subject.ranks, e.task.threads) for e in entries if e.task.subject.operation not in COLLECTIVES}
    assert threads == {(1, 2), (2, 1), (4, 1)}


@given(st.sets(st.integers(2, 60_000), min_size=1, max_size=12), st.floats(1.5, 20), st.sampled_from([1, 4, 8, 64]))
def test_points_of_an_axis_increase_surround_what_is_used_and_avoid_it(used: set[int], ratio: float, step: int) -> None:
    points = axis_points(used, ratio=ratio, step=step)
    assert list(points) == sorted(set(points))
    assert not used & set(points)
    assert points[0] < min(used) <= max(used) < points[-1]


def test_the_shapes_of_bloom_mini_are_those_of_its_layers() -> None:
    small = miniature(reference_run("bloom-176b"), "cpu", ranks=1)
    a = small.architecture
    sizes = (a.hidden, a.heads, a.head_dim, a.ffn_hidden, a.padded_vocabulary, a.sequence)
    assert sizes == (224, 14, 16, 896, 3920, 64)
    whole = shapes(a, Layout(micro_batch=2))
    assert whole.block_layers == {
        *(Linear(128, 672, 224), Linear(128, 224, 224)),
        *(Linear(128, 896, 224), Linear(128, 224, 896)),
    }
    assert whole.output_layers == {Linear(128, 3920, 224)}
    assert whole.attentions == {(28, 64, 16)}
    assert whole.softmaxes == {(28 * 64, 64)}
    halved = shapes(a, parse_layout("tp2,sp", base=Layout(micro_batch=2)))
    assert halved.block_layers == {
        *(Linear(128, 336, 224), Linear(128, 224, 112)),
        *(Linear(128, 448, 224), Linear(128, 224, 448)),
    }
    assert (halved.output_layers, halved.norms) == ({Linear(128, 1960, 224)}, {(64, 224)})


def test_a_gated_expansion_is_twice_as_wide_and_a_top_query_layer_has_products_of_its_own() -> None:
    glm = miniature(reference_run("glm-130b"), "cpu", ranks=1)
    assert Linear(64, 2 * 512, 192) in shapes(glm.architecture, glm.layout).block_layers
    top = miniature(reference_run("codegeex-13b"), "cpu", ranks=1)
    assert {Linear(512, 160, 160), Linear(512, 320, 160)} <= shapes(top.architecture, top.layout).block_layers


class Asked:
    """A machine that answers what a calibration plans to time, and nothing else."""

    def __init__(self, entries: list[Planned]) -> None:
        self.axes = {entry.task.subject: len(entry.task.sizes[0]) for entry in entries if entry.kind in (TABLE, LINE)}
        self.lines = {entry.task.subject for entry in entries if entry.kind == LINE}

    def seconds(self, subject: Subject, *sizes: float) -> float:
        assert self.axes[subject] == len(sizes), subject
        return 1e-6

    def line(self, subject: Subject) -> Line:
        assert subject in self.lines, subject
        return Line(
            subject=subject,
            unit="call",
            sizes=(1.0,),
            timings=(Timing(1e-6, 1e-6, 1e-6, 1e-6, 1, 0),),
            fixed_seconds=0.0,
            seconds_per_unit=1e-6,
            residual=0.0,
            worst=0.0,
        )


@pytest.mark.covering(1)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("device", "ranks"), [("cpu", 1), ("cpu", 2), ("cuda", 2)])
@pytest.mark.parametrize("name", miniatures())
def test_all_that_the_prediction_of_a_miniatures_time_asks_for_is_timed(
    name: str, device: str, ranks: int, compiled: bool
) -> None:
    _, entries = planned(device, ranks)
    small = miniature(reference_run(miniatures()[name]), device, ranks=ranks)
    (stage,) = step_seconds(
        Asked(entries), small.workload, StepOptions(kernels=Kernels(cuda=device == "cuda"), compiled=compiled)
    )
    assert stage.forward > 0
    assert stage.backward > stage.forward
    assert (stage.communication > 0) == (ranks > 1)
    assert (stage.copy > 0) == (device == "cuda")


def test_copies_of_all_ranks_at_once_move_twice_what_all_caches_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = EFFORTS["quick"].densities["cpu"]
    megabytes = {0: (200, 200), 34_000_000: (200, 200), 150_000_000: (300, 200), 10**9: (2000, 1000)}
    for caches, moved in megabytes.items():
        monkeypatch.setattr(cpu_caches, "all_bytes", lambda caches=caches: caches)
        for density, least in ((None, 200_000_000), (quick, quick.memory_bytes)):
            asked = planned_calibration(tmp_path, ranks=2, device="cpu", density=density)
            copies = {t.subject.ranks: t.sizes for one in asked.planned if (t := one.task).subject.operation == "copy"}
            assert all(sizes[:2] == ((least // 256,), (least // 16,)) for sizes in copies.values())
            if density is None:
                assert tuple(copies[ranks][2][0] // 10**6 for ranks in (1, 2)) == moved


def test_large_products_are_timed_on_all_gpus_at_once_and_copies_by_all_ranks_for_longer_than_a_slow_phase() -> None:
    for device, ranks in SCALES:
        _, entries = planned(device, ranks)
        squares = [entry for entry in entries if entry.task.subject.operation == "square_product"]
        assert [entry.task.subject.ranks for entry in squares] == ([ranks] if device == "cuda" else [])
        for entry in squares:
            assert (entry.kind, entry.unit, entry.task.subject.dtype) == (LINE, "flop", "bf16")
            assert entry.task.sizes == ((2 * 4096**3,), (2 * 8192**3,))
        longer = {
            (entry.task.subject.operation, entry.task.subject.ranks): entry.task.point_seconds
            for entry in entries
            if entry.kind == TABLE and entry.task.point_seconds != DENSITIES[device].point_seconds
        }
        assert longer == {("copy", ranks): MEMORY_SECONDS, ("triad", ranks): MEMORY_SECONDS}


def test_reference_steps_are_of_one_rank_and_of_all_that_have_a_core_and_compiled_of_these() -> None:
    """Their operators are timed by as many ranks as train them."""
    expected: dict[tuple[str, int, int], list[tuple[int, bool, int]]] = {
        ("cpu", 2, 1): [(1, False, 2), (1, True, 2)],
        ("cpu", 2, 2): [(1, False, 2), (2, False, 1), (2, True, 1)],
        ("cpu", 8, 4): [(1, False, 8), (4, False, 2), (4, True, 2)],
        ("cpu", 3, 8): [(1, False, 3), (3, False, 1), (3, True, 1)],  # ranks that take turns: as one for each core
        ("cuda", 16, 2): [],
    }
    for (device, cores, ranks), found in expected.items():
        scope = Scope(device, ranks, cores, DENSITIES[device])
        steps = reference_steps(scope)
        assert [(one.layout.ranks, one.compiled, one.threads) for one in steps] == found
        quick = reference_steps(scope._replace(density=EFFORTS["quick"].densities["cpu"]))
        eager = [entry for entry in found if not entry[1]]
        assert [(one.layout.ranks, one.compiled, one.threads) for one in quick] == eager
        assert reference_steps(scope._replace(density=scope.density._replace(dtypes=("fp32", "fp16")))) == []
        entries = plan(scope) if steps else []
        for one in steps:
            (stage,) = step_seconds(Asked(entries), one.workload, StepOptions(compiled=one.compiled))
            assert stage.step > 0


ATTENTION = ("attention", "batched_product")


def test_on_a_gpu_all_head_sizes_of_attention_are_those_of_one_kernel_and_none_is_padded() -> None:
    gpus = (H100, H100._replace(cudnn=91002), H100._replace(capability=(8, 0)))
    for densities in (DENSITIES, QUICK_DENSITIES):
        entries = plan(Scope("cuda", 2, 2, densities["cuda"]))
        for dtype in DTYPES:
            timed = {
                sizes[2]
                for entry in entries
                if entry.task.subject.operation in ATTENTION and entry.task.subject.dtype == dtype
                for sizes in entry.task.sizes
            }
            assert (len(timed) > 2) == (dtype in densities["cuda"].dtypes)
            assert all(size % HEAD_DIM_STEP == 0 for size in timed)
            for gpu in gpus if timed else ():
                assert len({sdpa_backend(gpu, half=dtype != "fp32", head_dim=size) for size in timed}) == 1


def test_a_partial_calibration_around_a_gpu_s_head_size_pads_none_either() -> None:
    small = miniature(reference_run(miniatures()["gpt2-mini"]), "cuda", ranks=1)
    fused = small.workload._replace(layout=msgspec.structs.replace(small.layout, fused_attention=True))
    options = StepOptions(kernels=Kernels(cuda=True))
    needs = needs_of(lambda times: step_seconds(times, fused, options), device="cuda", ranks=1, compiled=False)
    calibration = lacking(needs, None)
    assert calibration is not None
    timed = {
        sizes[2]
        for entry in calibration.planned
        if entry.task.subject.operation == "attention"
        for sizes in entry.task.sizes
    }
    assert timed
    assert all(size % HEAD_DIM_STEP == 0 for size in timed)
