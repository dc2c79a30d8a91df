"""Check 16: losses are finite and fall, and are equal to the bit where training is deterministic."""

from __future__ import annotations

from collections.abc import Sequence

from suite.acceptance.check_table import LOSS_CURVE
from suite.acceptance.evidence import MiniatureLaunch
from suite.acceptance.findings import CheckFinding, CheckVerdict
from suite.acceptance.judge.failed_measurements import failed_measurement
from suite.acceptance.past_batteries import History
from suite.job.events import Status
from suite.reproduce.reproduce import LOSS_MUST_FALL, last_loss, loss_fell


def loss_findings(launches: Sequence[MiniatureLaunch], history: History) -> list[CheckFinding]:
    """Check 16, one finding for each stack of a miniature."""
    findings = []
    for (run, _), of_stack in _by_stack(launches).items():
        nan = [launch for launch in of_stack if launch.status is Status.NAN]
        ended_well = [launch for launch in of_stack if launch.status is Status.OK and launch.losses]
        if nan:
            findings.append(failed_measurement(LOSS_CURVE, nan[0]))
        elif ended_well:
            verdict, source, part, evidence = _losses(ended_well, history.losses.get(ended_well[0].stack))
            findings.append(
                CheckFinding(
                    check=LOSS_CURVE, subject=run, verdict=verdict, source=source, part=part, evidence=evidence
                )
            )
    return findings


def _losses(launches: Sequence[MiniatureLaunch], accepted: list[float] | None) -> tuple[CheckVerdict, str, str, str]:
    """Verdict, source, part and evidence of one stack: losses fall, and equal each other or `accepted` to the bit.

    Where the policy allows algorithms that are not deterministic, unequal losses are no failure.

    Args:
        accepted: losses of accepted batteries with the same stack; None without any.
    """
    first = accepted or launches[0].losses
    compared = launches if accepted else launches[1:]
    source = "accepted batteries with the same stack" if accepted else "the first launch"
    unequal = next((launch for launch in compared if launch.losses != first), None)
    difference = "" if unequal is None else _difference(unequal, first)
    if unequal is not None and unequal.deterministic:
        return CheckVerdict.FAIL, source, "arithmetic or links: another loss from the same bits", difference
    flat = next((launch.losses for launch in launches if launch.learns and not loss_fell(launch.losses)), None)
    if flat is not None:
        change = f"from {flat[0]:.3f} to {last_loss(flat):.3f}, {LOSS_MUST_FALL} less expected"
        return CheckVerdict.FAIL, "training", "training", change
    if unequal is not None:
        why = "finite losses; not compared with each other, training is not deterministic on this device"
        return CheckVerdict.NOT_RUN, source, "", f"{why}: {difference}"
    if not compared:
        why = "one launch, and no accepted battery with the same stack to compare its bits with"
        return CheckVerdict.NOT_RUN, "", "", why
    return CheckVerdict.PASS, source, "", f"{len(launches)} launches, {len(first)} steps equal to the bit"


def _difference(launch: MiniatureLaunch, expected: Sequence[float]) -> str:
    """The first step with another loss than expected."""
    pairs = enumerate(zip(expected, launch.losses, strict=False))
    step = next((number for number, (loss, other) in pairs if loss != other), 0)
    return f"step {step}: {launch.losses[step]!r}, not {expected[step]!r} ({launch.record})"


def _by_stack(launches: Sequence[MiniatureLaunch]) -> dict[tuple[str, str], list[MiniatureLaunch]]:
    """Launches that must have equal losses; a launch that failed belongs to the first stack of its run."""
    stack_of: dict[str, str] = {}
    for launch in launches:
        if launch.stack:
            stack_of.setdefault(launch.run, launch.stack)
    stacks: dict[tuple[str, str], list[MiniatureLaunch]] = {}
    for launch in launches:
        stacks.setdefault((launch.run, launch.stack or stack_of.get(launch.run, "")), []).append(launch)
    return stacks
