"""The pipeline of a rank's chunks, by torch.distributed.pipelining."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle
from torch.distributed.pipelining.stage import _PipelineStageBase

from reference_runs.layout import Layout, Schedule
from reference_runs.run import Architecture
from suite.execute.measure.phases import Part, Phases
from suite.job.pipeline_passes import Pass, PassKind

_OF_ONE_CHUNK: dict[Schedule, type[PipelineScheduleSingle]] = {
    Schedule.GPIPE: ScheduleGPipe,
    Schedule.ONE_F_ONE_B: Schedule1F1B,
}
_OF_SEVERAL_CHUNKS: dict[Schedule, type[PipelineScheduleMulti]] = {
    Schedule.ONE_F_ONE_B: ScheduleInterleaved1F1B,
    Schedule.ZERO_BUBBLE: ScheduleInterleavedZeroBubble,
    Schedule.ZBV: ScheduleZBVZeroBubble,
    Schedule.DUALPIPEV: ScheduleDualPipeV,
}


class Pipeline:
    """Runs the micro-batches of a step through this rank's chunks and their neighbours.

    Args:
        modules: chunk number in the whole model -> the module, in order.
        dtype: of hidden states.
    """

    def __init__(
        self,
        modules: dict[int, nn.Module],
        architecture: Architecture,
        layout: Layout,
        *,
        group: dist.ProcessGroup,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._layout = layout
        self._device = device
        self._schedules: dict[int, Any] = {}
        self._factor = 1.0
        self._phases: Phases | None = None
        chunks = layout.pipeline_stages * layout.virtual_stages
        length = architecture.sequence // layout.context_parallel
        tokens = torch.empty(layout.micro_batch, length, dtype=torch.long, device="meta")
        length //= layout.tensor_parallel if layout.sequence_parallel else 1
        shape = (layout.micro_batch, length, architecture.hidden)
        hidden = torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
        loss = torch.empty((), dtype=torch.float32, device="meta", requires_grad=True)
        self.stages: list[_PipelineStageBase] = []
        for chunk, module in modules.items():
            stage = PipelineStage(
                module,
                chunk,
                chunks,
                device,
                input_args=(tokens if chunk == 0 else hidden,),
                output_args=(loss if chunk == chunks - 1 else hidden,),
                group=group,
            )
            self._watch(stage)
            self.stages.append(stage)

    def step(
        self, tokens_BT: Tensor, arguments: dict[str, Tensor], *, micro_batches: int, factor: float, phases: Phases
    ) -> Tensor:
        """Accumulate the gradients of `factor` times the mean loss of the micro-batches in tokens and arguments.

        Every pass of a chunk is a phase of `phases`.

        Returns the mean loss, detached; 0 if the last chunk is on another rank.
        """
        if micro_batches not in self._schedules:
            self._schedules[micro_batches] = self._schedule(micro_batches)
        self._factor = factor / micro_batches
        self._phases = phases
        losses: list[Tensor] = []
        tokens = [tokens_BT] if self.stages[0].is_first else []
        self._schedules[micro_batches].step(
            *tokens, target=arguments["targets_BT"], losses=losses, return_outputs=False, **arguments
        )
        if not losses:
            return torch.zeros((), device=self._device)
        return torch.stack([loss.detach() for loss in losses]).sum() / factor

    def _schedule(self, micro_batches: int) -> Any:
        def scaled(loss: Tensor, _: Tensor) -> Tensor:
            return loss * self._factor

        schedule = self._layout.schedule
        if len(self.stages) == 1 and schedule in _OF_ONE_CHUNK:
            (stage,) = self.stages
            return _OF_ONE_CHUNK[schedule](stage, micro_batches, loss_fn=scaled, scale_grads=False)
        return _OF_SEVERAL_CHUNKS[schedule](self.stages, micro_batches, loss_fn=scaled, scale_grads=False)

    def _watch(self, stage: _PipelineStageBase) -> None:
        """Have a clock around every pass of a chunk."""
        forward, backward, weight = stage.forward_one_chunk, stage.backward_one_chunk, stage.backward_weight_one_chunk

        def timed(kind: PassKind, work: Callable[..., Any], micro_batch: int, *args: Any, **kwargs: Any) -> Any:
            assert self._phases is not None
            part = Part.FORWARD if kind is PassKind.FORWARD else Part.BACKWARD
            with self._phases.phase(part, Pass(kind, stage.stage_index, micro_batch)):
                return work(micro_batch, *args, **kwargs)

        def timed_backward(micro_batch: int, *args: Any, **kwargs: Any) -> Any:
            kind = PassKind.BACKWARD if kwargs.get("full_backward", True) else PassKind.INPUT
            return timed(kind, backward, micro_batch, *args, **kwargs)

        stage.forward_one_chunk = partial(timed, PassKind.FORWARD, forward)  # type: ignore[method-assign]  # a clock
        stage.backward_one_chunk = timed_backward  # type: ignore[method-assign,assignment]  # a clock
        stage.backward_weight_one_chunk = partial(timed, PassKind.WEIGHT, weight)  # type: ignore[method-assign]  # a clock
