"""Accelerator, stack, recipe, layout and network of the run that the cells of a published row describe."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from reference_runs.accelerator import (
    accelerator,
    accelerator_names,
    exact_accelerator,
    near_accelerator,
    worded_accelerator,
)
from reference_runs.accelerator_words import name_words
from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, Recomputation, RecomputedModule, StageAssignment
from reference_runs.machine_model import machine_model
from reference_runs.placement import balanced_stages
from reference_runs.published_cells import Cells, UnusableError
from reference_runs.published_shape import trains_adapters
from reference_runs.published_tables import TableFacts, load_tables
from reference_runs.published_words import DTYPES, dtype_named, worded_rate
from reference_runs.run import PRECISION_NAMES, AdapterTargets, Architecture, Precision, ProductFormat, Recipe
from reference_runs.stack import Modules, ReadStack, matches, reading, stack
from reference_runs.unsaid_reduction import reduction_of_stack

_MOST_OF_AN_ACCELERATOR = 1e11  # bytes per second of its interfaces: beyond that a rate is of more than one host


def stack_reading(
    framework: str, facts: TableFacts, device: str = "", *, model: str = "", stages: bool = False, split: bool = False
) -> ReadStack:
    """The stack that the text of a table's column `framework` stands for; "generic" where it is not known.

    Args:
        model: what the row calls it; software is no older than what it trains.
        stages: pipeline stages split the layers.
        split: tensor parallelism does so besides.
    """
    for pattern, name in facts.stacks.items():
        if matches(pattern, framework):
            return ReadStack(
                stack(name), f"{pattern.strip('*')!r} in this table" if pattern.strip("*") else "the table's"
            )
    later = (bool(device) and machine_model().is_later(device)) or any(
        matches(pattern, model) for pattern in load_tables().later_models
    )
    return reading(framework, later=later, stages=stages, split=split and stages)


def device_of(cells: Cells) -> str:
    """The catalog's name of the accelerator that the column `gpu` means.

    Raises:
        UnusableError: the catalog has none of that name.
    """
    text = cells.text("gpu")
    found = None if text.endswith(".toml") else exact_accelerator(text) or worded_accelerator(text)
    if found is None:
        near = near_accelerator(text)
        meant = f"did you mean {near}? " if near else ""
        raise UnusableError(f"gpu: {text!r} is not known; {meant}allowed: {', '.join(accelerator_names())}")
    open_texts = {name_words(entry.text) for entry in load_tables().open_accelerators}
    if name_words(text) in open_texts or exact_accelerator(text) is None:
        cells.assumed.append(f"gpu {text} = {found.name}")
    return found.name


def base_of(run: str | None, rest_as: str) -> tuple[Architecture, Recipe, Layout | None]:
    """Architecture, recipe and layout of a recorded run, for everything that a row leaves open.

    Args:
        run: the one that the row is of; None: none is, and `rest_as` says what neither row nor assumptions do.

    Returns:
        No layout without a run, or where an axis of the run's is not published.
    """
    recorded = reference_run(run or rest_as)
    return recorded.architecture, recorded.recipe, recorded.recorded_layout if run else None


def recipe_of(cells: Cells, base: Recipe, *, recorded: bool) -> Recipe:
    """The row's batch, precision and dropout; the rest is the recorded run's.

    A dtype that the recorded run's precision is of ("fp16" of fp16-gradient-copy) leaves that precision as it is.
    """
    batch = cells.count("global_batch")
    read_dtype(cells)
    if trains_adapters(cells.stated):
        targets = cells.choice("adapter_targets", AdapterTargets)
        base = msgspec.structs.replace(base, adapter_rank=cells.count("adapter_rank"), adapter_targets=targets)
    if cells.stated.get("imbalance"):
        base = msgspec.structs.replace(base, expert_imbalance=max(cells.number("imbalance"), 1.0))
    if recorded:
        said: dict[str, object] = {}
        if cells.stated.get("dtype") or cells.stated.get("precision"):
            precision = cells.choice("precision", Precision)
            said["precision"] = base.precision if base.precision.partition("-")[0] == precision else precision
        if cells.stated.get("dtype") or cells.said("product_format"):
            said["product_format"] = _products_of(cells)
        return msgspec.structs.replace(base, global_batch=batch, **said)
    dropout = cells.number("dropout")
    if dropout >= 1:
        raise UnusableError(f"dropout: expected a number below 1; got {dropout:g}")
    return msgspec.structs.replace(
        base,
        global_batch=batch,
        precision=cells.choice("precision", Precision),
        product_format=_products_of(cells),
        embedding_dropout=dropout,
        hidden_dropout=dropout,
        attention_dropout=dropout,
    )


def read_dtype(cells: Cells) -> None:
    """Put what `dtype` and `precision` say in place of their words: each may be words for a dtype, or a `Precision`.

    Raises:
        UnusableError: one is not known, both contradict each other, or both are blank and nothing is assumed.
    """
    if not cells.stated.get("precision"):
        cells.text("dtype")
    read = {column: _read_column(cells, column) for column in ("dtype", "precision") if cells.stated.get(column)}
    dtype, precision = read.get("dtype", ""), read.get("precision", "")
    if dtype and dtype not in DTYPES:
        dtype, precision = dtype.partition("-")[0], precision or dtype
    if precision and precision not in list(Precision):  # a format of products: weights are what is assumed of it
        if dtype not in ("", "bf16", precision) and not (precision == "fp8" and dtype.startswith("fp8-")):
            raise UnusableError(f"precision: {cells.stated['precision']!r} is not what dtype says, {dtype}")
        dtype, precision = precision if dtype in ("", "bf16") else dtype, ""
    cells.stated |= {"dtype": dtype, "precision": precision}


def _read_column(cells: Cells, column: str) -> str:
    """Meaning of the column's words: one of `DTYPES` or of `Precision`."""
    text = cells.stated[column]
    name = re.sub(r"[\s_-]+", "-", text.casefold())
    named = PRECISION_NAMES.get(name)
    pure = named if named is Precision.BF16_PURE else None  # words for others are those of a dtype
    said = name if name in list(Precision) else pure or dtype_named(text)
    if said is None:
        allowed = DTYPES if column == "dtype" else dict.fromkeys((*Precision, *DTYPES))
        raise UnusableError(f"{column}: {text!r} is not known; allowed: {', '.join(allowed)}")
    if said != text:
        cells.assumed.append(f"{column} {text} = {said}")
    return said


def _products_of(cells: Cells) -> ProductFormat:
    """The format of the row's products: none where nothing is said of it."""
    return cells.choice("product_format", ProductFormat) if cells.said("product_format") else ProductFormat.NONE


def layout_of(cells: Cells, base: Layout, *, recorded: bool, mixture: bool = False) -> Layout:
    """The row's layout; what it leaves open is the recorded run's, or assumed.

    Expert parallelism lies within the row's dp, as Megatron-Core counts: each of `ep` groups of experts has dp / ep
    replicas.
    """
    axes = {"data_parallel": "dp", "tensor_parallel": "tp", "pipeline_stages": "pp", "micro_batch": "micro_batch"}
    layout: dict[str, object] = {name: cells.count(column) for name, column in axes.items()} | {"accumulation": None}
    for key, column, read in (
        ("recomputation", "recompute", lambda column: cells.choice(column, Recomputation)),
        ("virtual_stages", "vpp", cells.count),
        ("context_parallel", "cp", cells.count),
        ("sequence_parallel", "sp", cells.claim),
        ("zero_stage", "zero_stage", lambda column: cells.count(column, least=0, most=3)),
    ):
        if not recorded or cells.stated.get(column):
            layout[key] = read(column)
    layout |= _recomputed_modules(cells)
    experts, whole = _expert_groups(cells)
    if mixture and not cells.stated.get("ep"):
        cells.assume("ep", "1")
    layout |= {"data_parallel": cells.count("dp") // experts, "expert_parallel": experts, "whole_experts": whole}
    if recorded:
        if layout["pipeline_stages"] == 1:
            layout["virtual_stages"] = 1
        return msgspec.structs.replace(base, **layout)
    return msgspec.structs.replace(
        base,
        **layout,
        stage_assignment=_assignment(cells),
        fused_attention=cells.claim("fused_attention"),
        scatter_gather=cells.claim("scatter_gather"),
    )


def _recomputed_modules(cells: Cells) -> dict[str, object]:
    """Fields of a row in a table that names modules, as --recompute-modules does: where it names none, none is.

    A row that says how much is recomputed has no modules of the recorded run's.
    """
    if cells.stated.get("recompute"):
        return {"recomputed_modules": ()}
    if "recompute_modules" not in cells.stated:
        return {}
    words = cells.stated["recompute_modules"].split()
    if unknown := [word for word in words if word not in {*RecomputedModule}]:
        raise UnusableError(f"recompute_modules: {unknown[0]!r} is not known; allowed: {', '.join(RecomputedModule)}")
    kind = Recomputation.SELECTIVE if words else Recomputation.NONE
    return {"recomputation": kind, "recomputed_modules": tuple(map(RecomputedModule, words))}


def _expert_groups(cells: Cells) -> tuple[int, bool]:
    """Groups of experts within the row's dp, and whether tensor-parallel ranks share out whole experts.

    These do where etp is 1, or where ep divides tp dp alone: then ep counts ranks of tp too.

    Raises:
        UnusableError: ep divides neither, or etp is neither 1 nor tp.
    """
    experts, data = cells.count("ep") if cells.stated.get("ep") else 1, cells.count("dp")
    tensor = cells.count("tp")
    splits = cells.count("etp") if cells.stated.get("etp") else None
    if splits not in (None, 1, tensor):
        raise UnusableError(f"etp: expected 1 or tp = {tensor}; got {splits}")
    whole = tensor > 1 and splits == 1 and experts > 1  # a single group has nothing to share out
    if not whole and data % experts == 0:
        return experts, False
    groups, rest = divmod(experts, tensor)
    if rest or not groups or data % groups or splits == tensor > 1:
        raise UnusableError(f"ep = {experts} does not divide dp = {data}, nor tp * dp")
    if not whole:
        cells.assumed.append(f"ep {experts} = {groups} * tp {tensor}, whole experts")
    return groups, True


def _assignment(cells: Cells) -> StageAssignment:
    """How layers are dealt: with the tables as layers where there are chunks for these alone."""
    chunks, layers = cells.count("pp") * cells.count("vpp"), cells.count("layers")
    if cells.stated.get("stage_assignment") or not layers < chunks <= layers + 2:
        return cells.choice("stage_assignment", StageAssignment)
    assignment = StageAssignment.LAYERS_AND_TABLES
    cells.assumed.append(f"stage_assignment = {assignment.value}")
    return assignment


def executed_layout(architecture: Architecture, layout: Layout, stack_name: str, run: str | None) -> Layout:
    """The layout with its stages' layers as the stack deals them, and gradients reduced as it does (ZeRO-1).

    Args:
        run: the recorded run that says what the row leaves open, which may say how gradients are reduced.
    """
    software = stack(stack_name)
    if software.switches.modules is Modules.NANOTRON and layout.pipeline_stages > 1 and layout.virtual_stages == 1:
        dealt = balanced_stages(architecture, stages=layout.pipeline_stages)
        layout = msgspec.structs.replace(layout, stage_layer_counts=tuple(blocks.layers for blocks in dealt))
    if software.switches.keeping.titan and layout.pipeline_stages > 1:
        layout = msgspec.structs.replace(layout, reshard_after_forward=False)  # torchtitan, parallelize_llama.py
    if run is not None and "layout.reduce_scatter" in reference_run(run).facts:
        return layout
    return reduction_of_stack(layout, software)


class Network(NamedTuple):
    """The network of a row.

    Args:
        accelerators_per_node: that reach each other without it.
        bytes_per_second: out of so many together; None: not known, and not needed where they hold the run.
    """

    accelerators_per_node: int
    bytes_per_second: float | None


def network_of(cells: Cells, device: str) -> Network:
    """The rate as a number, else as the words of `inter_link`, else as assumed: of the accelerator's usual node.

    Where the link of a board joins several hosts, all that it joins are a node here. A rate is of one host if the row
    counts the accelerators of a host, or says nothing of a node, or if its words have an interface for each of a
    host's: 4 x 400 Gbit/s of a GB200's compute tray are 72 x 400 Gbit/s of NVL72.

    Raises:
        UnusableError: the run has more accelerators than one node, and no rate is known.
    """
    board = accelerator(device).board
    if not cells.said("gpus_per_node"):
        cells.assume("gpus_per_node", str(board.accelerators_per_node))
    counted = cells.count("gpus_per_node")
    joined = board.joined(counted)
    if joined != counted:
        cells.assumed.append(f"gpus_per_node {counted} = {joined}")
    if (text := cells.stated.get("inter_link", "")) and not cells.stated.get("network_bytes_per_second"):
        host = board.accelerators_per_host or counted
        rate = worded_rate(text, counted if cells.stated.get("gpus_per_node") else host)
        if rate is not None:
            unsaid = not cells.stated.get("gpus_per_node") and rate.interfaces != joined
            of_host = rate.interfaces == host or (unsaid and rate.bytes_per_second <= host * _MOST_OF_AN_ACCELERATOR)
            whole = rate.bytes_per_second * joined / (host if of_host else counted)
            cells.assumed.append(f"inter_link {text} = {8e-9 * whole:,.6g} Gbit/s a node")
            return Network(joined, whole)
        cells.assumed.append(f"inter_link {text} = no rate")
    if cells.count("gpus") <= joined and not cells.stated.get("network_bytes_per_second"):
        return Network(joined, None)
    usual = board.usual_network_bytes_per_second(counted)
    if not cells.said("network_bytes_per_second") and usual is not None:
        cells.assume("network_bytes_per_second", f"{usual:g}")
    if not cells.said("network_bytes_per_second"):
        what = "inter_link and network_bytes_per_second are blank, or name no rate"
        raise UnusableError(f"{what}, for more than one node")
    return Network(joined, cells.positive("network_bytes_per_second") * joined / counted)
