"""Where a layer's matrix products stand under the roofline: flop a byte, and the rate that is predicted of them."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.run import Workload
from suite.predict.analytic.layer_time import product_times
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.stage_layers import layer_kinds


class RooflinePoint(NamedTuple):
    """The products of one part of a layer, forward.

    Args:
        sizes: M, N and K of each; None: a kernel that is no single product.
        intensity: flop for each least byte.
        rate: flop per second that are predicted.
        ridge: flop a byte from which on the arithmetic limits, in the format that they are computed in.
        seconds: of one micro-batch, forward and backward, in all layers of the model on one rank of each stage.
    """

    part: str
    products: int
    sizes: tuple[int, int, int] | None
    intensity: float
    rate: float
    ridge: float
    seconds: float


def roofline_points(workload: Workload, machine: Machine) -> list[RooflinePoint]:
    """The products that the predicted time is made of, those of layers of each kind apart."""
    architecture, recipe, layout = workload
    kinds = layer_kinds(architecture)
    points: list[RooflinePoint] = []
    for index, (kind, layers) in enumerate(kinds):
        for part, time in product_times(Workload(kind, recipe, layout), machine).items():
            if part == "head" and index:
                continue  # the same one, of no layer
            of = "" if len(kinds) == 1 or part == "head" else (", dense layers" if index == 0 else ", expert layers")
            points.append(
                RooflinePoint(
                    part + of,
                    time.products,
                    time.sizes,
                    time.flop / time.least_bytes,
                    time.flop / time.forward_seconds,
                    time.peak_flop_per_second / machine.memory_bytes_per_second,
                    (time.forward_seconds + time.backward_seconds) * (1 if part == "head" else layers),
                )
            )
    return points
