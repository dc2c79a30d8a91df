"""Muon's state and products are those of PyTorch's class, and its time is shared by the ranks that share its state."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.run import Optimizer, Workload
from suite.execute.model.decoder import Decoder
from suite.predict.analytic.memory import kept_moment_bytes
from suite.predict.analytic.muon import (
    momentum_elements,
    orthogonalisation_flop,
    orthogonalisation_seconds,
    orthogonalised,
)
from suite.predict.analytic.parameters import rank_parameters
from suite.predict.analytic.stage_memory import stage_memory
from tests.support.layouts import machine_of

MINI = reference_run("qwen3-30b-a3b")
SMALL = msgspec.structs.replace(
    MINI.architecture, layers=2, hidden=48, heads=6, head_dim=8, kv_heads=2, experts=4, experts_per_token=2
)
SMALL = msgspec.structs.replace(SMALL, expert_ffn_hidden=40, vocabulary=96, padded_vocabulary=96, rotary_dim=8)
MUON = msgspec.structs.replace(MINI.recipe, optimizer=Optimizer.MUON)


def matrices(model: Decoder) -> Iterator[torch.Tensor]:
    """The matrices of the layers as Muon takes them: halves of expansions, queries, keys, values and experts apart."""
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or "blocks" not in name:
            continue
        each = parameter.chunk(SMALL.experts or 1) if ".experts." in name else [parameter]
        for matrix in each:
            if "query_key_value" in name:
                yield from matrix.split([48, 16, 16])
            elif "expansion" in name:
                yield from matrix.chunk(2)
            else:
                yield matrix


def test_flop_and_state_are_those_of_torch_muon() -> None:
    workload = Workload(SMALL, MUON, Layout())
    model = Decoder(SMALL, MUON)
    taken = [torch.nn.Parameter(matrix.detach().float().clone()) for matrix in matrices(model)]
    for parameter in taken:
        parameter.grad = torch.ones_like(parameter)
    muon = torch.optim.Muon(taken)
    with FlopCounterMode(display=False) as counter:
        muon.step()
    of_formula = sum(map(orthogonalisation_flop, orthogonalised(workload, stage=0)))
    assert of_formula == counter.get_total_flops()
    momentum = sum(state["momentum_buffer"].nbytes for state in muon.state.values())
    assert momentum == 4 * momentum_elements(workload, stage=0)
    parameters = rank_parameters(SMALL, Layout(), stage=0).all
    others = parameters - sum(parameter.numel() for parameter in taken)
    kept = parameters * kept_moment_bytes(workload, stage=0, parameters=parameters)
    assert kept == pytest.approx(momentum + 8 * others, rel=1e-12)  # moments of AdamW for the rest


def test_the_state_of_kimi_k2_has_nearly_four_bytes_less_a_parameter_than_with_adamw() -> None:
    run = reference_run("kimi-k2")
    layout = Layout(data_parallel=2, pipeline_stages=16, expert_parallel=16, zero_stage=1)
    recipes = run.recipe, msgspec.structs.replace(run.recipe, optimizer=Optimizer.ADAMW)
    muon, adamw = (
        stage_memory(Workload(run.architecture, recipe, layout), stage=1, micro_batches=16) for recipe in recipes
    )
    others = ("weights", "gradients", "gradient_copy", "master_weights", "activations")
    assert [getattr(muon, name) for name in others] == [getattr(adamw, name) for name in others]
    assert adamw.peak - muon.peak == pytest.approx(adamw.moments - muon.moments, rel=1e-9)
    # a middle stage has matrices, and vectors: 4 norms of at most 7168 a layer, and the routers' biases
    assert muon.moments / adamw.moments == pytest.approx(0.5, abs=1e-4)


def test_ranks_that_share_the_state_share_the_iterations() -> None:
    run = reference_run("kimi-k2")
    machine = machine_of(reference_run("llama3.1-8b"))
    assert machine is not None

    def seconds(ranks: int, zero_stage: int) -> float:
        layout = Layout(data_parallel=ranks, pipeline_stages=16, expert_parallel=16, zero_stage=zero_stage)
        return orthogonalisation_seconds(Workload(run.architecture, run.recipe, layout), machine, stage=1)

    assert seconds(4, 1) == pytest.approx(seconds(1, 1) / 4, rel=1e-12)
    assert seconds(4, 0) > 4 * seconds(4, 1)
    adamw = msgspec.structs.replace(run.recipe, optimizer=Optimizer.ADAMW)
    assert orthogonalisation_seconds(Workload(run.architecture, adamw, Layout()), machine, stage=0) == 0
