"""Check 16: losses repeat to the bit where training is deterministic, are finite, and fall."""

from __future__ import annotations

from collections.abc import Sequence

from suite.acceptance.check_table import LOSS_CURVE
from suite.acceptance.evidence import Launched
from suite.acceptance.findings import Finding, Verdict
from suite.acceptance.judge.failed_measurements import broken
from suite.acceptance.past_batteries import History
from suite.job.events import Status
from suite.reproduce.reproduce import LOSS_MUST_FALL, last_loss, loss_fell


def loss_findings(launches: Sequence[Launched], history: History) -> list[Finding]:
    """Check 16, one for each stack of a miniature: losses repeat to the bit, are finite, and fall."""
    findings = []
    for (run, _), own in _by_stack(launches).items():
        nan = [one for one in own if one.status is Status.NAN]
        if nan:
            findings.append(broken(LOSS_CURVE, nan[0]))
            continue
        good = [one for one in own if one.status is Status.OK and one.losses]
        if good:
            findings.append(_losses(run, good, history))
    return findings


def _losses(run: str, launches: Sequence[Launched], history: History) -> Finding:
    """Whether the launches of one stack fall, and equal each other and accepted batteries to the bit.

    Where the policy allows algorithms that are not deterministic, other bits are no fault: equality then is not judged.
    """
    reference = history.losses.get(launches[0].stack)
    first = reference or launches[0].losses
    compared = launches if reference else launches[1:]
    source = "accepted batteries with the same stack" if reference else "the first launch"
    other = next((one for one in compared if one.losses != first), None)
    words = "" if other is None else _difference(other, first)
    if other is not None and other.deterministic:
        return Finding(
            check=LOSS_CURVE,
            subject=run,
            verdict=Verdict.FAIL,
            source=source,
            part="arithmetic or links: another loss from the same bits",
            evidence=words,
        )
    flat = next((one.losses for one in launches if one.learns and not loss_fell(one.losses)), None)
    if flat is not None:
        words = f"from {flat[0]:.3f} to {last_loss(flat):.3f}, {LOSS_MUST_FALL} less expected"
        return Finding(
            check=LOSS_CURVE, subject=run, verdict=Verdict.FAIL, source="training", part="training", evidence=words
        )
    if other is not None:
        why = f"finite losses; not held to each other, training is not deterministic on this device: {words}"
        return Finding(check=LOSS_CURVE, subject=run, verdict=Verdict.NOT_RUN, source=source, evidence=why)
    if not compared:
        why = "one launch, and no accepted battery with the same stack to compare its bits with"
        return Finding(check=LOSS_CURVE, subject=run, verdict=Verdict.NOT_RUN, evidence=why)
    words = f"{len(launches)} launches, {len(first)} steps equal to the bit"
    return Finding(check=LOSS_CURVE, subject=run, verdict=Verdict.PASS, source=source, evidence=words)


def _difference(launch: Launched, first: Sequence[float]) -> str:
    """Where a launch's losses leave the first ones, in words."""
    step = next((n for n, pair in enumerate(zip(first, launch.losses, strict=False)) if pair[0] != pair[1]), 0)
    return f"step {step}: {launch.losses[step]!r}, not {first[step]!r} ({launch.record})"


def _by_stack(launches: Sequence[Launched]) -> dict[tuple[str, str], list[Launched]]:
    """Launches that must repeat each other; those that did not end well with the first stack of their run."""
    stacks: dict[tuple[str, str], list[Launched]] = {}
    for one in launches:
        known = one.stack or next((other.stack for other in launches if other.run == one.run and other.stack), "")
        stacks.setdefault((one.run, known), []).append(one)
    return stacks
