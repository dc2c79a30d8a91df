"""Findings of the micro-measurements about each rank's products and memory."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.accelerator import known_gpu
from suite.acceptance.judge.expected_rates import UpperLimit
from suite.acceptance.judge.rates import (
    BY_TURNS,
    OF_ALL,
    PRODUCTS_BY_TURNS,
    exchange_findings,
    judged_rank,
    micro_findings,
)
from suite.acceptance.machine_rates import part_rates, product_points
from suite.acceptance.presets import EFFORTS
from suite.calibration.density import Scope
from suite.calibration.plan import LINE, TABLE, Planned, plan
from suite.job.calibration_job import Task, TimedTask
from suite.machine.timing_tables import Subject
from suite.machine.timings import Repetitions
from tests.support.batteries import NOTHING, history_of, micro, moments, probing
from tests.support.batteries import exchange as made_up_exchange
from tests.support.profiles import profile as machine


def entry(operation, sizes, *, ranks=2, kind=TABLE, dtype="bf16"):
    subject = Subject(operation=operation, dtype=dtype, ranks=ranks)
    return Planned(kind, Task(subject=subject, threads=1, sizes=sizes, point_seconds=0.0))


def round_of(task, *seconds):
    """One round of a task: seconds of each point, repeated thrice."""
    return TimedTask(task, 0, tuple(Repetitions((one, one, 9 * one), 0) for one in seconds), 0.0)


def test_the_best_shape_of_all_ranks_at_once_counts_and_the_largest_copy():
    planned = [
        entry("product", ((10, 10, 10), (20, 20, 20))),
        entry("product", ((99, 99, 99),), ranks=1),
        entry("product", ((99, 99, 99),), dtype="fp32"),
        entry("copy", ((100,), (800,)), dtype="fp32"),
        entry("triad", ((100,), (900,)), dtype="fp32"),
    ]
    points = {(rank, task): [round_of(task, *([1.0 + rank] * 2))] for rank in (0, 1) for task in range(5)}
    assert part_rates(planned, points, 2) == ([16000.0, 8000.0], [800.0, 400.0], [900.0, 450.0])


def test_a_finer_grid_has_more_points_of_products_on_all_ranks():
    """Quick calibrations have fewer than those of `accept`: 3 transpositions of 1 point, not of 2 * 2 * 2."""
    tables = [
        msgspec.structs.replace(table, subject=msgspec.structs.replace(table.subject, dtype="bf16"))
        for table in machine().tables
    ]
    found = msgspec.structs.replace(machine(), tables=tables)
    assert product_points(found) == 24
    coarse = [msgspec.structs.replace(table, timings=table.timings[:1]) for table in tables]
    assert product_points(msgspec.structs.replace(found, tables=coarse)) == 3


def test_copies_and_triads_move_as_many_bytes_in_every_profile():
    for device in ("cpu", "cuda"):
        assert len({one.densities[device].memory_bytes for one in EFFORTS.values()}) == 1


def test_large_square_products_count_where_every_rank_timed_them():
    planned = [entry("product", ((10, 10, 10),)), entry("square_product", ((5000,), (90000,)), kind=LINE)]
    points = {(rank, task): [round_of(task, *([2.0] * (1 + task)))] for rank in (0, 1) for task in (0, 1)}
    assert part_rates(planned, points, 2)[0] == [45000.0, 45000.0]
    del points[1, 1]
    assert part_rates(planned, points, 2)[0] == [1000.0, 1000.0]


@pytest.mark.parametrize("profile", ["quick", "accept"])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_the_plan_of_a_gpu_node_has_what_checks_1_and_3_compare_with_data_sheets(ranks, profile):
    planned = plan(Scope("cuda", ranks, 16, EFFORTS[profile].densities["cuda"]))
    points = {
        (rank, number): [round_of(number, *([1e-3] * len(one.task.sizes)))]
        for number, one in enumerate(planned)
        for rank in range(one.task.subject.ranks)
    }
    matrix, copy, triad = part_rates(planned, points, ranks)
    assert matrix == pytest.approx([2 * 8192**3 / 1e-3] * ranks)
    assert copy == triad == pytest.approx([8e12] * ranks, rel=0.01)


def exchange(rank, peer, gigabytes, **changes):
    return made_up_exchange(rank, peer, gigabytes * 1e9, **({"bytes": 2**20} | changes))


def exchanged(*exchanges, history=NOTHING, gpu=None, gpus=0):
    return {one.subject: one for one in exchange_findings(probing(exchanges=[*exchanges]), history, gpu, gpus)}


def test_pairs_are_held_to_their_median_from_three_on_each_in_one_direction():
    slow = {(0, 1): 10.0, (0, 2): 10.2, (1, 2): 9.0}
    messages = [exchange(a, b, rate) for (a, b), rate in slow.items()] + [exchange(b, a, 1.0) for a, b in slow]
    found = exchanged(*messages, gpu=known_gpu("NVIDIA A100-SXM4-80GB"), gpus=4)
    assert [found[f"link {a}-{b}"].verdict for a, b in slow] == ["PASS", "PASS", "FAIL"]
    worst = found["link 1-2"]
    assert (worst.check, worst.ratio, worst.part, worst.source) == (5, 0.9, "link 1-2", "median of 3 pairs")
    assert worst.compared_as == "link 1-2, messages of 1048576 byte"
    assert (worst.warn, worst.fail) == (0.97, 0.93)
    assert set(found) == {"link 0-1", "link 0-2", "link 1-2", "messages to the bit", "sums to the bit"}
    two = exchanged(exchange(0, 1, 10.0), exchange(0, 2, 1.0))
    assert {two[f"link 0-{peer}"].verdict for peer in (1, 2)} == {"NOT RUN"}


V100_WITH_LINKS = {(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 5), (2, 3), (2, 6), (3, 7)}
V100_WITH_LINKS |= {(4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7)}


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-32GB", "NVIDIA L40S", "NVIDIA H100 PCIe", ""])
def test_pairs_that_good_machines_join_by_other_links_only_warn(name):
    """A DGX-1's 12 pairs without a link of their own exchange over PCIe; a CPU's ranks within sockets and between."""
    pairs = [(a, b) for a in range(8) for b in range(a + 1, 8)]
    assert len(pairs) - len(V100_WITH_LINKS) == 12
    messages = [exchange(a, b, 24.0 if (a, b) in V100_WITH_LINKS else 8.0) for a, b in pairs]
    gpu = known_gpu(name) if name else None
    assert bool(name) is (gpu is not None)
    found = exchanged(*messages, gpu=gpu, gpus=8 if gpu else 0)
    assert {found[f"link {a}-{b}"].verdict for a, b in pairs if (a, b) not in V100_WITH_LINKS} == {"WARN"}
    assert found["link 0-5"].part == "link 0-5"


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("algorithm", ["", "ring"])
def test_the_bus_bandwidth_of_an_all_reduce_is_of_its_slowest_rank(ranks, algorithm):
    sums = [exchange(rank, None, 5.0 - rank, algorithm=algorithm) for rank in range(ranks)]
    name = f"busbw of {ranks} ranks" + (", ring" if algorithm else "")
    past = history_of(past={f"6:{name}, messages of 1048576 byte": [1.0, 1.0, 1.0]})
    found = exchanged(*sums, history=past)[name]
    assert found.measured == pytest.approx((6.0 - ranks) * 1e9 * 2 * (ranks - 1) / ranks)
    assert (found.check, found.compared_as) == (6, f"{name}, messages of 1048576 byte")
    slow = history_of(past={f"6:{name}, messages of 1048576 byte": [1e12] * 3})
    assert exchanged(*sums, history=slow)[name].part == ("link 0-1" if ranks == 2 else f"links between {ranks} ranks")


def test_each_algorithm_has_a_finding_and_what_the_library_refused_says_why():
    ring = [exchange(rank, None, 4.0, algorithm="ring") for rank in (0, 1)]
    refused = [exchange(rank, None, 0.0, algorithm="nvls", first="no multicast") for rank in (0, 1)]
    found = exchanged(*refused, *ring)
    assert [name for name in found if name.startswith("busbw")] == ["busbw of 2 ranks, nvls", "busbw of 2 ranks, ring"]
    assert found["busbw of 2 ranks, ring"].measured == 4e9
    none = found["busbw of 2 ranks, nvls"]
    assert (none.verdict, none.evidence, none.part) == ("NOT RUN", "no multicast", "")


def test_what_the_library_refuses_on_a_good_gpu_was_measured_at_nothing():
    refused = [exchange(rank, None, 0.0, algorithm="nvls", first="no multicast") for rank in range(8)]
    found = exchange_findings(probing(exchanges=refused), NOTHING, known_gpu("NVIDIA H200"), 8)
    (nvls,) = (one for one in found if "nvls" in one.subject)
    assert (nvls.measured, nvls.verdict) == (0.0, "WARN")
    assert (nvls.check, nvls.part) == (6, "all-reduce, nvls: fabric manager, multicast, or driver")
    usual = [exchange(rank, None, 1.0, algorithm="nvls") for rank in range(8)]
    (slow,) = (
        one
        for one in exchange_findings(probing(exchanges=usual), NOTHING, known_gpu("NVIDIA H200"), 8)
        if "nvls" in one.subject
    )
    assert (nvls.expected, nvls.source, nvls.unit) == (slow.expected, slow.source, slow.unit)


def test_an_all_to_all_is_of_its_slowest_rank_and_lists_all():
    at_once = [exchange(rank, None, rate, operation="all-to-all") for rank, rate in enumerate((5.5, 3.0, 4.0))]
    past = history_of(past={"5:all-to-all of 3 ranks, messages of 1048576 byte": [6e9] * 3})
    both = exchanged(*at_once, *(exchange(rank, None, 4.0) for rank in range(3)), history=past)
    assert both["busbw of 3 ranks"].measured == pytest.approx(4e9 * 4 / 3)
    found = both["all-to-all of 3 ranks"]
    assert (found.check, found.measured, found.part) == (5, 3e9, "links of rank 1")
    assert found.evidence.startswith("rank 0 5.5 GB/s, rank 1 3 GB/s, rank 2 4 GB/s")
    assert "all-to-all" not in " ".join(exchanged(exchange(0, 1, 1.0)))


def test_wrong_contents_name_the_link_they_came_over_or_the_rank_of_the_sum():
    messages = [exchange(rank, 1 - rank, 1.0, wrong=rank, first="element 7") for rank in (0, 1)]
    sums = [exchange(rank, None, 1.0, wrong=3 - rank, first=f"element {rank}") for rank in range(6)]
    found = exchanged(*messages, *sums)
    bits, exact = found["messages to the bit"], found["sums to the bit"]
    assert (bits.check, bits.verdict, bits.part) == (5, "FAIL", "link 0-1")
    assert bits.expected == exact.expected == 0
    assert (bits.measured, bits.evidence, bits.source) == (1.0, "rank 1: 1 wrong, element 7", "what was sent")
    assert (exact.check, exact.part, exact.source) == (6, "rank 0, rank 1, rank 2, rank 4, rank 5", "the exact sum")
    assert exact.evidence.count("; ") == 3  # the first four
    good = exchanged(exchange(0, 1, 1.0), exchange(1, 0, 1.0))["messages to the bit"]
    assert (good.verdict, good.measured, good.evidence, good.part) == ("PASS", 0.0, "2 exchanges", "")


def measured(**changes):
    return {(one.check, one.subject): one for one in micro_findings(micro(**changes), NOTHING)}


def test_the_spread_is_of_the_slowest_rank_to_the_median():
    found = measured(matrix=[9e10, 8e10, 9.5e10])[2, "matrix rate"]
    assert (found.ratio, found.part, found.verdict) == (8 / 9, "matrix rate of rank 1", "FAIL")
    assert (found.evidence, found.source) == ("Gflop/s: rank 0 90.0, rank 1 80.0, rank 2 95.0", "median of the ranks")
    alone = measured(matrix=[9e10])
    assert alone[2, ""].verdict == "NOT RUN"


@pytest.mark.parametrize(("slower", "verdict"), [(1.02, "PASS"), (1.05, "WARN"), (1.1, "FAIL")])
@pytest.mark.parametrize("ranks", [2, 4])
def test_by_turns_a_rank_is_compared_with_the_others_alone(ranks, slower, verdict):
    """With two ranks the other one is the reference: a median of both would hide half of it."""
    of_ranks = [moments() for _ in range(ranks - 1)]
    of_ranks.insert(1, moments(slower=slower))
    speed = f"{1 / slower:.3f}"
    kernels = f"host {speed}, product {speed}, elementwise {speed}, memory 1.000, 16-bit products {speed}"
    for subject, part in ((BY_TURNS, "processor of rank 1"), (PRODUCTS_BY_TURNS, "16-bit products of rank 1")):
        found = measured(moments=of_ranks)[2, subject]
        assert (found.verdict, found.ratio) == (verdict, pytest.approx(1 / slower))
        assert found.part == ("" if verdict == "PASS" else part)
        assert found.evidence == f"rank 1: {kernels}; 40 turns"


def test_slow_16_bit_products_alone_are_another_part_than_the_processor():
    found = measured(moments=[moments(), moments(product=2e-4)])
    assert (found[2, BY_TURNS].verdict, found[2, BY_TURNS].ratio) == ("PASS", 1.0)
    products = found[2, PRODUCTS_BY_TURNS]
    assert (products.verdict, products.ratio, products.part) == ("FAIL", 0.5, "16-bit products of rank 1")
    assert (2, PRODUCTS_BY_TURNS) not in measured(moments=[moments(), moments(product=None)])
    assert [name for name in (*measured(), *measured(moments=[moments()])) if name == (2, BY_TURNS)] == []


def test_by_turns_one_odd_kernel_and_waiting_for_memory_make_no_rank_slow():
    usual, odd = moments(), moments(memory=1.5)
    odd = msgspec.structs.replace(odd, fastest=msgspec.structs.replace(odd.fastest, elementwise=4e-5))
    found = measured(moments=[usual, odd])[2, BY_TURNS]
    assert (found.verdict, found.ratio) == ("PASS", 1.0)


def test_ranks_on_processors_of_different_clocks_are_not_compared():
    slow = [moments(highest_hertz=3.7e9), moments(highest_hertz=2.8e9, slower=1.3)]
    found = measured(moments=slow)
    assert found[2, BY_TURNS].verdict == "NOT RUN"
    assert found[2, BY_TURNS].evidence == "ranks have processors of different clocks, 2.80 to 3.70 GHz"
    assert (2, PRODUCTS_BY_TURNS) not in found
    near = [moments(highest_hertz=3.7e9, processor=0), moments(highest_hertz=3.6e9, processor=2, slower=1.1)]
    found = measured(moments=near)[2, BY_TURNS]
    assert found.verdict == "FAIL"
    assert found.evidence.endswith("; 40 turns on processor 2")


def test_memory_of_all_ranks_is_one_mean_of_moments_where_there_are_some():
    first = measured(copy=[1e10, 4e10], triad=[1e10, 4e10])[3, OF_ALL]
    assert (first.measured, first.compared_as) == (pytest.approx(2e10), OF_ALL)
    rates = [moments(copy=(1e10, 2e10, 9e10), triad=(2e10,)), moments(copy=(8e10,), triad=(8e10,))]
    at_moments = measured(moments=rates)[3, OF_ALL]
    assert (at_moments.measured, at_moments.compared_as) == (pytest.approx(4e10), f"{OF_ALL}, at several moments")
    past = history_of(past={f"3:{OF_ALL}, at several moments": [6e10] * 3})
    slow = {(one.check, one.subject): one for one in micro_findings(micro(moments=rates), past)}[3, OF_ALL]
    assert (slow.verdict, slow.part) == ("FAIL", "memory bandwidth")
    assert (3, OF_ALL) not in measured(host_device={"to device": 1e10})  # each GPU has its own


def test_each_rate_is_of_its_slowest_rank_and_named():
    found = measured(copy=[2e10, 1e10], triad=[1e10, 3e10], matrix=[9e10, 6e10], points=27)
    assert [found[3, name].measured for name in ("copy", "triad")] == [1e10, 1e10]
    assert found[1, "slowest rank"].measured == 6e10
    assert (found[1, "slowest rank"].part, found[1, "slowest rank"].compared_as) == (
        "matrix rate of rank 1",
        "slowest rank, 27 shapes timed",
    )
    assert found[4, ""].evidence == "no GPU"
    past = history_of(past={"3:copy": [4e10] * 3})
    slow = {(one.check, one.subject): one for one in micro_findings(micro(copy=[2e10, 1e10]), past)}[3, "copy"]
    assert slow.part == "memory bandwidth (rank 1 slowest)"


def test_a_host_link_says_to_which_numa_nodes_its_ranks_were_bound():
    found = measured(host_device={"to device": 1e10, "to host": 2e10}, numa_nodes=["0", "1", "0", "not bound"])
    for direction, rate in (("to device", 1e10), ("to host", 2e10)):
        one = found[4, direction]
        assert one.measured == rate
        assert one.evidence.startswith("rank 0 2: NUMA node 0; rank 1: NUMA node 1; rank 3: not bound")


def test_wrong_products_fail_and_four_of_them_are_named():
    found = measured(wrong_products=["a", "b", "c", "d", "e"])[1, "products to the bit"]
    assert (found.verdict, found.measured, found.expected, found.evidence) == ("FAIL", 5.0, 0.0, "a; b; c; d")
    assert (1, "products to the bit") not in measured()


def test_the_rank_that_is_judged_is_the_slowest_or_one_that_is_faster_than_can_be():
    assert judged_rank([3.0, 1.0, 2.0], None) == 1
    assert judged_rank([3.0, 1.0, 2.0], UpperLimit(3.0, "s")) == 1
    assert judged_rank([3.0, 1.0, 3.5], UpperLimit(3.0, "s")) == 2
    assert judged_rank([3.0, 1.0, 2.0], UpperLimit(9.0, "s")) == 1
