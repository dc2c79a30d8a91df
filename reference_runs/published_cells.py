"""The canonical form of a table of measurements: its columns, and the cells of a row, read strictly."""

from __future__ import annotations

import enum
import math
import re
import typing

from reference_runs.published_tables import Assumption
from reference_runs.stack import matches

STEP, MEMORY = "measured_step_time_s", "measured_mem_gib_per_gpu"
STEP_MS, MEMORY_GB = "measured_step_time_ms", "measured_mem_gb_per_gpu"  # the same in other units: GB of 10^9 bytes
BATCH_TOKENS = "global_batch_tokens"  # in place of global_batch
# in place of `STEP`: tokens of all accelerators or of one, and samples of all, per second
THROUGHPUTS = ("measured_tokens_per_s", "measured_tokens_per_s_per_gpu", "measured_samples_per_s")
SHAPE = ("layers", "hidden", "heads", "vocab", "seq_len")
EXPERTS = ("experts", "experts_per_token", "expert_ffn_hidden", "shared_experts", "dense_layers")
NEEDED = (*SHAPE, *("gpu", "gpus", "dp", "tp", "pp", "global_batch", "micro_batch", STEP))
OPTIONAL = (
    *("source", "model", "kv_heads", "head_dim", "ffn_hidden", *EXPERTS, "gpus_per_node", "inter_link", "dtype"),
    *THROUGHPUTS,
    *("vpp", "cp", "ep", "etp", "sp", "zero_stage", "recompute", "framework", MEMORY, "status"),
    *("padded_vocab", "position", "rotary_base", "norm", "activation", "residual", "biases", "tied_embeddings"),
    *("dropout", "precision", "product_format", "stage_assignment", "fused_attention", "scatter_gather"),
    *("network_bytes_per_second", "mean_document", "framework_version", BATCH_TOKENS, STEP_MS, MEMORY_GB),
    *("fsdp", "shard_ranks", "accumulation", "recompute_modules", "adapter_rank", "adapter_targets", "imbalance"),
)

LARGEST, SMALLEST, MOST = 1e18, 1e-9, 10**8  # what no number, no time or size, and no count of a real run exceeds
HYBRID = "hybrid"  # sharding within nodes, as words.toml has it
_HYBRID = re.compile(r"\bhsdp\b|hybrid[ _-]?shard")
Choice = typing.TypeVar("Choice", bound=enum.StrEnum)
_TRUTH = {"0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


def is_column(name: str) -> bool:
    """Whether a table is read for it."""
    return name in NEEDED or name in OPTIONAL


class UnusableError(Exception):
    """Why a row cannot be used."""


class Cells:
    """The cells of one row by column; blank ones are filled by the table's assumptions, which are noted in `assumed`.

    `known` has texts found on the way (accelerator, stack) that assumptions may ask for.

    Args:
        recorded: cells of the recorded run that the row's model is called after, before all assumptions.
        of_run: its name.
    """

    def __init__(
        self,
        stated: dict[str, str],
        assumptions: dict[str, list[Assumption]],
        recorded: dict[str, str] | None = None,
        of_run: str = "",
    ) -> None:
        self.stated = stated
        self.assumptions = assumptions
        self.recorded = recorded or {}
        self.of_run = of_run
        self.known: dict[str, str] = {}
        self.assumed: list[str] = []

    def text(self, column: str) -> str:
        """Text of the row, or what is assumed.

        Raises:
            UnusableError: neither.
        """
        said = self.stated.get(column) or self.known.get(column)
        if said:
            return said
        if value := self.recorded.get(column):
            self.assumed.append(f"{column} = {value} as {self.of_run}")
            self.known[column] = value
            return value
        for assumption in self.assumptions.get(column, ()):
            if (value := self._value(assumption)) is not None:
                self.assume(column, value)
                return value
        raise UnusableError(f"{column} is blank")

    def assume(self, column: str, value: str) -> None:
        """Fill a blank column, and note it."""
        self.assumed.append(f"{column} = {value}")
        self.known[column] = value

    def _value(self, assumption: Assumption) -> str | None:
        for column, patterns in assumption.where.items():
            text = self.said(column)
            if not any(matches(pattern, text) for pattern in patterns):
                return None
        if not assumption.same_as:
            value = assumption.values.get(self.said(assumption.by)) if assumption.by else assumption.value
            return f"{value:g}" if isinstance(value, float) else None if value is None else str(value)
        number = -(-assumption.times * self.count(assumption.same_as) // assumption.over)
        if assumption.rounded_to:
            number = -(-number // assumption.rounded_to) * assumption.rounded_to
        if assumption.padded_to and number % (tensor_parallel := self.count("tp")):
            multiple = assumption.padded_to * tensor_parallel
            number = -(-number // multiple) * multiple
        return str(number)

    def said(self, column: str) -> str:
        """As `text`, and empty where nothing is said and nothing assumed."""
        try:
            return self.text(column)
        except UnusableError:
            return ""

    def number(self, column: str) -> float:
        """A number from 0 to `LARGEST`."""
        text = self.text(column)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 <= number <= LARGEST:
            marks = ", allowed: a decimal point, or a comma between semicolons or tabs" if "," in text else ""
            raise UnusableError(f"{column}: expected a number from 0 to {LARGEST:g}; got {text!r}{marks}")
        return number

    def positive(self, column: str) -> float:
        """A number from `SMALLEST` to `LARGEST`."""
        number = self.number(column)
        if number < SMALLEST:
            raise UnusableError(f"{column}: expected a number from {SMALLEST:g} on; got {self.text(column)!r}")
        return number

    def count(self, column: str, *, least: int = 1, most: int = MOST) -> int:
        """An integer from `least` to `most`."""
        number = self.number(column)
        if number != int(number) or not least <= number <= most:
            raise UnusableError(f"{column}: expected an integer from {least} to {most}; got {self.text(column)!r}")
        return int(number)

    def claim(self, column: str) -> bool:
        """Whether it is so."""
        text = self.text(column)
        if (claim := _TRUTH.get(text.casefold())) is None:
            raise UnusableError(f"{column}: {text!r} is not known; allowed: {', '.join(_TRUTH)}")
        return claim

    def choice(self, column: str, allowed: type[Choice]) -> Choice:
        """The member of an enum that is written so."""
        text = self.text(column)
        try:
            return allowed(re.sub(r"[\s_]+", "-", text.casefold()))
        except ValueError as error:
            raise UnusableError(f"{column}: {text!r} is not known; allowed: {', '.join(allowed)}") from error


def complete_ranks(cells: Cells, context_parallel: int) -> None:
    """Fill `gpus` or `dp`, whichever is blank, from the other: gpus = dp tp pp cp; nothing where tp or pp is blank.

    Args:
        context_parallel: where the row says nothing of `cp`.

    Raises:
        UnusableError: tp pp cp does not divide gpus.
    """
    stated = cells.stated.get
    if bool(stated("gpus")) == bool(stated("dp")) or not (cells.said("tp") and cells.said("pp")):
        return
    inner = cells.count("tp") * cells.count("pp") * (cells.count("cp") if stated("cp") else context_parallel)
    if stated("dp"):
        cells.known["gpus"] = str(cells.count("dp") * inner)
        cells.assumed.append(f"gpus = dp * tp * pp * cp = {cells.known['gpus']}")
        return
    accelerators = cells.count("gpus")
    if accelerators % inner:
        raise UnusableError(f"dp is blank, and tp * pp * cp = {inner} does not divide gpus = {accelerators}")
    cells.known["dp"] = str(accelerators // inner)
    cells.assumed.append(f"dp = gpus / (tp * pp * cp) = {cells.known['dp']}")


def complete_batch(cells: Cells) -> None:
    """Fill a blank `global_batch` from `BATCH_TOKENS`, where the length of a sequence is known.

    Raises:
        UnusableError: they are no whole number of sequences.
    """
    if cells.stated.get("global_batch") or not cells.stated.get(BATCH_TOKENS) or not cells.said("seq_len"):
        return
    tokens, sequence = cells.count(BATCH_TOKENS, most=MOST**2), cells.count("seq_len")
    if tokens % sequence:
        raise UnusableError(f"{BATCH_TOKENS} = {tokens} is no multiple of seq_len = {sequence}")
    cells.known["global_batch"] = str(tokens // sequence)
    cells.assumed.append(f"global_batch = {BATCH_TOKENS} / seq_len = {tokens // sequence}")


def complete_accumulation(cells: Cells) -> None:
    """Fill a blank `micro_batch` from `accumulation`, where that is stated: global_batch / (dp accumulation).

    Beside a stated `micro_batch` it says nothing more; another number than theirs is noted, and theirs holds.

    Raises:
        UnusableError: global_batch is no multiple of dp accumulation, and micro_batch is blank.
    """
    known = all(cells.said(column) for column in ("global_batch", "dp"))
    if not cells.stated.get("accumulation") or not known:
        return
    micro_batches = cells.count("accumulation")
    samples, ranks = cells.count("global_batch"), cells.count("dp")
    if cells.stated.get("micro_batch"):
        if cells.count("micro_batch") * ranks * micro_batches != samples:
            said = samples / (cells.count("micro_batch") * ranks)
            cells.assumed.append(f"accumulation {micro_batches} = {said:g}, global_batch / (micro_batch * dp)")
        return
    if samples % (ranks * micro_batches):
        what = f"micro_batch is blank, and dp * accumulation = {ranks * micro_batches}"
        raise UnusableError(f"{what} does not divide global_batch = {samples}")
    cells.known["micro_batch"] = str(samples // (ranks * micro_batches))
    cells.assumed.append(f"micro_batch = global_batch / (dp * accumulation) = {cells.known['micro_batch']}")


def complete_sharding(cells: Cells) -> None:
    """Fill `zero_stage` from `fsdp`, where that is stated: sharded weights are stage 3.

    Where `zero_stage` or the framework's name says hybrid sharding, or `shard_ranks` is stated, it is 3 too.

    Raises:
        UnusableError: `zero_stage` says something else.
    """
    framework = _HYBRID.search(cells.stated.get("framework", "").casefold())
    if cells.stated.get("zero_stage") == HYBRID or (framework and cells.stated.get("zero_stage", "") in ("", "3")):
        cells.known[HYBRID] = "yes"
    if cells.known.get(HYBRID) or (cells.stated.get("shard_ranks") and not cells.stated.get("zero_stage")):
        cells.stated["zero_stage"] = "3"
    if not cells.stated.get("fsdp") or not cells.claim("fsdp"):
        return
    if cells.stated.get("zero_stage", "3") not in ("", "3"):
        raise UnusableError(f"fsdp = 1 shards weights (zero_stage 3), but zero_stage = {cells.stated['zero_stage']}")
    cells.stated["zero_stage"] = "3"
    cells.assumed.append("fsdp 1 = zero_stage 3")


def step_seconds_of(cells: Cells) -> float | None:
    """Seconds of a step, as stated or from a throughput; None: neither is."""
    if cells.stated.get(STEP):
        return cells.positive(STEP)
    if cells.stated.get(STEP_MS):
        return cells.positive(STEP_MS) / 1000
    samples = cells.count("global_batch")
    tokens = samples * cells.count("seq_len")
    for column, work in zip(THROUGHPUTS, (tokens, tokens / cells.count("gpus"), samples), strict=True):
        if cells.stated.get(column):
            return work / cells.positive(column)
    return None


def peak_bytes_of(cells: Cells) -> float | None:
    """Bytes of the fullest accelerator; None: not stated."""
    for column, unit in ((MEMORY, 2**30), (MEMORY_GB, 10**9)):
        if cells.stated.get(column):
            return cells.positive(column) * unit
    return None
