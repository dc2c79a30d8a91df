"""Checks 14 and 15: replays that vote, and memory and products that are verified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from suite.acceptance.check_table import REPLAYS, SOAK
from suite.acceptance.evidence import ProbeResult, ReplayHashes
from suite.acceptance.findings import failed_measurement, not_run, rank_names
from suite.records.battery import CheckFinding, CheckVerdict

KINDS = ("loss", "gradients", "parameters")  # in the order in which a step computes them
Votes = dict[tuple[int, str], Counter[str]]  # by step and kind


def replay_finding(probe: ProbeResult) -> CheckFinding:
    """Check 14: every replay of every rank against the vote of all.

    A rank is deterministic where all of its replays are equal. Where no rank is, a mismatch says nothing of the
    hardware, and the check is invalid. Otherwise the hash that most replays have at a step is right, and the rank with
    the most other hashes is at fault. Without a majority the rank at fault stays unknown.
    """
    if not probe.has("replays"):
        return failed_measurement(REPLAYS, probe)
    if not probe.replays:
        return not_run(REPLAYS, "no replay")
    ranks = sorted({replay.rank for replay in probe.replays})
    votes: Votes = {}
    for replay in probe.replays:
        for kind in KINDS:
            votes.setdefault((replay.step, kind), Counter())[getattr(replay, kind)] += 1
    unequal = [key for key, hashes in votes.items() if len(hashes) > 1]
    if not unequal:
        replays = len({replay.replay for replay in probe.replays})
        evidence = f"{replays} replays of {len(ranks)} ranks, {len(votes)} hashes each, all equal"
        return _replays(CheckVerdict.PASS, "", evidence)
    step, kind = min(unequal, key=lambda key: (key[0], KINDS.index(key[1])))
    first = f"first at step {step}, in the {kind}"
    if not any(_is_deterministic(rank, probe.replays) for rank in ranks):
        return _replays(CheckVerdict.INVALID, "determinism: no rank repeats itself", first)
    lost = _lost_votes(probe.replays, votes)
    if not lost:
        named = " or ".join(f"rank {rank}" for rank in ranks)
        evidence = f"{first}; each rank repeats itself, and no majority says which is right"
        return _replays(CheckVerdict.FAIL, f"{named}: arithmetic or memory", evidence)
    named = rank_names(rank for rank, count in lost.items() if count == max(lost.values()))
    evidence = f"{first}; " + ", ".join(f"rank {rank} outvoted in {count} hashes" for rank, count in lost.items())
    return _replays(CheckVerdict.FAIL, f"{named}: arithmetic or memory", evidence)


def _replays(verdict: CheckVerdict, part: str, evidence: str) -> CheckFinding:
    return CheckFinding(check=REPLAYS, subject="replays", verdict=verdict, source="vote", part=part, evidence=evidence)


def _is_deterministic(rank: int, replays: Sequence[ReplayHashes]) -> bool:
    hashes = {(item.step, item.loss, item.gradients, item.parameters) for item in replays if item.rank == rank}
    return len(hashes) == len({step for step, *_ in hashes})


def _lost_votes(replays: Sequence[ReplayHashes], votes: Votes) -> dict[int, int]:
    """By rank: how many of its hashes differ from the majority's; a tie has no majority."""
    lost: dict[int, int] = {}
    for replay in replays:
        for kind in KINDS:
            ranked = votes[replay.step, kind].most_common(2)
            tie = len(ranked) > 1 and ranked[0][1] == ranked[1][1]
            if not tie and getattr(replay, kind) != ranked[0][0]:
                lost[replay.rank] = lost.get(replay.rank, 0) + 1
    return lost


def soak_finding(probe: ProbeResult) -> CheckFinding:
    """Check 15: every byte of every pass was what it should be."""
    if not probe.has("soaks"):
        return failed_measurement(SOAK, probe)
    if not probe.soaks:
        return not_run(SOAK, "no memory was verified")
    bad = [soak for soak in probe.soaks if soak.wrong]
    gib = sum(soak.bytes * soak.passes for soak in probe.soaks) / 2**30
    gib_of_rank = min(soak.bytes for soak in probe.soaks) / 2**30
    passes = min(soak.passes for soak in probe.soaks)
    verified = (
        f"{gib:,.1f} GiB verified in {probe.soak_seconds:.0f} s: {passes} passes over {gib_of_rank:.2f} GiB a rank"
    )
    return CheckFinding(
        check=SOAK,
        subject="memory and products",
        verdict=CheckVerdict.FAIL if bad else CheckVerdict.PASS,
        measured=float(sum(soak.wrong for soak in bad)),
        expected=0.0,
        source="known patterns",
        part=", ".join(f"rank {soak.rank}: memory or arithmetic" for soak in bad),
        evidence="; ".join(f"rank {soak.rank}: {soak.wrong} wrong, {soak.first}" for soak in bad) or verified,
    )
