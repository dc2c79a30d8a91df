"""Checks 14, 15 and 17: replays that vote, memory that is verified, and phases that end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from suite.acceptance.check_table import HANG_GUARD, REPLAYS, SOAK
from suite.acceptance.evidence import Probing, Replay, Timed
from suite.acceptance.findings import Finding, Verdict
from suite.acceptance.judge.failed_measurements import broken, ranks_in_words
from suite.job.events import Status

_RANK_WITH_STACKS = re.compile(r"^rank (\d+):\n(?!no answer)", re.MULTILINE)
KINDS = ("loss", "gradients", "parameters")  # in the order in which a step makes them


def replay_finding(probing: Probing) -> Finding:
    """Check 14: every replay of every rank against the vote of all.

    Determinism is proven where some rank repeats itself in all of its replays; where none does, a mismatch says nothing
    of the hardware and the check is invalid. Otherwise the hash that most replays have at a step is right, and the rank
    with the most others is at fault. Two halves that each agree leave the rank open.
    """
    if probing.status is not Status.OK:
        return broken(REPLAYS, probing)
    if not probing.replays:
        return Finding(check=REPLAYS, subject="", verdict=Verdict.NOT_RUN, evidence="no replay")
    votes: dict[tuple[int, str], Counter[str]] = {}
    for one in probing.replays:
        for kind in KINDS:
            votes.setdefault((one.step, kind), Counter())[getattr(one, kind)] += 1
    ranks = sorted({one.rank for one in probing.replays})
    replays = len({one.replay for one in probing.replays})
    if all(len(counter) == 1 for counter in votes.values()):
        words = f"{replays} replays of {len(ranks)} ranks, {len(votes)} hashes each, all equal"
        return Finding(check=REPLAYS, subject="replays", verdict=Verdict.PASS, source="vote", evidence=words)
    steady = [rank for rank in ranks if _repeats(rank, probing.replays)]
    first = min(
        (key for key, counter in votes.items() if len(counter) > 1), key=lambda key: (key[0], KINDS.index(key[1]))
    )
    where = f"first at step {first[0]}, in the {first[1]}"
    if not steady:
        return Finding(
            check=REPLAYS,
            subject="replays",
            verdict=Verdict.INVALID,
            source="vote",
            part="determinism: no rank repeats itself",
            evidence=where,
        )
    outvoted = _outvoted(probing.replays, votes)
    if not outvoted:
        named = " or ".join(f"rank {rank}" for rank in ranks)
        part, words = named, f"{where}; each rank repeats itself, and no majority says which is right"
    else:
        worst = max(outvoted.values())
        guilty = [rank for rank, count in outvoted.items() if count == worst]
        part = ", ".join(f"rank {rank}" for rank in guilty)
        words = f"{where}; " + ", ".join(f"rank {rank} outvoted in {count} hashes" for rank, count in outvoted.items())
    return Finding(
        check=REPLAYS,
        subject="replays",
        verdict=Verdict.FAIL,
        source="vote",
        part=f"{part}: arithmetic or memory",
        evidence=words,
    )


def _repeats(rank: int, replays: Sequence[Replay]) -> bool:
    seen: dict[int, set[tuple[str, str, str]]] = {}
    for one in replays:
        if one.rank == rank:
            seen.setdefault(one.step, set()).add((one.loss, one.gradients, one.parameters))
    return all(len(hashes) == 1 for hashes in seen.values())


def _outvoted(replays: Sequence[Replay], votes: dict[tuple[int, str], Counter[str]]) -> dict[int, int]:
    """Hashes of each rank that lost against a majority; ties have none."""
    lost: dict[int, int] = {}
    for one in replays:
        for kind in KINDS:
            ranked = votes[one.step, kind].most_common(2)
            tie = len(ranked) > 1 and ranked[0][1] == ranked[1][1]
            if not tie and getattr(one, kind) != ranked[0][0]:
                lost[one.rank] = lost.get(one.rank, 0) + 1
    return lost


def soak_finding(probing: Probing) -> Finding:
    """Check 15: every byte of every pass was what it should be."""
    if probing.status is not Status.OK:
        return broken(SOAK, probing)
    if not probing.soaks:
        return Finding(check=SOAK, subject="", verdict=Verdict.NOT_RUN, evidence="no memory was verified")
    wrong = [one for one in probing.soaks if one.wrong]
    verified = sum(one.bytes * one.passes for one in probing.soaks)
    words = "; ".join(f"rank {one.rank}: {one.wrong} wrong, {one.first}" for one in wrong)
    fewest = min(one.passes for one in probing.soaks)
    size = min(one.bytes for one in probing.soaks)
    amount, each = verified / 2**30, size / 2**30
    done = f"{amount:,.1f} GiB verified in {probing.soak_seconds:.0f} s: {fewest} passes over {each:.2f} GiB a rank"
    return Finding(
        check=SOAK,
        subject="memory and products",
        verdict=Verdict.FAIL if wrong else Verdict.PASS,
        measured=float(sum(one.wrong for one in probing.soaks)),
        expected=0.0,
        source="known patterns",
        part=", ".join(f"rank {one.rank}: memory or arithmetic" for one in wrong),
        evidence=words or done,
    )


def guard_findings(phases: Sequence[Timed], *, disturbed: bool) -> list[Finding]:
    """Check 17: hung phases one by one; slow ones apart from them; one line for all that ended in time."""
    findings = []
    for phase in phases:
        if phase.outcome == "hang":
            findings.append(
                Finding(
                    check=HANG_GUARD,
                    subject=phase.phase,
                    verdict=Verdict.HANG,
                    status=Status.HANG,
                    part=ranks_in_words(phase.ranks_at_fault) or "unknown rank: none is behind the others",
                    evidence=f"{phase.message}; {_stacks(phase.stacks)}",
                )
            )
        elif phase.outcome == "slow":
            words = f"still making progress after {phase.seconds:.0f} s, budget {phase.budget_seconds:.0f} s"
            verdict = Verdict.INCONCLUSIVE if disturbed else Verdict.FAIL
            findings.append(
                Finding(check=HANG_GUARD, subject=phase.phase, verdict=verdict, part="slow, not hung", evidence=words)
            )
    ended = [phase for phase in phases if phase.outcome not in ("hang", "slow")]
    if ended:
        longest = max(ended, key=lambda phase: phase.seconds / phase.budget_seconds)
        words = f"{len(ended)} phases; {longest.phase} took {longest.seconds:.0f} s of {longest.budget_seconds:.0f} s"
        findings.append(Finding(check=HANG_GUARD, subject="phases", verdict=Verdict.PASS, evidence=words))
    return findings


def _stacks(text: str) -> str:
    """Whose stacks the record has: each below a line of its own; a rank that was stopped gave none."""
    ranks = [int(rank) for rank in _RANK_WITH_STACKS.findall(text)]
    return f"stacks of {ranks_in_words(ranks)} in the record" if ranks else "no rank told its stacks"
