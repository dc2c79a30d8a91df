"""Options of a training script, and of how its steps are executed."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from suite.machine.half_precision import Kernels
from suite.stored_words import DOCUMENTS, in_todays_words

POWER_SGD_RANK = 4  # of the factors that approximate a gradient matrix


class Update(enum.StrEnum):
    """The implementation of the optimizer's step; all but the last compute the recipe's Adam."""

    FOREACH = "foreach"
    LOOP = "loop"
    FUSED = "fused"
    ADAFACTOR = "adafactor"


class Optimization(enum.StrEnum):
    """A faster way to execute a step on one GPU: the same arithmetic, rounded at other places.

    EPILOGUES: GELU, its gradient and the gradients of biases in the epilogues of cuBLASLt's GEMMs.
    TUNED_GEMMS: weight gradients by the fastest of cuBLASLt's algorithms, those that split the depth among them.
    PACKED_GRADIENTS: attention writes the gradients of queries, keys and values into one buffer.
    ACROSS_BLOCKS: the residual sum at the end of a block is computed with the next block's norm.
    FLASH_ATTENTION_3: attention by FlashAttention 3.
    MICRO_BATCH_GRAPH: each pass of a micro-batch is a CUDA graph.
    DEPENDENT_LAUNCH: a compiled kernel is launched before the one that it waits for has ended.
    ONE_PASS_UPDATE: clipping, AdamW and the 16-bit copy of the weights are one pass over memory.
    """

    EPILOGUES = "epilogues"
    TUNED_GEMMS = "tuned-gemms"
    PACKED_GRADIENTS = "packed-gradients"
    ACROSS_BLOCKS = "across-blocks"
    FLASH_ATTENTION_3 = "flash-attention-3"
    MICRO_BATCH_GRAPH = "micro-batch-graph"
    DEPENDENT_LAUNCH = "dependent-launch"
    ONE_PASS_UPDATE = "one-pass-update"


class Texts(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a script that tokenises its text.

    Args:
        tokenizer_file: the byte-pair encoding, in the tokenizers library's JSON.
        text_file: all documents, concatenated, in UTF-8.
        documents_file: JSON of the documents' offsets in the text and in the tokens (`Documents`).
    """

    tokenizer_file: str
    text_file: str
    documents_file: str


class Documents(msgspec.Struct, frozen=True):
    """A corpus of documents: the offset of each one, in bytes of the text and in tokens, and the end of the last."""

    byte_offsets: list[int]
    token_offsets: list[int]


def document_offsets(texts: Texts) -> Documents:
    """The offsets of a script's documents, from the file that the cache has of them."""
    return msgspec.json.decode(in_todays_words(Path(texts.documents_file).read_bytes(), DOCUMENTS), type=Documents)


class ScriptOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between a training script and the suite's own; by default there are none.

    Args:
        tokenises: whether each sample's documents are read and tokenised every time.
        workers: processes that prepare batches ahead; 0: batches are made when they are needed.
        pinned: whether batches are in page-locked memory and copied one ahead on a separate stream. CUDA only.
        synchronises: whether every step waits for a number of every micro-batch and of every parameter, and logs the
            weights' norm with autograd recording.
        keeps_gradients: whether gradients are zeroed in place, and so stay allocated.
        in_place: whether operators write into their inputs where autograd allows it.
        offloads_activations: whether saved activations are kept in the host's memory. CUDA only.
        loss_chunks: parts of a micro-batch's tokens whose logits exist one after the other.
        cpp_operator: whether scale, mask and softmax are one operator, written in C++.
        optimizations: in the order of `Optimization`, each at most once.
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
    optimizations: tuple[Optimization, ...] = ()

    @property
    def updates_in_one_pass(self) -> bool:
        """Whether clipping, Adam and the rounded weights are one kernel: only in place of PyTorch's fused Adam."""
        return Optimization.ONE_PASS_UPDATE in self.optimizations and self.update is Update.FUSED


class TrainingOptions(ScriptOptions, frozen=True, kw_only=True):
    """The options of a launch's script.

    Args:
        rung: of the ladder, for example "speed/compile"; empty for the suite's own script.
        texts: of a script that tokenises.
    """

    rung: str
    texts: Texts | None = None


DEFAULT_OPTIONS = TrainingOptions(rung="")


class KernelChoice(enum.StrEnum):
    """The kernels that compute everything in a decoder except matrix products."""

    TORCH = "torch"
    TRITON = "triton"


class Averaging(enum.StrEnum):
    """How gradients, or what replaces them, are averaged over the data-parallel ranks."""

    EXACT = "exact"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "powersgd"
    ONE_BIT = "one-bit-adam"

    @property
    def exact_at_first(self) -> bool:
        """Whether its first steps average exactly."""
        return self in (Averaging.POWER_SGD, Averaging.ONE_BIT)


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The execution options that all ranks of a launch share.

    Args:
        kernels: of the machine that runs it.
        compiled: whether blocks are compiled.
        averaging: over the data-parallel ranks, in the steps after those that average exactly.
        triton: whether memory is that of Triton kernels. Times are predicted of PyTorch's operators in any case.
    """

    kernels: Kernels = Kernels()
    compiled: bool = False
    training_options: TrainingOptions = DEFAULT_OPTIONS
    averaging: Averaging = Averaging.EXACT
    triton: bool = False


DEFAULT_STEP = StepOptions()
