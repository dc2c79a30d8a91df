"""What the update of a rung of the ladder holds in passing."""

from __future__ import annotations

from reference_runs.layout import Layout
from reference_runs.run import Architecture
from suite.predict.executed_state import parameter_tensors_of_rank
from suite.predict.memory import FP32
from suite.predict.parameters import ParameterTensor
from suite.script import Script, Update


def script_update_bytes(architecture: Architecture, layout: Layout, script: Script, *, stage: int) -> list[int]:
    """Bytes of each thing that the update holds at a time beside state and gradients, in fp32; none at once.

    With N_g elements in the largest group of weight decay, and N_t in the largest tensor:
        foreach      4 N_g       square roots of the second moments of all tensors of a group
        loop         8 N_t       a tensor's square roots, and their quotient by the bias correction
        fused        0
        adafactor    4 N_t       a tensor's second moment, made of its factors; then the update, in its place
        logged norm  4 N_t       a tensor's squares, before they are summed

    Source: torch/optim/adam.py, _multi_tensor_adam, _single_tensor_adam; _adafactor.py, _single_tensor_adafactor.
    """
    tensors = parameter_tensors_of_rank(architecture, layout, stage=stage)
    largest = max(tensor.elements for tensor in tensors)
    sizes = []
    if script.synchronises:
        sizes.append(FP32 * largest)
    if script.update is Update.FOREACH:
        sizes.append(FP32 * largest_group_elements(tensors))
    elif script.update is Update.LOOP:
        sizes.append(2 * FP32 * largest)
    elif script.update is Update.ADAFACTOR:
        sizes.append(FP32 * largest)
    return sizes


def largest_group_elements(tensors: list[ParameterTensor]) -> int:
    """Elements of the matrices, which decay, or of the vectors, which do not: the more of both."""
    matrices = sum(tensor.elements for tensor in tensors if tensor.matrix)
    return max(matrices, sum(tensor.elements for tensor in tensors) - matrices)
