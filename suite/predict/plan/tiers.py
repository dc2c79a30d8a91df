"""Which size of model fits which card: served at each width, trained with adapters, and trained whole."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from reference_runs.accelerator import Accelerator, accelerator
from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, Recomputation
from reference_runs.model_sizes import ModelSize
from reference_runs.run import Architecture, Position, Precision, Workload
from reference_runs.stack import stack
from suite.machine.half_precision import Kernels
from suite.predict.analytic.adapters import adapted_memory
from suite.predict.analytic.memory_uncertainty import PeakKind, peak_kind, peak_uncertainty
from suite.predict.analytic.parameters import parameter_count
from suite.predict.analytic.usable_memory import GIB, usable_memory
from suite.predict.analytic.weight_formats import ELEMENT_BYTES, WeightFormat
from suite.predict.plan.serving import (
    CHUNK,
    MEMORY_SHARE,
    ServingQuestion,
    needed_bytes,
    served_by_formula,
    split_widths,
)
from suite.predict.recorded_run.described_memory import described_peak

NODE = 8  # accelerators of a node
ADAPTER_RANK = 16
RECIPE_OF = "llama2-7b"  # the recipe without dropout, with AdamW, of which every training here is
# A card for each size of memory that the catalog has, the likeliest of those that are alike
CARDS = (
    *("v100-sxm-16gb", "rtx-4090", "v100-sxm-32gb", "a100-sxm-40gb", "l40s", "h100-sxm", "h100-nvl", "h200-sxm"),
    *("b200-sxm", "mi300x", "mi355x"),
)
CONSUMER = (8, 12)  # GiB of cards that the catalog does not have; what their driver keeps is as of LIKE, by its share
LIKE = "rtx-4090"
SCRIPTS = "pytorch"  # the stack that trains all weights


class Purpose(enum.StrEnum):
    """Purpose of a model.

    serve-16, serve-8, serve-4: answer one sequence, with weights in bf16, int8 or int4.
    qlora, lora: train adapters beside weights in NF4 or bf16.
    bf16: train all weights with AdamW in bf16 alone.
    mixed: train all weights with AdamW and fp32 master weights.
    """

    SERVE_16 = "serve-16"
    SERVE_8 = "serve-8"
    SERVE_4 = "serve-4"
    QLORA = "qlora"
    LORA = "lora"
    BF16 = "bf16"
    MIXED = "mixed"


_SERVED = {Purpose.SERVE_16: WeightFormat.BF16, Purpose.SERVE_8: WeightFormat.INT8, Purpose.SERVE_4: WeightFormat.INT4}
_ADAPTED = {Purpose.QLORA: WeightFormat.NF4, Purpose.LORA: WeightFormat.BF16}
_TRAINED = {Purpose.BF16: Precision.BF16_PURE, Purpose.MIXED: Precision.BF16}


class Card(NamedTuple):
    """A card's memory.

    Args:
        accelerator: its name in the catalog; None: the catalog has no card of this size.
        printed: bytes as printed.
        serving: bytes for serving, by the number of cards.
        adapters: bytes of the largest peak for training adapters, whose every tensor is counted, that fits.
        training: bytes of the largest peak for training all weights of which `fit` says that it fits.
    """

    accelerator: str | None
    printed: int
    serving: dict[int, float]
    adapters: float
    training: float

    def room(self, purpose: Purpose, cards: int) -> float:
        """Bytes for the purpose on each of so many."""
        if purpose in _SERVED:
            return self.serving[cards]
        return self.adapters if purpose in _ADAPTED else self.training


class SizedModel(NamedTuple):
    """Memory that a model needs on each card, by purpose and number of cards.

    Args:
        size: as people call it.
        needed: bytes; None: so many cards do not split it.
    """

    name: str
    size: str
    parameters: int
    needed: dict[tuple[Purpose, int], float | None]

    def fits(self, card: Card, purpose: Purpose, cards: int) -> bool:
        """Whether so many such cards do for the purpose."""
        needed = self.needed[purpose, cards]
        return needed is not None and needed <= card.room(purpose, cards)


class Tiers(NamedTuple):
    """Cards, and models of all sizes in their order."""

    context: int
    sequences: int
    cards: tuple[Card, ...]
    models: tuple[SizedModel, ...]

    def largest(self, card: Card, purpose: Purpose, cards: int) -> SizedModel | None:
        """The model of most parameters that fits."""
        return next((model for model in reversed(self.models) if model.fits(card, purpose, cards)), None)

    def smallest_card(self, model: SizedModel, purpose: Purpose, cards: int) -> Card | None:
        """The card of least memory of which so many do."""
        return next((card for card in self.cards if model.fits(card, purpose, cards)), None)


def tiers(models: Sequence[ModelSize], *, context: int, sequences: int) -> Tiers:
    """Which of the models fit which cards.

    Args:
        context: tokens of a sequence, served or trained on.
        sequences: served at a time.
    """
    sized = [_sized(each, context, sequences) for each in models]
    return Tiers(context, sequences, tuple(_cards()), tuple(sorted(sized, key=lambda model: model.parameters)))


def _cards() -> Iterator[Card]:
    like = accelerator(LIKE)
    for gibibytes in CONSUMER:
        share = gibibytes * GIB / like.board.memory_bytes
        board = msgspec.structs.replace(
            like.board, memory_bytes=gibibytes * GIB, reserved_bytes=share * (like.board.reserved_bytes or 0)
        )
        yield _card(msgspec.structs.replace(like, board=board), None)
    for name in CARDS:
        yield _card(accelerator(name), name)


def _card(device: Accelerator, name: str | None) -> Card:
    question = _question(device, 1, 1)
    serving = {cards: question.room(cards) for cards in (1, NODE)}
    usable = usable_memory(device.board).usable
    adapters, training = PeakKind.WALKED, peak_kind(stack(SCRIPTS).switches.keeping)
    rooms = (peak_uncertainty(kind).room(usable) for kind in (adapters, training))
    return Card(name, device.board.memory_bytes, serving, *rooms)


def _question(device: Accelerator, context: int, sequences: int) -> ServingQuestion:
    return ServingQuestion(device, 1, context, sequences, CHUNK, ELEMENT_BYTES, MEMORY_SHARE)


def _sized(model: ModelSize, context: int, sequences: int) -> SizedModel:
    shape = with_context(model.architecture, context)
    needed = {(purpose, cards): needs(shape, purpose, cards, sequences) for purpose in Purpose for cards in (1, NODE)}
    return SizedModel(model.name, model.size, parameter_count(shape), needed)


def with_context(architecture: Architecture, context: int) -> Architecture:
    """The model on sequences of so many tokens, or as many as its table of positions has rows for."""
    if architecture.position is Position.LEARNED:
        context = min(context, architecture.sequence + architecture.extra_positions)
    return msgspec.structs.replace(architecture, sequence=context)


def needs(shape: Architecture, purpose: Purpose, cards: int, sequences: int) -> float | None:
    """Bytes on each of so many cards for sequences of the shape's length; None: tensor parallelism does not divide it.

    Serving splits tensors over the cards; training shards weights, gradients and optimizer state (FSDP), of one
    sequence on each card, and computes every layer again in the backward pass. On one card fp32 weights are cast for
    each product (autocast).
    """
    if purpose in _SERVED:
        if any(width % cards for width in split_widths(shape).values()):
            return None
        question = _question(accelerator(LIKE), shape.sequence, sequences)
        return needed_bytes(served_by_formula(shape, question, cards), _SERVED[purpose], sequences=sequences)
    recipe = reference_run(RECIPE_OF).recipe
    if purpose in _ADAPTED:
        return adapted_memory(shape, recipe, base=_ADAPTED[purpose], rank=ADAPTER_RANK, ranks=cards).peak
    recipe = msgspec.structs.replace(recipe, precision=_TRAINED[purpose], global_batch=cards)
    layout = Layout(
        data_parallel=cards,
        zero_stage=3 if cards > 1 else 0,
        recomputation=Recomputation.FULL,
        fused_attention=True,
        micro_batch=1,
    )
    return described_peak(Workload(shape, recipe, layout), stack(SCRIPTS).switches.keeping, Kernels(cuda=True))
