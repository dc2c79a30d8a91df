"""The pipeline's schedule: who waits, what is in flight, how many weight versions live."""

from __future__ import annotations

from reference_runs.layout import Layout, Recomputation, Schedule
from suite.predict.analytic.elementwise import ceil_division, chosen, smaller

NO_FLUSH = tuple(schedule for schedule in Schedule if not schedule.flushes)


def halves_backward(layout: Layout) -> bool:
    """Whether a backward pass finds the gradients of inputs first, and those of weights later."""
    return (layout.schedule is Schedule.ZERO_BUBBLE or layout.schedule.shape_of_v) and layout.pipeline_stages > 1


def least_micro_batches(layout: Layout) -> int:
    """Micro-batches without which a schedule is not executed.

    gpipe, zbv, pipedream     1, with vertical sync too
    1f1b, zero-bubble         p
    dualpipev                 2 p: one for each chunk
    pipedream-2bw             p - 1: fewer would need a third version; of all replicas of a stage together, where stages
                              differ in them, the most of R_k (n_k - 1), see `stages_ahead`

    Source: torch/distributed/pipelining/schedules.py; Narayanan et al. 2021, arXiv 2006.09503, section 3.1.
    """
    stages = layout.pipeline_stages
    if layout.stage_replicas is not None and layout.schedule is Schedule.PIPEDREAM_2BW:
        return max(count * (stages_ahead(layout, stage) - 1) for stage, count in enumerate(layout.stage_replicas))
    least = {
        Schedule.ONE_F_ONE_B: stages,
        Schedule.ZERO_BUBBLE: stages,
        Schedule.DUALPIPEV: 2 * stages if stages > 1 else 1,
        Schedule.PIPEDREAM_2BW: stages - 1,
    }
    return least.get(layout.schedule, 1)


def stages_ahead(layout: Layout, stage: int) -> int:
    """Micro-batches that each replica of `stage` has in flight, so that no stage after it waits for one: p - k.

    n_k = ceil((R_k + ... + R_(p - 1)) / R_k), where stage k of p has R_k replicas, which take micro-batches in turns.

    Source: Narayanan et al. 2019, PipeDream, SOSP, section 3.2 (NOAM, of the first stage), as its authors' runtime has
    it of each stage (github.com/msr-fiddle/pipedream, runtime/runtime.py, num_warmup_minibatches + 1).
    """
    if layout.stage_replicas is None:
        return layout.pipeline_stages - stage
    return ceil_division(sum(layout.stage_replicas[stage:]), layout.stage_replicas[stage])


def chunks_in_flight(*, pipeline_stages: int, virtual_stages: int, stage: int) -> int:
    """Model chunks whose activations a rank of `stage` keeps at most, where each round starts a new micro-batch.

    2 (p - k - 1) + (v - 1) p + 1, with p stages, v virtual stages a rank (chunks), k the stage counted from 0:
        2 (p - k - 1)   rounds until the first backward pass comes back to this stage
        (v - 1) p       forward passes of its other chunks before that
        1               the pass in progress

    With v = 1 the first stage keeps 2 p - 1.
    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Megatron-LM, core/pipeline_parallel/schedules.py,
    num_warmup_microbatches. The first stage's (p v + p - 1) / v micro-batches equal the factor
    p (1 + (p - 1) / p v) of Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.3.
    """
    return 2 * (pipeline_stages - stage - 1) + (virtual_stages - 1) * pipeline_stages + 1


def micro_batches_in_flight(layout: Layout, *, micro_batches: int, stage: int) -> float:
    """Micro-batches whose activations a rank of `stage` (from 0) keeps at most; a fraction where stages interleave.

    gpipe               m, all of the step
    1f1b                min(m, p - k)
    interleaved 1f1b    min(m v, 2 (p - k - 1) + (v - 1) p + 1) / v   (see `chunks_in_flight`)
    zero-bubble         min(m, p), interleaved too: the weights' halves of backward passes wait
    zbv                 (min(m, 2 p - 1 - k) + min(m, k + 1)) / 2, of its chunks; p where m >= 2 p - 1
    dualpipev           (2 p + 1) / 2
    pipedream           p - k, as no flush limits them to a step (`stages_ahead`, where stages differ in replicas)
    2bw                 min(m + 1, p - k): one more would need a third version

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Narayanan et al. 2019, PipeDream, SOSP, section 3.2;
    Qi et al. 2023, arXiv 2401.10241, section 2.2 (ZB-H1), section 6 (ZB-V); DeepSeek-AI 2024, arXiv 2412.19437, table 2
    (DualPipe's PP + 1, where PP counts chunks: 2 p).
    Differs from the often quoted p for every stage: the last stage of 1F1B keeps one.
    """
    schedule, virtual, waiting = layout.schedule, layout.virtual_stages, stages_ahead(layout, stage)
    if schedule is not Schedule.ONE_F_ONE_B:
        if schedule is Schedule.GPIPE:
            return micro_batches + 0 * stage
        if schedule is Schedule.ZERO_BUBBLE:
            return smaller(micro_batches, layout.pipeline_stages) + 0 * stage
        if schedule is Schedule.ZBV:
            ahead = smaller(micro_batches, layout.pipeline_stages + waiting - 1)
            return (ahead + smaller(micro_batches, stage + 1)) / 2
        if schedule is Schedule.DUALPIPEV:
            several = smaller(2 * micro_batches, 2 * layout.pipeline_stages + 1) / 2
            return chosen(layout.pipeline_stages > 1, several, 1.0) + 0 * stage
        return smaller(micro_batches + 1, waiting) if schedule is Schedule.PIPEDREAM_2BW else waiting
    if virtual.__class__ is int and virtual == 1:
        return smaller(micro_batches, waiting)
    chunks = chunks_in_flight(pipeline_stages=layout.pipeline_stages, virtual_stages=virtual, stage=stage)
    interleaved = smaller(micro_batches * virtual, chunks) / virtual
    return chosen(virtual > 1, interleaved, smaller(micro_batches, waiting))


def bubble_fraction(layout: Layout, *, micro_batches: int) -> float:
    """Share of a step in which a pipeline stage waits, all stages taking the same time: (p - 1) / (v m + p - 1).

    With m micro-batches, p stages, v virtual stages a rank. Without flush (PipeDream) nothing waits in steady state: 0.
    A zero-bubble schedule leaves (p - 1)(F + B - W) of (p - 1)(F + B + W), with F for the forward pass, B and W for the
    halves of the backward pass, and B with recomputation: where F, B and W are equal, a third; with full recomputation,
    half. So many waits fill a pass: see `waits_of_a_pass`. Described for m >= p; with fewer micro-batches more is left.
    zbv leaves as much of its half passes (v = 2), for m >= 2 p - 1; dualpipev (p - 1)(F + 2 B - W) of them, twice that
    where F, B and W are equal.
    Source of that: Qi et al. 2023, arXiv 2401.10241, table 2, ZB-H1; github.com/deepseek-ai/DualPipe, README: DualPipeV
    (PP / 2 - 1)(F&B + B - 3 W) in chunks, B whole there and F&B a forward and a backward pass.
    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2: the bubble's time over the ideal time is
    (p - 1) / (v m), which differs: it is a share of the ideal step, this one of the real step.
    """
    if layout.schedule in NO_FLUSH:
        return 0.0 * micro_batches
    waiting = layout.pipeline_stages - 1
    return waiting / (waits_of_a_pass(layout) * layout.virtual_stages * micro_batches + waiting)


def waits_of_a_pass(layout: Layout) -> float:
    """How many waits for another stage's micro-batch take as long as computing one: see `bubble_fraction`."""
    again = layout.recomputation in (Recomputation.FULL, Recomputation.FROM_INPUT)
    if layout.schedule is Schedule.DUALPIPEV:
        return 1 if again else 1.5
    if layout.schedule not in (Schedule.ZERO_BUBBLE, Schedule.ZBV):
        return 1
    return 2 if again else 3


def weight_versions(layout: Layout, *, stage: int, micro_batches: int = 1) -> int:
    """Versions of its weights that a rank of `stage` (from 0) keeps.

    all with a flush          1: it comes before the update
    pipedream                 ceil((p - 1 - k) / m) + 1: with m = 1 one for each micro-batch in flight (stashing)
    pipedream, vertical sync  ceil((p - 1) / m) + 1 on every stage: stage k waits for version i of the first stage,
                              p - 1 micro-batches later
    pipedream-2bw             2 (1 where p = 1), with at least p micro-batches a step

    Args:
        micro_batches: m, of an update, on each replica of the stage. PipeDream has one; with several the micro-batches
            in flight share versions. Where stages differ in replicas, p - k is that of `stages_ahead`.

    Source: Narayanan et al. 2019, PipeDream, SOSP, section 3.3; Narayanan et al. 2021, arXiv 2006.09503, section 3.1.
    """
    if layout.schedule is Schedule.PIPEDREAM:
        return ceil_division(stages_ahead(layout, stage) - 1, micro_batches) + 1
    if layout.schedule is Schedule.PIPEDREAM_VERTICAL_SYNC:
        if layout.stage_replicas is not None:
            micro_batches = micro_batches * layout.stage_replicas[stage] // layout.stage_replicas[0]
        return ceil_division(stages_ahead(layout, 0) - 1, micro_batches) + 1 + 0 * stage
    if layout.schedule is Schedule.PIPEDREAM_2BW:
        return smaller(2, layout.pipeline_stages) + 0 * stage
    return 1 + 0 * stage
