"""A machine that is made up, on which the ladder is asked without a launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from suite.job.events import Event, Finished, Status, Step, StepKind
from suite.job.options import Texts
from suite.ladder.measurement import RungMeasurement, RungPrediction
from suite.ladder.plan import Target, target_of
from suite.ladder.request import LadderRun
from suite.ladder.result import LadderResult, RungResult
from suite.ladder.run import run_ladder
from suite.ladder.rung import RUNGS, Rung, Track
from suite.machine.half_precision import Kernels
from suite.metrics.figures import Figure, Quantity
from suite.predict.executed_run.figures import expected_figures
from suite.reproduce.plan import Plan, job_for
from suite.reproduce.reproduce import LaunchResult
from tests.support.launches import CORPUS, launch_result
from tests.support.profiles import profile

TEXTS = Texts(tokenizer_file="/none/tokenizer", text_file="/none/text", documents_file="/none/documents")
NAMES = {rung.name: rung for rung in RUNGS}
CPU = target_of("gpt2-mini", device="cpu", seed=1)


def ladder_run(*rungs: str, **changes: Any) -> LadderRun:
    """A run of these rungs on this processor, which has a profile."""
    usual = {"profile": profile(), "profile_source": "stored", "results": Path("/none")}
    return LadderRun(target=CPU, corpus=CORPUS, texts=TEXTS, chosen=frozenset(rungs), **(usual | changes))


def rung_measurement(
    seconds: float = 1.0, *, peak: int = 1000, spread: float = 0.01, losses: list[float] | None = None
) -> RungMeasurement:
    return RungMeasurement(
        launches=1,
        tokens=100,
        step_seconds=seconds,
        spread_seconds=spread,
        terms={"forward": seconds},
        peak_bytes=peak,
        largest_peak_bytes=peak,
        reserved_bytes=None,
        resident_bytes=None,
        model_flop_per_second=1.0,
        synchronisations=0,
        losses=losses or [2.0, 1.0],
        records=[],
    )


def said(seconds: float | None = 1.0, *, peak: float = 1000.0) -> RungPrediction:
    return RungPrediction(peak_bytes=peak, phase="backward", step_seconds=seconds, terms={})


def figures_of(plan: Plan) -> list[Figure]:
    return expected_figures(job_for(plan, CORPUS, ""), kernels=Kernels(cuda=plan.device == "cuda"), cores=2)


def peak_of(plan: Plan) -> float:
    return exact_of(plan, Quantity.PEAK_BYTES)


def exact_of(plan: Plan, quantity: Quantity) -> float:
    return next(f.value for f in figures_of(plan) if f.quantity is quantity and f.rank is None)


class Machine:
    """Launches that take as long as their setting says, and allocate what is predicted.

    Attributes:
        launched: label of every launch, in their order.
        wrong: labels whose launch fails.
        interrupts: the label whose launch is interrupted; interrupts_at, crashes_at: the launch, counted.
        phases: how many times as long as it should the next launches of a label take.
        rank_peaks: of a label, the peak of each rank over what is predicted.
        drifting: labels each of whose launches has losses of its own.
        spread: relative, of one step to the next.
        now: on the clock that `launch_seconds` and nothing else moves, by each launch; those of a label `longer` more.
    """

    def __init__(self) -> None:
        self.launched: list[str] = []
        self.wrong: set[str] = set()
        self.interrupts = ""
        self.interrupts_at = self.crashes_at = 0
        self.phases: dict[str, list[float]] = {}
        self.spread = 1e-4
        self.rank_peaks: dict[str, list[float]] = {}
        self.drifting: set[str] = set()
        self.now = self.launch_seconds = 0.0
        self.longer: dict[str, float] = {}

    def seconds(self, plan: Plan) -> float:
        script, tokens = plan.training_options, plan.recipe.global_batch
        made = 0.02 * tokens * script.tokenises / (2 if script.workers else 1)
        trained = 0.1 + 0.01 * tokens * (0.5 if plan.compiled else 1.0)
        return made + trained + (0.3 if script.synchronises else 0.0)

    def reproduce(self, plan: Plan, *_: object, **__: object) -> LaunchResult:
        self.launched.append(plan.training_options.rung)
        self.now += self.launch_seconds + self.longer.get(plan.training_options.rung, 0.0)
        crashes = plan.training_options.rung in self.wrong or len(self.launched) == self.crashes_at
        status = Status.CRASHED if crashes else Status.OK
        now = plan.training_options.rung == self.interrupts or len(self.launched) == self.interrupts_at
        status = Status.INTERRUPTED if now else status
        phases = self.phases.get(plan.training_options.rung)
        seconds = self.seconds(plan) * (phases.pop(0) if phases else 1.0)
        first = 3.0 + (len(self.launched) / 100 if plan.training_options.rung in self.drifting else 0.0)
        steps = [
            Step(number, StepKind.TIMED, first - number / 10, seconds * (1 + number * self.spread), 0.0)
            for number in range(6)
        ]
        figures = [
            Figure(quantity=Quantity.STEP_SECONDS, value=seconds),
            Figure(quantity=Quantity.STEP_SECONDS, value=seconds, term="forward"),
            Figure(quantity=Quantity.MODEL_FLOP_PER_SECOND, value=1e9),
        ]
        report = msgspec.convert(
            {field.name: 0 for field in msgspec.structs.fields(Finished) if field.required}
            | {"type": "finished", "coordinates": {}, "collectives": [], "worked_seconds": [], "pipeline_seconds": []}
            | {"interface_sent_bytes": None, "arithmetic": "", "environment": {}, "peak_bytes": round(peak_of(plan))},
            Finished,
        )
        return launch_result(
            run=plan.name,
            status=status,
            message="made up",
            losses=[step.loss for step in steps],
            finished=[
                msgspec.structs.replace(report, peak_bytes=round(share * report.peak_bytes))
                for share in self.rank_peaks.get(plan.training_options.rung, [1.0])
            ],
            steps=steps,
            figures=figures,
        )


def ladder_of(
    rungs: list[str],
    *,
    ablated: tuple[str, ...] = (),
    leave_one_out: bool = False,
    repeat: int = 1,
    run: Target = CPU,
    began: float = 0.0,
) -> LadderResult:
    ladder_run = LadderRun(
        target=run,
        corpus=CORPUS,
        texts=TEXTS,
        results=Path("/none"),
        chosen=frozenset(rungs),
        ablated=frozenset(ablated),
        leave_one_out=leave_one_out,
        repeat=repeat,
        profile_source="made up",
        began=began,
    )
    seen: dict[str, RungResult] = {}
    outcome = run_ladder(ladder_run, lambda rung_result: seen.update({rung_result.rung.name: rung_result}), _ignore)
    assert list(seen.items()) == [(rung_result.rung.name, rung_result) for rung_result in outcome.rungs]
    return outcome


def _ignore(_rank: int, _event: Event) -> None:
    pass


def results_of(outcome: LadderResult) -> dict[str, RungResult]:
    return {rung_result.rung.name: rung_result for rung_result in outcome.rungs}


def of_track(track: Track) -> tuple[Rung, ...]:
    """Its rungs, from the baseline up."""
    return tuple(rung for rung in RUNGS if rung.track is track)
