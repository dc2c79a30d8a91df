"""Software stacks as data: what a framework fuses, overlaps, waits for and sends, each switch with its source."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from reference_runs.errors import InputError, nearest
from reference_runs.recorded_file import read_toml, section_of, shown_path
from reference_runs.sourced import Sourced

STACKS = Path(__file__).parent / "stacks.toml"
GENERIC = "generic"
OWN_NAME = "by its own name"
UNNAMED = "no framework is named"

# Words of the layout grammar, without numbers, that not every stack executes; all have dp, 1f1b and recompute-none.
# cp-fused: cp where attention is fused, and not only where it stores its scores.
# uneven: layers that stages or chunks do not divide. stages-first: ranks in the order tp-cp-pp-dp besides tp-cp-dp-pp.
SEARCHED = (
    *("tp", "sp", "cp", "cp-fused", "ep", "pp", "interleave", "uneven", "layers-and-tables"),
    *("zero-bubble", "zbv", "dualpipev", "stages-first", "any-order"),
    *("zero1", "all-reduce", "reduce-scatter", "zero2", "zero3", "shard", "recompute-selective", "recompute-full"),
    "recompute-selective-op",
    "offload-optimizer",
)

# The axes among them, each with the field of `Layout` that says how many ranks or chunks it has.
SIZES = {
    "tp": "tensor_parallel",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "pp": "pipeline_stages",
    "interleave": "virtual_stages",
}
_ABOUT = ("title", "frameworks", "measured", "newer", "with_stages", "like", "anywhere", "library", "split")

Count = Annotated[int, msgspec.Meta(ge=1, extra={"unit": "1"})]


class Generation(enum.StrEnum):
    """Which libraries compute: matrix products of one accelerator became faster from one to the next.

    early-2021: Megatron-LM of January 2021, and the forks that left it then (DeepSpeed's, GPT-NeoX, BLOOM's, GLM's).
    2021: Megatron-LM of the second half of 2021.
    current: what came later.
    """

    EARLY_2021 = "early-2021"
    LATE_2021 = "2021"
    CURRENT = "current"


class AttentionKernel(enum.StrEnum):
    """Kernel of attention: batched matrix multiplications that store the scores, or one that does not."""

    UNFUSED = "unfused"
    FLASH_ATTENTION_1 = "flash-attention-1"
    FLASH_ATTENTION_2 = "flash-attention-2"
    CUDNN = "cudnn"


class ContextParallel(enum.StrEnum):
    """How context-parallel ranks share keys and values.

    gathered: those of all ranks are gathered before attention begins.
    ring: a block of them travels while attention computes with the one before it; each rank has as many scores.
    pytorch, pytorch-2.5: likewise, with one kernel a block and sums of their results, by PyTorch's `context_parallel`;
    up to 2.5 each rank has consecutive positions, so that the last one has most scores.
    """

    GATHERED = "gathered"
    RING = "ring"
    PYTORCH = "pytorch"
    PYTORCH_2_5 = "pytorch-2.5"


class Accumulation(enum.StrEnum):
    """How gradients of several micro-batches are added up.

    separate: a kernel adds each micro-batch's gradient to the sum.
    separate-always: the same, also for the only micro-batch of a step.
    in-product: the product that computes a gradient adds it to the sum.
    """

    SEPARATE = "separate"
    SEPARATE_ALWAYS = "separate-always"
    IN_PRODUCT = "in-product"


class Modules(enum.StrEnum):
    """How modules are written, which decides what they keep for the backward pass.

    fused: with kernels of their own. nanotron: likewise, as nanotron's, whose log reserves much more than its tensors,
    and which deals layers to pipeline stages by their flop, the head counted.
    megatron-core: likewise, with Transformer Engine and Megatron-Core's fused activations. nemo: the same, with
    gradients in 16 bits. hai-llm: likewise, as DeepSeek-V3 was trained, with inputs of activations in 8 bits.
    eager: operator by operator, as in Transformers.
    torchtitan: likewise, as in torchtitan, whose loss takes logits widened to fp32. torchtitan-compiled: each layer
    compiled, the loss not.
    this-suite: as `reproduce` launches suite/execute, compiled on GPUs; memory is what a walk through the whole step
    holds, block by block. this-suite-eager: the same without a compiler.
    scripts, transformers: as layers of scripts and of transformers are written, walked through likewise. deepspeed:
    transformers' under DeepSpeed's ZeRO.
    """

    FUSED = "fused"
    NANOTRON = "nanotron"
    MEGATRON_CORE = "megatron-core"
    NEMO = "nemo"
    HAI_LLM = "hai-llm"
    EAGER = "eager"
    TORCHTITAN = "torchtitan"
    TORCHTITAN_COMPILED = "torchtitan-compiled"
    THIS_SUITE = "this-suite"
    THIS_SUITE_EAGER = "this-suite-eager"
    SCRIPTS = "scripts"
    TRANSFORMERS = "transformers"
    DEEPSPEED = "deepspeed"


class Keeping(NamedTuple):
    """How a stack's modules are written, and which weights are in fp32: what its memory depends on.

    Args:
        fp32_shards: whether ZeRO-2 and 3 shard fp32 weights (FSDP), with no master weights beside 16-bit ones.
        primary_in_format: products in 8 bits have no 16-bit weights beside those in their format.
    """

    modules: Modules
    fp32_shards: bool
    primary_in_format: bool = False

    @property
    def eager(self) -> bool:
        """Whether modules are executed operator by operator."""
        return self.scripted or self.modules in (Modules.EAGER, Modules.TORCHTITAN)

    @property
    def megatron_layers(self) -> bool:
        """Whether layers work as Megatron's do, in the backward pass too."""
        return self.modules in (Modules.FUSED, Modules.MEGATRON_CORE, Modules.NEMO, Modules.HAI_LLM)

    @property
    def fused_gate(self) -> bool:
        """Whether a gated activation is one kernel, which keeps its input alone.

        Gates of experts weigh what it puts out, so that nothing needs the experts' outputs.
        """
        return self.modules in (Modules.MEGATRON_CORE, Modules.NEMO, Modules.HAI_LLM)

    @property
    def narrow_activation_inputs(self) -> bool:
        """Whether inputs of activations are kept in the products' format."""
        return self.modules is Modules.HAI_LLM

    @property
    def narrow_gradients(self) -> bool:
        """Whether gradients of bf16 training are added up in 16 bits."""
        return self.modules is Modules.NEMO

    @property
    def fused_dropout(self) -> bool:
        """Whether dropout is applied in the kernel that adds the residual."""
        return not self.eager and self.modules is not Modules.THIS_SUITE_EAGER

    @property
    def fsdp2(self) -> bool:
        """Whether ZeRO-3 is PyTorch's `fully_shard` for certain: scripts that are not named may have FSDP1."""
        return self.titan or (self.walked and self.modules is not Modules.SCRIPTS)

    @property
    def titan(self) -> bool:
        """Whether modules are torchtitan's."""
        return self.modules in (Modules.TORCHTITAN, Modules.TORCHTITAN_COMPILED)

    @property
    def fused_chains(self) -> bool:
        """Whether a compiler joins what lies between two products, and reads and writes each tensor once."""
        return self.modules is Modules.TORCHTITAN_COMPILED

    @property
    def walked(self) -> bool:
        """Whether the step is walked through; otherwise formulas say what it holds."""
        return self.scripted or self.modules in (Modules.THIS_SUITE, Modules.THIS_SUITE_EAGER)

    @property
    def scripted(self) -> bool:
        """Whether the step is walked through that a script executes, under plain PyTorch or DeepSpeed."""
        return self.modules in (Modules.SCRIPTS, Modules.TRANSFORMERS, Modules.DEEPSPEED)


NO_KEEPING = Keeping(Modules.FUSED, fp32_shards=False)


class Stack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Switches of a software stack: closed choices and counts, nothing fitted.

    Args:
        layer_kernels: kernels of the forward pass through one dense layer, collectives left out.
        head_kernels: kernels of head and loss, forward.
        python_launches: the host launches kernels one by one from Python; otherwise it is never the slower one.
        fused_bias: the expansion's bias is added in the kernel of the activation.
        fused_rotary: queries and keys are rotated by one kernel.
        loss_share: bytes of the cross-entropy over those of one that keeps an fp32 copy of every step.
        tensor_parallel_chunks: pieces in which a tensor-parallel collective overlaps with its product, with sequence
            parallelism inside a node; 1: none.
        transformer_engine: linear layers are Transformer Engine's: norms and gradients are cast before they are
            gathered, and collectives in pieces overlap as its methods have it.
        overlaps_input_gradients: tensor-parallel messages of a product's input and of its gradient go on, in the
            backward pass, next to the product that does not need them.
        overlaps_data_parallel: gradients are reduced while the backward pass goes on.
        overlaps_gathers: new weights are gathered while the next step's forward pass goes on.
        reduces_in_16_bit: gradients travel in 16 bit, whatever they are added up in.
        gathers_in_format: new weights of products in 8 bits are cast before they are gathered, so that with ZeRO-1 no
            rank has whole ones in 16 bits.
        context_parallel: how ranks with parts of a sequence share keys and values.
        overlaps_experts: tokens travel to their experts and back while other tokens are computed.
        sends_once_to_nodes: a token goes once to each node that has experts of it, and from there to their ranks over
            the node's own links; otherwise once to each expert.
        overlaps_pipeline: the next chunk is computed while a stage's output is sent, where stages interleave.
        synchronises_layers: the host waits for the accelerator at every recomputed layer.
        one_ring: collectives between nodes go through one network interface.
        modules: what they keep of activations.
        fp32_shards: whether ZeRO-2 and 3 shard fp32 weights, with no master weights beside 16-bit ones.
    """

    generation: Generation
    attention: AttentionKernel
    layer_kernels: Count
    head_kernels: Count
    python_launches: bool
    fused_bias: bool
    fused_rotary: bool
    loss_share: Annotated[float, msgspec.Meta(gt=0, le=1, extra={"unit": "1"})]
    accumulation: Accumulation
    tensor_parallel_chunks: Count
    transformer_engine: bool
    overlaps_input_gradients: bool
    overlaps_data_parallel: bool
    overlaps_gathers: bool
    reduces_in_16_bit: bool
    gathers_in_format: bool
    context_parallel: ContextParallel
    overlaps_experts: bool
    sends_once_to_nodes: bool
    overlaps_pipeline: bool
    synchronises_layers: bool
    one_ring: bool
    modules: Modules
    fp32_shards: bool

    @property
    def needs_cuda(self) -> bool:
        """Whether a CUDA graph or a program in CUDA C launches its kernels."""
        return not self.python_launches

    @property
    def keeping(self) -> Keeping:
        """Facts that its memory depends on."""
        return Keeping(self.modules, self.fp32_shards, self.gathers_in_format)


class _Layouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Members of `SEARCHED` that a stack executes, separated by commas."""

    layouts: str


class RecordedStack(msgspec.Struct, frozen=True, kw_only=True):
    """A stack by its name, words that its frameworks are called by (see `reading`), switches' facts under `NAME.key`.

    Args:
        layouts: of `SEARCHED`, what it executes.
        measured: published rows of it determined the machine model.
        newer: the stack that the same words mean on accelerators later than those of the family "ampere", unless they
            say a version or a year.
        with_stages: the stack that the same words mean where pipeline stages split the layers.
    """

    name: str
    title: str
    frameworks: tuple[str, ...]
    layouts: tuple[str, ...]
    measured: bool
    newer: str | None
    with_stages: str | None
    switches: Stack
    facts: dict[str, Sourced]


@cache
def _file(path: Path) -> dict[str, Any]:
    """The tables of the file; each stack's has what it states, and all else of the stack that it is like."""
    where = shown_path(path)
    raw = read_toml(path, what="stacks", known={"sources", "stacks"})
    entries: dict[str, dict[str, Any]] = raw.get("stacks", {})
    if GENERIC not in entries:
        raise InputError(f"stacks.{GENERIC} is missing", where=where)
    for name, entry in entries.items():
        for key in ("like", "newer", "with_stages", "split"):
            if entry.get(key, GENERIC) not in entries:
                raise InputError(f"stacks.{name}.{key}", got=repr(entry[key]), allowed=", ".join(entries), where=where)
        if name in (followed := _alike(entries, name)):
            raise InputError(f"stacks.{name}.like: that stack is like this one", got=followed[0], where=where)
    return raw


def _alike(entries: dict[str, Any], name: str) -> list[str]:
    """The stack that `name` is like, the one that this is like, and so on, up to one that is there already."""
    followed: list[str] = []
    while (like := entries[followed[-1] if followed else name].get("like")) and like not in followed:
        followed.append(like)
    return followed


@cache
def _recorded(name: str, path: Path) -> RecordedStack:
    raw, where = _file(path), shown_path(path)
    entry = dict(raw["stacks"][name])
    about = {key: entry.pop(key, None) for key in _ABOUT}
    if not isinstance(about["title"], str):
        raise InputError(f"stacks.{name}.title: expected a text", got=repr(about["title"]), where=where)
    for of in _alike(raw["stacks"], name):
        like = raw["stacks"][of]
        entry = {key: fact for key, fact in like.items() if key in (*Stack.__struct_fields__, "layouts")} | entry
    searched = {key: entry.pop(key) for key in ("layouts",) if key in entry}
    able, able_facts = section_of(searched, _Layouts, f"stacks.{name}", raw["sources"], where)
    switches, facts = section_of(entry, Stack, f"stacks.{name}", raw["sources"], where)
    layouts = tuple(able.layouts.split(", "))
    if unknown := [word for word in layouts if word not in SEARCHED]:
        allowed = ", ".join(SEARCHED)
        raise InputError(f"stacks.{name}.layouts", got=", ".join(unknown), allowed=allowed, where=where)
    return RecordedStack(
        name=name,
        title=about["title"],
        frameworks=tuple(about["frameworks"] or ()),
        layouts=layouts,
        measured=bool(about["measured"]),
        newer=about["newer"],
        with_stages=about["with_stages"],
        switches=switches,
        facts=facts | able_facts,
    )


def stacks(path: Path = STACKS) -> dict[str, RecordedStack]:
    """The recorded stacks, by name; "generic" is among them.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key, or a stack named that is none.
    """
    return {name: _recorded(name, path) for name in _file(path)["stacks"]}


@cache
def matches(pattern: str, text: str) -> bool:
    """Whether `text` is `pattern`, in any case and with * for any letters."""
    return fnmatchcase(text.casefold(), pattern.casefold())


class ReadStack(NamedTuple):
    """The stack that a framework's text stands for, and in words how the text was read."""

    stack: RecordedStack
    how: str


_SEPARATORS = re.compile(r"[\s_\-/,;:()+&]+")
_VERSION = re.compile(r"\d")
_V = re.compile(r"(?<![a-z0-9])v(?=\d+\.\d)")
_STAGE = re.compile(r"ZeRO(?: stage)?[- ]?\d")  # is no version


def _folded(text: str) -> str:
    """`text` in small letters, with one space for what people write between words, and versions without a v."""
    return _V.sub("", _SEPARATORS.sub(" ", text.casefold())).strip()


@cache
def _pattern(words: str) -> re.Pattern[str]:
    """Finds `words` within a folded text, as whole words; * stands for any letters, but for no part of a number."""
    folded = _folded(words)
    *parts, last = folded.split("*")
    inside = "".join(_whole(part, starred=True) + ".*?" for part in parts if last or part is not parts[-1])
    inside += _whole(last, starred=False) if last else _whole(parts[-1], starred=True)
    return re.compile(rf"(?<![a-z0-9]){inside}" + ("(?![a-z0-9])" if last else ""))


def _whole(part: str, *, starred: bool) -> str:
    """Finds `part`, no number of which goes on before it, or behind it where a * follows."""
    before = r"(?<![0-9.])" if part[:1].isdigit() else ""
    return before + re.escape(part) + (r"(?![0-9])" if starred and part[-1:].isdigit() else "")


class _FoundWords(NamedTuple):
    """Words of a stack that a text holds, the most telling first: the smallest.

    Args:
        rank: 0 if these words decide anywhere in a text, 2 if only where no others do, else 1.
        length: of the words, negative.
    """

    rank: int
    start: int
    length: int
    name: str
    words: str


@cache
def _ranks() -> dict[str, int]:
    """Words -> how telling they are."""
    entries = _file(STACKS)["stacks"].values()
    first = tuple(_folded(words) for entry in entries for words in entry.get("anywhere", ()))
    last = {words for entry in entries for words in entry.get("library", ())}
    every = [words for entry in entries for words in entry.get("frameworks", ())]
    return {words: 0 if _folded(words).startswith(first) else 2 if words in last else 1 for words in every}


def _found(text: str) -> Iterator[_FoundWords]:
    """Each words of each stack that `text` holds."""
    folded = _folded(text)
    for name, entry in _file(STACKS)["stacks"].items():
        for words in entry.get("frameworks", ()):
            if found := _pattern(words).search(folded):
                yield _FoundWords(_ranks()[words], found.start(), -len(words.replace("*", "")), name, words)


@cache
def reading(framework: str | None, *, later: bool = False, stages: bool = False, split: bool = False) -> ReadStack:
    """The stack of that name, or that is called so in `framework`; the generic one otherwise.

    Letters' case, what stands between words (blank, -, _, /) and a version's v do not count. Of several words the first
    in the text decides, of those that begin at one place the longest: "metaseq, Megatron-LM 2.4" is metaseq,
    "Megatron-LM 2021" not Megatron-LM as such. NeMo and Megatron-Core decide wherever they stand, PyTorch only where
    nothing else does: "PyTorch, NVIDIA NeMo" is NeMo.

    Args:
        later: its accelerator or its model is later than those of the family "ampere", and so is the software.
        stages: pipeline stages split the layers.
        split: tensor parallelism does so besides.
    """
    text = framework or ""
    entries = _file(STACKS)["stacks"]
    if text in entries:
        return ReadStack(_recorded(text, STACKS), OWN_NAME)
    if not text:
        return ReadStack(_recorded(GENERIC, STACKS), UNNAMED)
    found = min(_found(text), default=None, key=lambda each: each[:3])
    if found is None:
        return ReadStack(_recorded(GENERIC, STACKS), f"no stack is called {text!r}")
    name, words = found.name, found.words
    entry, how = entries[name], f"{words.strip('*').replace('*', ' ... ')!r}"
    if later and "newer" in entry and not _VERSION.search(_STAGE.sub("", words)):
        return ReadStack(_recorded(entry["newer"], STACKS), f"{how} of the time of its accelerator or model")
    if split and found.rank == 2 and "split" in entry:
        said = f"{how} alone, with tensor parallelism and pipeline stages, which Megatron-Core adds to it"
        return ReadStack(_recorded(entry["split"], STACKS), said)
    if stages and "with_stages" in entry:
        return ReadStack(_recorded(entry["with_stages"], STACKS), f"{how} with pipeline stages")
    return ReadStack(_recorded(name, STACKS), how)


def stack_of(framework: str | None, *, later: bool = False, stages: bool = False) -> RecordedStack:
    """The stack of `reading`."""
    return reading(framework, later=later, stages=stages).stack


def stack(name: str) -> RecordedStack:
    """The stack of this name, or that is called so, see `reading`.

    Raises:
        InputError: no stack is.
    """
    read = reading(name)
    if name and read.stack.name == GENERIC != name:
        known = _file(STACKS)["stacks"]
        raise InputError(
            "unknown stack", got=repr(name), meant=nearest(name, known), allowed=", ".join(known), where="--stack"
        )
    return read.stack
