"""How a training script is written, where it is not written as the suite writes its own."""

from __future__ import annotations

import enum

import msgspec

POWER_SGD_RANK = 4  # of the factors that stand for a gradient matrix


class Update(enum.StrEnum):
    """By what the optimizer's step is computed; all but the last are the recipe's Adam."""

    FOREACH = "foreach"
    LOOP = "loop"
    FUSED = "fused"
    ADAFACTOR = "adafactor"


class Texts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a script that tokenises finds its text.

    Args:
        tokenizer_file: the byte-pair encoding, in the tokenizers library's JSON.
        text_file: all documents, UTF-8, one behind the other.
        documents_file: JSON of the documents' places in it, and among the tokens.
    """

    tokenizer_file: str
    text_file: str
    documents_file: str


class Documents(msgspec.Struct, frozen=True):
    """The documents of a corpus: where each one begins, in bytes of the text and in tokens; and where the last ends."""

    byte_places: list[int]
    token_places: list[int]


class TrainingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a script does in another way than the suite; by default nothing.

    Args:
        tokenises: whether each sample's documents are read and tokenised anew.
        workers: processes that make batches ahead; 0: they are made when they are needed.
        pinned: whether batches lie in page-locked memory and are copied one ahead, on a stream of their own. CUDA only.
        synchronises: whether every step waits for a number of every micro-batch and of every parameter, and logs the
            weights' norm with autograd recording.
        keeps_gradients: whether gradients are zeroed where they lie, and so stay allocated.
        in_place: whether operators write into their inputs where autograd lets them.
        offloads_activations: whether what autograd keeps lies in the host's memory. CUDA only.
        loss_chunks: parts of a micro-batch's tokens whose logits exist one after the other.
        cpp_operator: whether scale, mask and softmax are one operator, written in C++.
        rung: of the ladder, "speed/compile"; empty of the suite's own script.
        texts: of a script that tokenises.
    """

    tokenises: bool = False
    workers: int = 0
    pinned: bool = False
    synchronises: bool = False
    keeps_gradients: bool = False
    in_place: bool = False
    update: Update = Update.FUSED
    offloads_activations: bool = False
    loss_chunks: int = 1
    cpp_operator: bool = False
    rung: str
    texts: Texts | None = None


DEFAULT_OPTIONS = TrainingOptions(rung="")


class KernelChoice(enum.StrEnum):
    """By what a decoder computes all but its matrix products."""

    TORCH = "torch"
    TRITON = "triton"


class Averaging(enum.StrEnum):
    """How gradients, or what takes their place, are averaged over the data-parallel ranks."""

    EXACT = "exact"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "powersgd"
    ONE_BIT = "one-bit-adam"

    @property
    def exact_at_first(self) -> bool:
        """Whether its first steps average exactly."""
        return self in (Averaging.POWER_SGD, Averaging.ONE_BIT)
