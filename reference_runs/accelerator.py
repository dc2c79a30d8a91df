"""Limits of an accelerator: dense peaks, memory, links and power, recorded or read from this CPU."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from reference_runs.accelerator_words import GpuWords, folded, gpu_words, name_words, system_words
from reference_runs.catalog import command_name
from reference_runs.errors import InputError, nearest
from reference_runs.floors import RateFloor, read_floors, read_no_floor
from reference_runs.quantities import MOST_IN_ALL, BytesPerSecond, Count, FlopPerSecond
from reference_runs.recorded_file import read_toml, required_text, section_of, shown_path, sources_of
from reference_runs.run import ProductFormat
from reference_runs.sourced import Sourced
from reference_runs.this_cpu import MACHINE_SOURCES, THIS_CPU, FlopPerCycle, cpu_peaks, memory_entry, this_cpu

ACCELERATORS = Path(__file__).parent / "accelerators"
LEAST_SHARE = 0.9  # of a recorded memory: drivers say less than is on the board


class Peaks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dense matrix peaks by the dtype of the factors; for int8 an integer operation counts as one flop.

    Args:
        mxfp8: of products that read the scales of blocks of 32 elements themselves.
        nvfp4: the same of 4 bits, in blocks of 16.
    """

    fp32: FlopPerSecond | None = None
    tf32: FlopPerSecond | None = None
    bf16: FlopPerSecond | None = None
    fp16: FlopPerSecond | None = None
    fp8: FlopPerSecond | None = None
    int8: FlopPerSecond | None = None
    mxfp8: FlopPerSecond | None = None
    nvfp4: FlopPerSecond | None = None


class Board(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory, links and power around the arithmetic.

    Args:
        memory_bytes: as printed.
        reserved_bytes: of them, what the driver keeps; None: nothing is recorded, as of CPUs.
        link: what joins the accelerators of a node, such as "NVLink 3".
        link_bytes_per_second_both_ways: of one accelerator over all its links, sending plus receiving, as printed.
        direct_link: whether one accelerator reaches the memory of others over it, as over NVLink; absent: it does.
        pair_share: of the link that two accelerators alone can use: 1 through a switch; absent where they share PCIe,
            or where it depends on the pair.
        host_bytes_per_second_both_ways: between one accelerator and its host, sending plus receiving.
        watts: thermal design power.
        clock_share: clock under load over that of the board of the same chip that its family was measured on, where
            less power is allowed.
        accelerators_per_node: how many the link joins in the usual machine.
        accelerators_per_host: of them, those of one host, where the link joins several; absent: all.
        network_bytes_per_second: one accelerator's share of the network out of the usual node, sending; absent: there
            is no usual one.
    """

    memory_bytes: Annotated[int, msgspec.Meta(ge=1, le=MOST_IN_ALL, extra={"unit": "byte"})]
    reserved_bytes: Annotated[float, msgspec.Meta(ge=0, extra={"unit": "byte"})] | None = None
    memory_bytes_per_second: BytesPerSecond
    link: str
    link_bytes_per_second_both_ways: BytesPerSecond
    direct_link: bool = True
    pair_share: Annotated[float, msgspec.Meta(gt=0, le=1, extra={"unit": "1"})] | None = None
    host_bytes_per_second_both_ways: BytesPerSecond | None = None
    watts: Annotated[float, msgspec.Meta(gt=0, extra={"unit": "W"})] | None = None
    clock_share: Annotated[float, msgspec.Meta(gt=0, le=1, extra={"unit": "1"})] = 1.0
    accelerators_per_node: Count
    accelerators_per_host: Count | None = None
    network_bytes_per_second: BytesPerSecond | None = None

    @property
    def joins_pairs_alike(self) -> bool:
        """Whether any two accelerators of a node have the same link, as through a switch."""
        return self.pair_share is not None or self.accelerators_per_host is not None

    def joined(self, counted: int) -> int:
        """Accelerators that the link joins, where so many are counted as a node's.

        Those of one host of several that it joins are not all: 4 of a GB200's compute tray are 72 of 18 trays.
        """
        return self.accelerators_per_node if counted == self.accelerators_per_host else counted

    def usual_network_bytes_per_second(self, accelerators: int) -> float | None:
        """Bytes per second out of the usual node of so many accelerators; None: there is none."""
        return None if self.network_bytes_per_second is None else accelerators * self.network_bytes_per_second

    @property
    def link_bytes_per_second(self) -> float:
        """Bytes per second that one accelerator SENDS over all its links, at most: half of what vendors print.

        The A100's "NVLink: 600 GB/s" adds both directions: 300 GB/s leave while 300 GB/s arrive.
        """
        return self.link_bytes_per_second_both_ways / 2

    @property
    def host_bytes_per_second(self) -> float | None:
        """Bytes per second from one accelerator to its host, at most: half of both directions; None: not recorded."""
        return None if self.host_bytes_per_second_both_ways is None else self.host_bytes_per_second_both_ways / 2


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator: values for the formulas, and every value's facts (unit, kind, source) under `section.key`.

    Args:
        aliases: other names on the command line, and what torch.cuda.get_device_name prints.
        peak_flop_per_second: dense, by dtype; a dtype that the device lacks is not a key.
        floors: what working ones reached; `no_floor`: quantities for which none is known, and why.
    """

    name: str
    title: str
    where: str
    aliases: tuple[str, ...]
    peak_flop_per_second: dict[str, float]
    board: Board
    facts: dict[str, Sourced]
    sources: dict[str, str]
    floors: tuple[RateFloor, ...] = ()
    no_floor: dict[str, str] = {}

    @property
    def runs_cuda(self) -> bool:
        """Whether software for NVIDIA's accelerators runs on it as it is."""
        return self.title.startswith("NVIDIA")


def accelerator_names() -> list[str]:
    """Names of the recorded accelerators, sorted."""
    return sorted(command_name(path) for path in ACCELERATORS.glob("*.toml"))


def accelerator(name: str) -> Accelerator:
    """The accelerator of that name as people write it, or of the user's own file where `name` ends in `.toml`.

    Raises:
        InputError: no such accelerator or file, a file that breaks the schema, or a CPU that cannot be read.
    """
    if name.endswith(".toml"):
        return load(Path(name))
    if (found := exact_accelerator(name) or worded_accelerator(name)) is not None:
        return found
    allowed = ", ".join(accelerator_names()) + ", or a file ending in .toml"
    meant = near_accelerator(name) or nearest(folded(name), _all_names())
    raise InputError("unknown accelerator", got=repr(name), meant=meant, allowed=allowed)


def near_accelerator(text: str) -> str | None:
    """The name that `text` perhaps misspells: none of another model than the one that it names, B200 for a B300."""
    said = gpu_words(text)
    return nearest(
        folded(text), [each for each in _all_names() if said.model and said.series <= gpu_words(each).series]
    )


def _all_names() -> list[str]:
    names = accelerator_names()
    return [*names, *(folded(alias) for name in names for alias in _aliases(name))]


def exact_accelerator(name: str) -> Accelerator | None:
    """The accelerator that has these words as its name or an alias, and no others; None: there is none."""
    wanted = name_words(name)
    found = next((each for each in accelerator_names() if wanted == name_words(each)), None)
    if found is None:
        aliased = (each for each in accelerator_names() if wanted in map(name_words, _aliases(each)))
        found = next(aliased, None)
    return None if found is None else _catalogued(_path(found))


def worded_accelerator(text: str) -> Accelerator | None:
    """The accelerator that these words mean, with vendor, count and machine; None: none, or several and none is usual.

    Without a board, that of the usual training machine is meant.
    """
    said = gpu_words(text)
    if len(said.boards) > 1 or len(said.sizes) > 1:
        return None
    if titled := [each.name for each in _recorded_boards() if said in each.sized]:
        return accelerator(titled[0])
    boards = said.boards or ("", "sxm")
    of_model = [each for each in _recorded_boards() if said.model in each.models]
    if printed := [each for each in of_model if said.sizes and said.sizes <= set(each.gib)]:
        of_model = printed  # 94 GB are an H100 NVL's, and not what a driver shows of 96
    meant = [
        each.name
        for each in of_model
        if each.board in boards
        and all(any(LEAST_SHARE * gib <= size <= gib for gib in each.gib) for size in said.sizes)
    ]
    if len(meant) == 1:
        return accelerator(meant[0])
    usual = exact_accelerator("-".join(said.model)) if meant else None
    return usual if usual and usual.name in meant else None


def accelerator_within(text: str) -> Accelerator | None:
    """The accelerator that the most successive words of `text` mean, as in the name of a system or of a file."""
    said, parts = gpu_words(text), system_words(text)
    for count in range(len(parts), 0, -1):
        for start in range(len(parts) - count + 1):
            part = " ".join(parts[start : start + count])
            found = gpu_words(part)
            if (found.boards, found.sizes) == (said.boards, said.sizes) and (device := worded_accelerator(part)):
                return device
    return None


class _WordedBoard(NamedTuple):
    name: str
    models: frozenset[frozenset[str]]
    sized: frozenset[GpuWords]
    board: str
    gib: tuple[float, ...]


@functools.cache
def _recorded_boards() -> tuple[_WordedBoard, ...]:
    found = []
    for name in accelerator_names():
        if name == THIS_CPU:
            continue
        device = _catalogued(_path(name))
        named = frozenset(gpu_words(each) for each in (name, *device.aliases))
        models = frozenset(each.model for each in named) - {frozenset()}
        sized = frozenset(each for each in named if each.model and each.sizes)
        board = next(iter(gpu_words(name).boards), "")
        others = [float(str(each.value)) for each in device.facts["board.memory_bytes"].readings]
        found.append(_WordedBoard(name, models, sized, board, (device.board.memory_bytes / 2**30, *others)))
    return tuple(found)


def _path(name: str) -> Path:
    return ACCELERATORS / f"{name.replace('-', '_')}.toml"


def _aliases(name: str) -> list[str]:
    """The other names in an accelerator's file, of which only the head is read."""
    aliases: list[str] = tomllib.loads(_path(name).read_text(encoding="utf-8").partition("\n[")[0])["aliases"]
    return aliases


def _catalogued(path: Path) -> Accelerator:
    """The catalog's accelerator, read once; of a CPU again each time, as it is read from the machine."""
    if "\n[flop_per_cycle]" in path.read_text(encoding="utf-8"):
        return load(path)
    return _recorded(path, path.stat().st_mtime_ns)


@functools.cache
def _recorded(path: Path, _changed: int) -> Accelerator:
    return load(path)


SIMULATED = " (simulated)"  # how the name of a device ends that tests/simulated_cuda simulates


def known_gpu(models: str) -> Accelerator | None:
    """The GPU of these comma-separated models as the catalog has it; None where they differ, or it has none.

    Of a simulated device it is the GPU that the simulation stands in for.
    """
    names = {model.removesuffix(SIMULATED) for model in models.split(", ")}
    return exact_accelerator(names.pop()) if len(names) == 1 else None


def dense_peak_flop_per_second(device: Accelerator, dtype: str, *, option: str | None = None) -> float:
    """Flop per second of one accelerator in dense products of `dtype` matrices, at most.

    Vendors' headlines for 2:4 sparse matrices are twice as high from the A100 on.

    Args:
        option: of a command, that takes a precision: a refusal of bf16 says how fp16 is asked for.

    Raises:
        InputError: the accelerator has no recorded peak for the dtype; the line lists the dtypes that have one.
    """
    peak = device.peak_flop_per_second.get(dtype)
    if peak is None:
        what = f"{device.name} has no peak_flop_per_second for the dtype"
        allowed = ", ".join(device.peak_flop_per_second)
        if option and dtype == "bf16" and "fp16" in device.peak_flop_per_second:
            allowed = f"{option} fp16"
        raise InputError(what, got=repr(str(dtype)), allowed=allowed, where=device.where)
    return peak


def product_peak_flop_per_second(device: Accelerator, product_format: ProductFormat) -> float | None:
    """Flop per second of one accelerator in dense products of this format, at most; None for "none".

    Raises:
        InputError: the accelerator has no such products; the line lists the accelerators of the catalog that do.
    """
    if not product_format.casts:
        return None
    peak = device.peak_flop_per_second.get(product_format.peak_dtype)
    if peak is None:
        able = [name for name in accelerator_names() if _has_peak(name, product_format.peak_dtype)]
        what = f"{device.name} computes no matrix products in this format"
        own = [each.value for each in ProductFormat if not each.casts or each.peak_dtype in device.peak_flop_per_second]
        allowed = f"{', '.join(own)}, or another accelerator: {', '.join(able)}"
        raise InputError(what, got=product_format.value, allowed=allowed)
    return peak


def _has_peak(name: str, dtype: str) -> bool:
    return dtype in tomllib.loads(_path(name).read_text(encoding="utf-8")).get("peak_flop_per_second", {})


def load(path: Path) -> Accelerator:
    """The accelerator that the TOML file at `path` records.

    A file has [peak_flop_per_second], or [flop_per_cycle] for the CPU of this machine: then peaks and memory size are
    read from the machine. [[floors]] and [no_floor] may be absent.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key, wrong unit, or a CPU that
            cannot be read.
    """
    where = shown_path(path)
    known = {"title", "aliases", "sources", "flop_per_cycle", "peak_flop_per_second", "board", "floors", "no_floor"}
    raw = read_toml(path, what="accelerator", known=known)
    of_machine = "flop_per_cycle" in raw
    tables = ("flop_per_cycle" if of_machine else "peak_flop_per_second", "board")
    if of_machine and "peak_flop_per_second" in raw:
        raise InputError("[peak_flop_per_second] and [flop_per_cycle] exclude each other", where=where)
    title = required_text(raw, "title", where)
    aliases, sources = raw.get("aliases", []), sources_of(raw, where)
    if not isinstance(aliases, list) or not all(isinstance(alias, str) and alias for alias in aliases):
        raise InputError("aliases: expected a list of texts", got=repr(aliases), where=where)
    for table in tables:
        if table not in raw:
            raise InputError(f"missing section [{table}]", where=where)
        if not isinstance(raw[table], dict):
            raise InputError(f"{table}: expected a table", got=repr(raw[table]), where=where)
    facts: dict[str, Sourced] = {}
    if of_machine:
        sources = MACHINE_SOURCES | sources
        amounts, amount_facts = section_of(raw["flop_per_cycle"], FlopPerCycle, "flop_per_cycle", sources, where)
        cpu = this_cpu()
        title = f"{title}: {cpu.model}, {cpu.cores} cores"
        peak_table, used = cpu_peaks(cpu, amounts, where)
        facts |= {label: amount_facts[label] for label in used}
        board_table = {"memory_bytes": memory_entry()} | raw["board"]
    else:
        peak_table, board_table = raw["peak_flop_per_second"], raw["board"]
    peaks, peak_facts = section_of(peak_table, Peaks, "peak_flop_per_second", sources, where)
    board, board_facts = section_of(board_table, Board, "board", sources, where)
    floors = read_floors(raw, sources, where)
    by_dtype = {dtype: peak for dtype, peak in msgspec.structs.asdict(peaks).items() if peak is not None}
    if not by_dtype:
        raise InputError("peak_flop_per_second: no dtype has a value", where=where)
    return Accelerator(
        name=command_name(path),
        title=title,
        where=where,
        aliases=tuple(aliases),
        peak_flop_per_second=by_dtype,
        board=board,
        facts=facts | peak_facts | board_facts,
        sources=sources,
        floors=floors,
        no_floor=read_no_floor(raw, floors, where),
    )
