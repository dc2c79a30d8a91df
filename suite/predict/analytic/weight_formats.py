"""Bytes of weights in the formats of serving and of QLoRA: 16 bits, or fewer with their scales."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

from reference_runs.run import Architecture
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.parameters import layer_tensors, outer_tensors
from suite.predict.analytic.stage_layers import layer_kinds

ELEMENT_BYTES = 2  # of whatever stays in 16 bits
GROUP = 128  # elements of a row that share a scale in int4: torchao's, GPTQ's and AWQ's usual size
NF4_BLOCK, NF4_SUPERBLOCK = 64, 256  # elements that share a scale, and scales that share a second one: bitsandbytes
_WHOLE = (
    "feed_forward.router.",
    "feed_forward.shared_gate.",
    "attention.convolution.",
)  # matrices of a layer that software leaves in 16 bits


class WeightFormat(enum.StrEnum):
    """How the matrices of linear layers and experts are stored; embeddings, head, router, norms and biases stay bf16.

    bf16: 2 bytes an element.
    fp8: e4m3, and an fp32 scale a row.
    int8: an fp32 scale and an 8-bit zero point a row.
    int4: packed in pairs; a scale and a zero point, of 16 bits each, for every 128 elements of a row.
    nf4: packed in pairs; an 8-bit scale for every 64 elements, an fp32 scale for every 256 of these: QLoRA's.
    """

    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    NF4 = "nf4"


SERVED = (WeightFormat.BF16, WeightFormat.FP8, WeightFormat.INT8, WeightFormat.INT4)


class Matrices(NamedTuple):
    """So many equal matrices, each [rows, columns]: outputs by inputs.

    Args:
        stacked: whether they are the experts of mixtures.
    """

    rows: int
    columns: int
    number: int = 1
    stacked: bool = False

    @property
    def elements(self) -> int:
        """Elements of all of them."""
        return self.number * self.rows * self.columns


class WeightParts(NamedTuple):
    """Weights of one tensor-parallel rank.

    Args:
        linear: matrices that a format of fewer bits stores in it.
        tables: elements of embeddings, position tables and head.
        others: elements of norms, biases and routers.
    """

    linear: tuple[Matrices, ...]
    tables: int
    others: int

    @property
    def linear_elements(self) -> int:
        """Elements of the matrices in `linear`."""
        return sum(each.elements for each in self.linear)

    @property
    def whole_bytes(self) -> int:
        """Bytes that stay in 16 bits in every format."""
        return ELEMENT_BYTES * (self.tables + self.others)

    def bytes(self, weight_format: WeightFormat) -> int:
        """Bytes of all weights in the format."""
        return self.whole_bytes + sum(matrices_bytes(weight_format, each) for each in self.linear)


def matrices_bytes(weight_format: WeightFormat, matrices: Matrices) -> int:
    """Bytes of so many matrices of m rows and n columns in a format, scales included.

        bf16    2 m n
        fp8     m n + 4 m
        int8    m n + 5 m
        int4    ceil(m n / 2) + 4 m ceil(n / 128)
        nf4     ceil(m n / 2) + S + 4 ceil(S / 256) + 4, with S = ceil(m n / 64) scales; the last 4 are their offset

    Source: torchao 0.18, Int8WeightOnlyConfig, Int4WeightOnlyConfig and Float8WeightOnlyConfig, counted on its tensors
    by `nox -s parity`; nf4: Dettmers et al. 2023, arXiv 2305.14314, section 3, with double quantisation: 0.127 bits of
    scales an element (bitsandbytes keeps tables of 1 KiB a matrix besides). GPTQ and AWQ pack zero points in 4 bits:
    2.5 bytes a group in place of int4's 4.
    """
    elements = matrices.rows * matrices.columns
    packed = ceil_division(elements, 2)
    each = {
        WeightFormat.BF16: ELEMENT_BYTES * elements,
        WeightFormat.FP8: elements,
        WeightFormat.INT8: elements,
        WeightFormat.INT4: packed,
        WeightFormat.NF4: packed,
    }
    return matrices.number * each[weight_format] + scale_bytes(weight_format, matrices)


def scale_bytes(weight_format: WeightFormat, matrices: Matrices) -> int:
    """Bytes of the scales among `matrices_bytes`."""
    rows, columns, number, _ = matrices
    scales = ceil_division(rows * columns, NF4_BLOCK)
    each = {
        WeightFormat.BF16: 0,
        WeightFormat.FP8: 4 * rows,
        WeightFormat.INT8: 5 * rows,
        WeightFormat.INT4: 4 * rows * ceil_division(columns, GROUP),
        WeightFormat.NF4: scales + 4 * ceil_division(scales, NF4_SUPERBLOCK) + 4,
    }
    return number * each[weight_format]


def weight_parts(architecture: Architecture, *, tensor_parallel: int = 1) -> WeightParts:
    """Weights of one of so many tensor-parallel ranks, which store key-value heads again where they have too few.

    Norms, biases of summed outputs, routers and latent attention's compression are on every rank; experts are split in
    their width. A tied embedding is stored once.
    """
    linear: list[Matrices] = []
    others = tables = 0
    for kind, layers in layer_kinds(architecture):
        for tensor in layer_tensors(kind, tensor_parallel=tensor_parallel):
            of_linear = tensor.matrix and tensor.name.endswith(".weight")  # and no biases of experts
            if of_linear and not tensor.name.startswith(_WHOLE):
                linear += _split(tensor.name, tensor.rows, tensor.elements // tensor.rows, layers, kind)
            else:
                others += layers * tensor.elements
    for tensor in (tensor for part in outer_tensors(architecture, tensor_parallel=tensor_parallel) for tensor in part):
        if tensor.matrix:
            tables += tensor.elements
        else:
            others += tensor.elements
    return WeightParts(tuple(linear), tables, others)


def _split(name: str, rows: int, columns: int, layers: int, architecture: Architecture) -> Iterator[Matrices]:
    """The matrices of a tensor of one layer, times the layers: experts are stored one after the other."""
    stacked = name.startswith("feed_forward.experts.")
    experts = (architecture.experts or 1) if stacked else 1
    yield Matrices(rows // experts, columns, layers * experts, stacked)
