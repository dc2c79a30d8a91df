"""Whole models predicted from published steps of models with fewer of the same layers, their proxies.

The seconds of a layer are those that give the proxy its published step; all else is the machine model's. It is what a
measured slice of a run goes through (recorded_run/from_slice.py), but a slice measures its layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import layout_text
from reference_runs.machine_model import machine_model
from reference_runs.published import PublishedRow, PublishedTable
from reference_runs.run import ProductFormat
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.measured_parts import PartSeconds, modelled_parts
from suite.predict.analytic.step_time import step_time
from suite.predict.machine_model.model import PreparedRow, prepared_row, row_machine

MOST_FACTOR = 1e3  # of a layer's seconds over the machine model's


class ProxyPair(msgspec.Struct, frozen=True, kw_only=True):
    """A published step, predicted from the published step of a proxy with fewer of its layers.

    Args:
        proxy_line, line: of the table's file.
        layer_seconds: of one micro-batch in one layer, both passes, from the proxy; `modelled_layer_seconds`: plainly.
        plain_seconds: of the step, predicted without the proxy.
        error_percent: predicted over measured, less 1; `plain_error_percent`: of the plain prediction.
    """

    table: str
    model: str
    products: str
    proxy_line: int
    proxy_layers: int
    proxy_accelerators: int
    proxy_stages: int
    line: int
    layers: int
    accelerators: int
    layout: str
    layer_seconds: float
    modelled_layer_seconds: float
    measured_seconds: float
    predicted_seconds: float
    plain_seconds: float
    error_percent: float
    plain_error_percent: float
    edition: str = msgspec.field(default_factory=lambda: machine_model().edition)


def proxy_pairs(table: PublishedTable) -> list[ProxyPair]:
    """Every step of the table from each of its proxies.

    A proxy has fewer of the same layers, split over as many accelerators.

    The same are architecture, precision and products, micro-batch, recomputation, stack and accelerator; tensor,
    context and expert parallelism. Pipeline stages, replicas and batch may differ.
    """
    rows = [row for row in table.rows if row.step_seconds is not None]
    return list(_pairs(rows))


def _pairs(rows: list[PublishedRow]) -> Iterator[ProxyPair]:
    for proxy in rows:
        larger = [
            row for row in rows if _layer(row) == _layer(proxy) and row.architecture.layers > proxy.architecture.layers
        ]
        if not larger:
            continue
        parts = parts_of_proxy(proxy)
        for row in larger:
            prepared, machine = _prepared(row)
            measured, plain = row.step_seconds or 0.0, _seconds(prepared, machine, None)
            predicted = _seconds(prepared, machine, parts)
            products = row.recipe.product_format
            yield ProxyPair(
                table=row.table,
                model=row.model,
                products=row.recipe.precision.value if products is ProductFormat.NONE else products.value,
                proxy_line=proxy.line,
                proxy_layers=proxy.architecture.layers,
                proxy_accelerators=proxy.layout.ranks,
                proxy_stages=proxy.layout.pipeline_stages,
                line=row.line,
                layers=row.architecture.layers,
                accelerators=row.layout.ranks,
                layout=layout_text(row.layout),
                layer_seconds=parts.layers[-1].total,
                modelled_layer_seconds=modelled_parts(row.workload, machine).layers[-1].total,
                measured_seconds=measured,
                predicted_seconds=predicted,
                plain_seconds=plain,
                error_percent=100 * (predicted / measured - 1),
                plain_error_percent=100 * (plain / measured - 1),
            )


def parts_of_proxy(proxy: PublishedRow) -> PartSeconds:
    """Seconds of each part: of the layers those with which the proxy's step takes as long as published.

    Layers of several kinds keep the machine model's proportions, and so do forward and backward pass.

    Raises:
        InputError: the machine model says that all else takes longer than the published step, or the published step is
            `MOST_FACTOR` times what it says.
    """
    from scipy.optimize import brentq

    prepared, machine = _prepared(proxy)
    modelled = modelled_parts(proxy.workload, machine)

    def parts(factor: float) -> PartSeconds:
        return modelled._replace(layers=tuple(layer.times(factor) for layer in modelled.layers))

    def beyond(factor: float) -> float:
        return _seconds(prepared, machine, parts(factor)) - (proxy.step_seconds or 0.0)

    if not beyond(0.0) < 0 < beyond(MOST_FACTOR):
        got = f"{proxy.step_seconds} s on line {proxy.line} of {proxy.table}"
        raise InputError("no time of a layer gives the proxy's step", got=got)
    return parts(float(brentq(beyond, 0.0, MOST_FACTOR, xtol=1e-12)))


def _layer(row: PublishedRow) -> tuple[Any, ...]:
    """Properties that two rows share whose layers take as long."""
    layout, recipe = row.layout, row.recipe
    return (
        *(row.model, row.stack, row.accelerator, msgspec.structs.replace(row.architecture, layers=1)),
        *(recipe.precision, recipe.product_format, layout.micro_batch, layout.tensor_parallel),
        *(layout.context_parallel, layout.expert_parallel, layout.sequence_parallel, layout.recomputation),
    )


def _prepared(row: PublishedRow) -> tuple[PreparedRow, Machine]:
    model, prepared = machine_model(), prepared_row(row)
    return prepared, row_machine(model, model.values(), prepared)


def _seconds(prepared: PreparedRow, machine: Machine, parts: PartSeconds | None) -> float:
    workload = prepared.row.workload
    return step_time(
        workload, machine, micro_batches=prepared.micro_batches, traffic=prepared.traffic, parts=parts
    ).total_seconds
