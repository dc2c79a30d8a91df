"""Rungs whose time is predicted, and why not that of the others."""

from __future__ import annotations

from pathlib import Path

from suite.ladder.plan import target_of
from suite.ladder.request import LadderRun, predicted
from suite.ladder.rung import RUNGS, Rung, RungSetting, setting_above
from suite.machine.profile import Profile
from suite.machine.timing_tables import Line, Subject
from suite.machine.timings import Timing
from tests.support.ladder_machine import TEXTS
from tests.support.launches import CORPUS
from tests.support.profiles import profile

GPU = target_of("gpt2-mini", device="cuda", seed=1)
COPIES = "copies to and from the host are not in the step-time model"
OFFLOADED = "what comes back to the device, and the copies, are in no model"
KERNELS = "a calibration does not time Triton's kernels"


class Complete(Profile, frozen=True, kw_only=True):
    """A profile that has every operation: a nanosecond for each unit of its size and each rank."""

    def seconds(self, subject: Subject, *sizes: float) -> float:
        return 1e-9 * subject.ranks * sum(sizes)

    def line(self, subject: Subject) -> Line:
        return Line(
            subject=subject,
            unit="call",
            sizes=(1.0,),
            timings=(Timing(1e-9, 1e-9, 1e-9, 1e-9, 1, 0),),
            fixed_seconds=0.0,
            seconds_per_unit=1e-9,
            residual=0.0,
            worst=0.0,
        )

    def achievable_flop_per_second(self, dtype: str, *, ranks: int = 1) -> float:
        return (5e11 if dtype == "fp32" else 1e12) / ranks


COMPLETE = Complete(**{field: getattr(profile(ranks=4), field) for field in Profile.__struct_fields__})


def ladder_run_with(known: Profile) -> LadderRun:
    return LadderRun(
        target=GPU,
        corpus=CORPUS,
        texts=TEXTS,
        results=Path("/none"),
        chosen=frozenset(),
        profile=known,
        between_hosts=known,
    )


def on_its_place(rung: Rung) -> RungSetting:
    return setting_above(rung, RUNGS)


def test_on_gpus_the_time_of_each_rung_is_predicted_or_has_the_reason_of_what_it_stands_on() -> None:
    """Offloading rungs have their copies and pass them on to none; every one behind Triton's kernels has those."""
    reasons = {
        rung.name: predicted(ladder_run_with(COMPLETE), on_its_place(rung), "").seconds_unknown for rung in RUNGS
    }
    names = [rung.name for rung in RUNGS]
    unknown = {"offload-activations": OFFLOADED, "fsdp-offload": COPIES}
    unknown |= dict.fromkeys(("fused-kernels", "ddp", "ddp-hosts"), KERNELS)
    assert reasons == {name: unknown.get(name, "") for name in names}


def test_a_profile_that_lacks_what_a_rung_does_leaves_its_time_alone_unknown() -> None:
    """Peaks are predicted of tensors that stay on the device."""
    sparse = ladder_run_with(profile(ranks=4))
    for rung in RUNGS:
        setting = on_its_place(rung)
        found = predicted(sparse, setting, "")
        assert found.step_seconds is None
        assert found.seconds_unknown
        assert (found.peak_bytes is None) == (setting.offloads_activations or setting.offloads_state)
    assert "the profile has no measurement of" in predicted(sparse, RungSetting(), "").seconds_unknown
