"""Checks 1 to 6: rates of ranks, memory and links against the rates expected of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from reference_runs.accelerator import Accelerator
from reference_runs.floors import Algorithm, FloorQuantity
from suite.acceptance.check_table import ALL_REDUCE, CHECKS, HOST_DEVICE, MATRIX, MEMORY, PEER, SPREAD
from suite.acceptance.evidence import ALL_TO_ALL, Exchange, MicroMeasurements, ProbeResult
from suite.acceptance.findings import TO_THE_BIT, failed_measurement, not_run
from suite.acceptance.judge import data_sheet
from suite.acceptance.judge.expected_rates import ExpectedRate, UpperLimit, from_peak, limited, rate_finding
from suite.acceptance.judge.floors import floor_rates, without_floor
from suite.acceptance.past_batteries import History
from suite.job.calibration_job import RankMoments
from suite.job.events import Status
from suite.machine.cpu_speed import ELEMENTWISE, PRODUCT
from suite.records.battery import CheckFinding, CheckVerdict

PAIRS_FOR_A_MEDIAN = 3
COMPUTING = ("host", PRODUCT, ELEMENTWISE)  # reference kernels that do not wait for memory
BY_TURNS = "each rank alone, by turns"
PRODUCTS = "16-bit products"
PRODUCTS_BY_TURNS = f"{PRODUCTS} of each rank alone, by turns"
OF_ALL = "copy and triad of all ranks"
BY_SWITCH = "nvls"


def micro_findings(micro: MicroMeasurements, history: History, gpu: Accelerator | None = None) -> list[CheckFinding]:
    """Checks 1 to 4, from the micro-measurements.

    Args:
        gpu: the model of the node's GPUs, where it is known.
    """
    if micro.status is not Status.OK:
        return [failed_measurement(number, micro) for number in (MATRIX, SPREAD, MEMORY)]
    on_gpu = gpu is not None or bool(micro.host_device)
    findings = [
        _slowest_rank(micro, history, gpu, on_gpu=on_gpu),
        *_wrong_products(micro),
        _spread(micro.matrix, "matrix rate", "matrix rate", "Gflop/s", 1),
        *_by_turns(micro),
    ]
    for operation, rates in (("copy", micro.copy), ("triad", micro.triad)):
        most = data_sheet.upper_limit(gpu, operation)
        rank = judged_rank(rates, most)
        part = f"memory bandwidth (rank {rank} slowest)"
        expected = floor_rates(gpu, CHECKS[MEMORY], FloorQuantity.COPY)
        without = without_floor(gpu, "copy or triad") if on_gpu else ""
        findings.append(
            rate_finding(CHECKS[MEMORY], operation, rates[rank], history, part, expected, most=most, without=without)
        )
    if not on_gpu:
        findings.append(_memory_of_all(micro, history))
    elif len(micro.copy) > 1:
        findings.append(_spread(micro.copy, "memory copy", "memory bandwidth", "GB/s", 0))
    if not micro.host_device:
        findings.append(not_run(HOST_DEVICE, "no GPU"))
    for direction, rate in micro.host_device.items():
        part, expected = f"host link, {direction}", data_sheet.expected(gpu, "host link")
        most = data_sheet.upper_limit(gpu, "host link")
        bound = _where_bound(micro.numa_nodes)
        findings.append(rate_finding(CHECKS[HOST_DEVICE], direction, rate, history, part, expected, bound, most=most))
    return findings


def _where_bound(numa_nodes: Sequence[str]) -> str:
    """To which NUMA nodes ranks were bound, and why some were not: from the far node a host link is slower."""
    ranks_of: dict[str, list[str]] = {}
    for rank, node in enumerate(numa_nodes):
        ranks_of.setdefault(f"NUMA node {node}" if node.isdecimal() else node, []).append(str(rank))
    return "; ".join(f"rank {' '.join(ranks)}: {node}" for node, ranks in ranks_of.items())


def judged_rank(rates: Sequence[float], most: UpperLimit | None) -> int:
    """The rank with the highest rate, if that is more than can be; otherwise the slowest."""
    highest = max(rates)
    return rates.index(highest if most is not None and highest > most.value else min(rates))


def _slowest_rank(micro: MicroMeasurements, history: History, gpu: Accelerator | None, *, on_gpu: bool) -> CheckFinding:
    most = data_sheet.upper_limit(gpu, "product")
    rank = judged_rank(micro.matrix, most)
    expected = floor_rates(gpu, CHECKS[MATRIX], FloorQuantity.BF16_GEMM)
    if micro.peak is not None and not on_gpu:
        expected.append(from_peak(micro.peak, micro.peak_source))
    return rate_finding(
        CHECKS[MATRIX],
        "slowest rank",
        micro.matrix[rank],
        history,
        f"matrix rate of rank {rank}",
        expected,
        compared_as=f"slowest rank, {micro.points} shapes timed",
        most=most,
        without=without_floor(gpu, "16-bit GEMM rate") if on_gpu else "",
    )


def _wrong_products(micro: MicroMeasurements) -> list[CheckFinding]:
    """One finding where a verified product was wrong."""
    if not micro.wrong_products:
        return []
    return [
        CheckFinding(
            check=MATRIX,
            subject=f"products {TO_THE_BIT}",
            verdict=CheckVerdict.FAIL,
            measured=float(len(micro.wrong_products)),
            expected=0.0,
            source="known products",
            part="arithmetic or memory",
            evidence="; ".join(micro.wrong_products[:4]),
        )
    ]


def needs_launches(finding: CheckFinding, *, virtual: bool) -> bool:
    """Whether launches say if the rank of a failed finding counts as slow: one rank of a virtual machine.

    Turns need them too: what another guest does on the same core can last as long as all turns.
    """
    return virtual and finding.check == SPREAD


def _spread(rates: Sequence[float], subject: str, part: str, unit: str, decimals: int) -> CheckFinding:
    """Check 2 of ranks that work at once, each with a device of its own: the slowest against the median.

    GPUs' copies are compared too: each has memory of its own, so that the others say what is good without any floor.
    """
    if len(rates) < 2:
        return not_run(SPREAD, "one rank has nothing to be compared with")
    slowest = rates.index(min(rates))
    return limited(
        CHECKS[SPREAD],
        subject,
        rates[slowest] / statistics.median(rates),
        part=f"{part} of rank {slowest}",
        source="median of the ranks",
        evidence=f"{unit}: " + ", ".join(f"rank {rank} {rate / 1e9:,.{decimals}f}" for rank, rate in enumerate(rates)),
    )


def _by_turns(micro: MicroMeasurements) -> list[CheckFinding]:
    """Check 2 of a CPU's ranks that took turns: none where they did not, or where there is one rank.

    Speed of a rank: others' median seconds of a kernel over its own. Of the processor it is the median over the three
    reference kernels that compute: a slow processor slows all of them down. 16-bit products have a unit of their own.
    Ranks that compute at once disturb each other, and not always equally: here the others wait.
    """
    if len(micro.moments) < 2:
        return []
    clocks = [of_rank.highest_hertz for of_rank in micro.moments if of_rank.highest_hertz]
    warn = CHECKS[SPREAD].warn
    assert warn is not None
    if clocks and min(clocks) < warn * max(clocks):
        why = f"ranks have processors of different clocks, {min(clocks) / 1e9:.2f} to {max(clocks) / 1e9:.2f} GHz"
        return [not_run(SPREAD, why, BY_TURNS)]
    speeds = [speeds_by_turns(micro.moments, rank) for rank in range(len(micro.moments))]
    findings = []
    for subject, part, kernels in ((BY_TURNS, "processor", COMPUTING), (PRODUCTS_BY_TURNS, PRODUCTS, (PRODUCTS,))):
        if any(kernel not in speeds[0] for kernel in kernels):
            continue
        middle = [statistics.median(of_rank[kernel] for kernel in kernels) for of_rank in speeds]
        slowest = middle.index(min(middle))
        words = ", ".join(f"{name} {speed:.3f}" for name, speed in speeds[slowest].items())
        findings.append(
            limited(
                CHECKS[SPREAD],
                subject,
                middle[slowest],
                part=f"{part} of rank {slowest}",
                source="median of the other ranks",
                evidence=f"rank {slowest}: {words}; {_turns_of(micro.moments[slowest])}",
            )
        )
    return findings


def _turns_of(of_rank: RankMoments) -> str:
    return f"{of_rank.turns} turns" + ("" if of_rank.processor is None else f" on processor {of_rank.processor}")


def speeds_by_turns(moments: Sequence[RankMoments], rank: int) -> dict[str, float]:
    """By kernel, the speed of a rank: 1 is that of the others."""
    fastest = [msgspec.structs.asdict(of_rank.fastest) for of_rank in moments]
    if all(of_rank.product for of_rank in moments):
        fastest = [sample | {PRODUCTS: of_rank.product} for sample, of_rank in zip(fastest, moments, strict=True)]
    own = fastest.pop(rank)
    return {name: statistics.median(other[name] for other in fastest) / seconds for name, seconds in own.items()}


def rates_at_moments(moments: Sequence[RankMoments], rank: int, operation: str) -> float:
    """Median rate of a rank's copies or triads at several moments, over the median of the others' at the same moments.

    1 where there is no other rank, or where there were no moments.
    """
    medians = [statistics.median(getattr(of_rank, operation)) for of_rank in moments if getattr(of_rank, operation)]
    if len(medians) < 2 or len(medians) < len(moments):
        return 1.0
    own = medians.pop(rank)
    share: float = own / statistics.median(medians)
    return share


def _memory_of_all(micro: MicroMeasurements, history: History) -> CheckFinding:
    """The memory of a CPU, which all ranks share: the geometric mean over ranks, copies and triads.

    Each of these has a spread of its own; their mean has less, so that less is found. At several moments it has least.
    """
    rates = [*micro.copy, *micro.triad]
    at = ""
    if micro.moments and all(rank.copy and rank.triad for rank in micro.moments):
        rates = [statistics.median(moments) for rank in micro.moments for moments in (rank.copy, rank.triad)]
        at = ", at several moments"
    mean = statistics.geometric_mean(rates)
    return rate_finding(CHECKS[MEMORY], OF_ALL, mean, history, "memory bandwidth", [], compared_as=OF_ALL + at)


def exchange_findings(
    probe: ProbeResult, history: History, gpu: Accelerator | None = None, gpus: int = 0
) -> list[CheckFinding]:
    """Checks 5 and 6: messages between two ranks and all-reduces of all, their rates and every bit that arrived.

    Of a probe that did not end well, what had finished before is judged too.

    Args:
        gpu: the model of the node's GPUs, where it is known; `gpus` their number, 0 of a CPU's ranks.
    """
    failed: list[CheckFinding] = []
    if not probe.has("exchanges"):
        pairs_ended = probe.has("messages") and probe.has("all-to-all")
        failed = [
            failed_measurement(number, probe) for number in (PEER, ALL_REDUCE) if number != PEER or not pairs_ended
        ]
    if failed and not probe.exchanges:
        return failed
    if not probe.exchanges:
        return [not_run(number, "one rank has nobody to exchange with") for number in (PEER, ALL_REDUCE)]
    messages = [exchange for exchange in probe.exchanges if exchange.peer is not None]
    of_all = [exchange for exchange in probe.exchanges if exchange.peer is None]
    sums = [exchange for exchange in of_all if exchange.operation != ALL_TO_ALL]
    at_once = [exchange for exchange in of_all if exchange.operation == ALL_TO_ALL]
    ended = probe.has("exchanges")
    return [
        *failed,
        *_pairs(messages, history, gpu, gpus),
        *(_all_to_all(at_once, history, gpu, gpus) if ended or probe.has("all-to-all") else ()),
        *(_all_reduces(sums, history, gpu, on_gpu=gpus > 0) if ended else ()),
        *([_contents(PEER, "messages", [*messages, *at_once])] if ended or messages else []),
        *([_contents(ALL_REDUCE, "sums", sums)] if ended or sums else []),
    ]


def _size(exchanges: Sequence[Exchange]) -> str:
    return f"messages of {exchanges[0].bytes} byte"


def _pairs(messages: Sequence[Exchange], history: History, gpu: Accelerator | None, gpus: int) -> list[CheckFinding]:
    """Check 5 of every pair of ranks.

    Below the median of the pairs one fails where the board joins all pairs alike. Otherwise it warns: on a V100's board
    12 of 28 pairs have no link of their own, PCIe cards are attached to different switches and sockets, and ranks of a
    CPU exchange within a socket or between two.
    """
    pairs = {(message.rank, message.peer): message.bytes_per_second for message in messages}
    rates = {(rank, peer): rate for (rank, peer), rate in pairs.items() if peer is not None and rank < peer}
    of_pairs = data_sheet.expected(gpu, "pair", gpus)
    if len(rates) >= PAIRS_FOR_A_MEDIAN:
        median = statistics.median(rates.values())
        fail = CHECKS[PEER].fail if gpu is not None and gpu.board.joins_pairs_alike else None
        of_pairs.insert(0, ExpectedRate(value=median, source=f"median of {len(rates)} pairs", warn=0.97, fail=fail))
    findings = []
    for (rank, peer), rate in rates.items():
        link = f"link {rank}-{peer}"
        findings.append(
            rate_finding(
                CHECKS[PEER],
                link,
                rate,
                history,
                link,
                of_pairs,
                compared_as=f"{link}, {_size(messages)}",
                most=data_sheet.upper_limit(gpu, "pair"),
            )
        )
    return findings


def _all_to_all(
    exchanges: Sequence[Exchange], history: History, gpu: Accelerator | None, gpus: int
) -> list[CheckFinding]:
    """Check 5 while every rank sends to every other one: the slowest rank."""
    if not exchanges:
        return []
    most = data_sheet.upper_limit(gpu, "all-to-all")
    rates = [exchange.bytes_per_second for exchange in exchanges]
    slowest = exchanges[judged_rank(rates, most)]
    subject = f"all-to-all of {len(exchanges)} ranks"
    return [
        rate_finding(
            CHECKS[PEER],
            subject,
            slowest.bytes_per_second,
            history,
            f"links of rank {slowest.rank}",
            data_sheet.expected(gpu, "all-to-all", gpus),
            ", ".join(f"rank {exchange.rank} {exchange.bytes_per_second / 1e9:.4g} GB/s" for exchange in exchanges),
            compared_as=f"{subject}, {_size(exchanges)}",
            most=most,
        )
    ]


def _all_reduces(
    sums: Sequence[Exchange], history: History, gpu: Accelerator | None, *, on_gpu: bool
) -> list[CheckFinding]:
    """Check 6, one finding for each algorithm: the library's choice, a ring, sums in the switch."""
    findings = []
    for algorithm in sorted({exchange.algorithm for exchange in sums}):
        of_algorithm = [exchange for exchange in sums if exchange.algorithm == algorithm]
        ranks = len(of_algorithm)
        factor = 2 * (ranks - 1) / ranks
        most = data_sheet.upper_limit(gpu, algorithm or BY_SWITCH, ranks)
        summed = Algorithm(algorithm or Algorithm.LIBRARY)
        expected = floor_rates(gpu, CHECKS[ALL_REDUCE], FloorQuantity.ALL_REDUCE, accelerators=ranks, algorithm=summed)
        rates = [exchange.bytes_per_second * factor for exchange in of_algorithm]
        name = f"busbw of {ranks} ranks" + (f", {algorithm}" if algorithm else "")
        if not all(rates):
            findings.append(_refused(name, algorithm, of_algorithm, next(iter(expected), None)))
            continue
        findings.append(
            rate_finding(
                CHECKS[ALL_REDUCE],
                name,
                rates[judged_rank(rates, most)],
                history,
                "link 0-1" if ranks == 2 else f"links between {ranks} ranks",
                expected,
                compared_as=f"{name}, {_size(of_algorithm)}",
                most=most,
                without=without_floor(gpu, f"all-reduce of {ranks} ({summed})") if on_gpu else "",
            )
        )
    return findings


def _refused(
    name: str, algorithm: str, of_algorithm: Sequence[Exchange], expected: ExpectedRate | None
) -> CheckFinding:
    """An algorithm that the library refused warns where good nodes have it."""
    why = next(exchange.first for exchange in of_algorithm if not exchange.bytes_per_second)
    if expected is None:
        return not_run(ALL_REDUCE, why, name)
    return CheckFinding(
        check=ALL_REDUCE,
        subject=name,
        verdict=CheckVerdict.WARN,
        measured=0.0,
        expected=expected.value,
        unit=CHECKS[ALL_REDUCE].unit,
        source=expected.source,
        part=f"all-reduce, {algorithm}: fabric manager, multicast, or driver",
        evidence=why,
    )


def _contents(number: int, kind: str, exchanges: Sequence[Exchange]) -> CheckFinding:
    """Whether every element that arrived is the one that was sent, or the exact sum."""
    bad = [exchange for exchange in exchanges if exchange.wrong]
    parts = {f"rank {item.rank}" if item.peer is None else f"link {item.peer}-{item.rank}" for item in bad}
    evidence = "; ".join(f"rank {exchange.rank}: {exchange.wrong} wrong, {exchange.first}" for exchange in bad[:4])
    return CheckFinding(
        check=number,
        subject=f"{kind} {TO_THE_BIT}",
        verdict=CheckVerdict.FAIL if bad else CheckVerdict.PASS,
        measured=float(sum(exchange.wrong for exchange in exchanges)),
        expected=0.0,
        source="what was sent" if kind == "messages" else "the exact sum",
        part=", ".join(sorted(parts)),
        evidence=evidence or f"{len(exchanges)} exchanges",
    )
