"""Which collective each rank of a hung launch waits in, and which rank did not come: read from flight recorders."""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from reference_runs.recorded_file import shown_path
from reference_runs.regular_file import file_bytes

_MOST_SIZES = 3  # of a collective's tensors that a line names


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A collective or message as torch.distributed recorded it; other fields are left out.

    Args:
        process_group: its name, and its description.
        collective_seq_id, p2p_seq_id: number in its group; of messages between two ranks the second counts.
        retired: whether it has ended.
        duration_ms: on the device, where TORCH_NCCL_ENABLE_TIMING had it measured.
    """

    process_group: list[str]
    profiling_name: str
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    is_p2p: bool = False
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    retired: bool = False
    time_created_ns: int = 0
    duration_ms: float | None = None

    @property
    def group(self) -> str:
        """Name of its process group."""
        return next((name for name in reversed(self.process_group) if name not in ("", "undefined")), "unnamed group")

    @property
    def number(self) -> int:
        """Number of the collective in its group, or of the message."""
        return self.p2p_seq_id if self.is_p2p else self.collective_seq_id

    @property
    def says(self) -> str:
        """Operation and tensors, without what differs between ranks."""
        sizes = [str(size) for size in self.input_sizes[:_MOST_SIZES]]
        more = len(self.input_sizes) - len(sizes)
        shapes = " ".join([*sizes, *([f"and {more} more"] if more > 0 else [])])
        dtypes = "/".join(dict.fromkeys(self.input_dtypes))
        return f"{self.profiling_name.partition(':')[2] or self.profiling_name} {dtypes} {shapes}".rstrip()


class Recording(msgspec.Struct, frozen=True):
    """Entries of one rank's flight recorder, oldest first."""

    entries: list[Entry] = []


class Diagnosis(msgspec.Struct, frozen=True):
    """Finding from the recordings of all ranks together.

    Args:
        missing: ranks that did not reach a collective in which others wait. If some of them wait in another collective
            themselves, only the rest: those hold all others up.
        lines: for people.
        why: where the missing ones are missing; empty where nobody is.
    """

    missing: list[int]
    lines: list[str]
    why: str = ""


def decoded(data: bytes) -> Recording | None:
    """A recording from PyTorch's JSON; None where it is none (cut off, or of an unknown form)."""
    try:
        return msgspec.json.decode(data, type=Recording)
    except msgspec.MsgspecError:
        return None


class PlainUnpickler(pickle.Unpickler):
    """Refuses every global: a recording has containers, numbers and strings alone."""

    def find_class(self, module_name: str, global_name: str, /) -> object:
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}, and a recording names nothing")


def dumped(path: Path) -> Recording:
    """The recording in a dump that NCCL's watchdog wrote, pickled or as JSON.

    Raises:
        InputError: it cannot be read, is damaged, or is none.
    """
    where = shown_path(path)
    try:
        data = file_bytes(path)
        plain = PlainUnpickler(io.BytesIO(data)).load() if data.startswith(b"\x80") else msgspec.json.decode(data)
        recording = msgspec.convert(plain, Recording)
    except OSError as error:
        raise InputError(f"cannot read the dump: {error.strerror}", where=where) from error
    except Exception as error:  # pickle: "may raise other exceptions, not limited to" some
        raise InputError(f"not a dump of a flight recorder: {error}", where=where) from error
    if not recording.entries:
        raise InputError("no collective in the dump", where=where)
    return recording


def arrivals(recordings: Mapping[int, Recording]) -> list[dict[str, list[float]]]:
    """Seconds that each rank was in each collective, or less the time at which it came.

    Either is least for who comes last. The duration on the device where all were measured, else the host's clock. The
    first of a group is left out: ranks start at different times, and it is where they meet.
    """
    of_ranks = [
        [entry for entry in each.entries if not entry.is_p2p and entry.number > 1] for each in recordings.values()
    ]
    timed = all(entry.duration_ms is not None for entries in of_ranks for entry in entries)
    return [
        {
            f"{entry.process_group} {entry.number}": [
                (entry.duration_ms or 0.0) / 1e3 if timed else -entry.time_created_ns / 1e9
            ]
            for entry in entries
        }
        for entries in of_ranks
    ]


def diagnosed(recordings: Mapping[int, Recording], *, ranks: int, now_ns: int | None = None) -> Diagnosis:
    """Where every rank is, by rank, and where they part.

    A collective belongs to all ranks of its group, and each numbers them alike. A rank that has recorded one of a group
    and not the one in which another rank of it waits is missing there; ranks whose equal numbers are other operations
    have parted. Messages between two ranks are numbered by each pair, so they are shown and not compared.

    Args:
        recordings: by rank; ranks that gave no answer are absent.
        now_ns: time of the dump, in nanoseconds since 1970; None: now.
    """
    now = time.time_ns() if now_ns is None else now_ns
    states = {rank: _state(recording, now) for rank, recording in recordings.items()}
    lines = [f"rank {rank}: {states.get(rank, 'no answer')}" for rank in range(ranks)] if recordings else []
    last: dict[str, dict[int, Entry]] = {}
    for rank, recording in recordings.items():
        for entry in recording.entries:
            if not entry.is_p2p:
                last.setdefault(entry.group, {})[rank] = entry
    absences: list[tuple[list[int], str]] = []
    for group, newest in sorted(last.items()):
        waiting = {rank: entry for rank, entry in newest.items() if not entry.retired}
        if not waiting:
            continue
        furthest = max(waiting.values(), key=lambda entry: entry.number)
        behind = sorted(rank for rank, entry in newest.items() if entry.number < furthest.number)
        ahead = sorted(rank for rank, entry in waiting.items() if entry.number == furthest.number)
        if behind:
            line = (
                f"{group}: {named_ranks(behind)} did not come to number {furthest.number} ({furthest.says}), in which "
                f"{named_ranks(ahead)} {'waits' if len(ahead) == 1 else 'wait'}"
            )
            lines.append(line)
            absences.append((behind, line))
        kinds: dict[str, list[int]] = {}
        for rank in ahead:
            kinds.setdefault(waiting[rank].profiling_name, []).append(rank)
        if len(kinds) > 1:
            apart = "; ".join(
                f"{named_ranks(ranks)}: {kind.partition(':')[2] or kind}" for kind, ranks in kinds.items()
            )
            lines.append(f"{group}: number {furthest.number} is not the same operation on all ranks: {apart}")
    absent = {rank for behind, _ in absences for rank in behind}
    held_up = {rank for rank, recording in recordings.items() if any(not entry.retired for entry in recording.entries)}
    missing = absent - held_up or absent
    why = "; ".join(line for behind, line in absences if missing & set(behind))
    return Diagnosis(sorted(missing), lines, why)


def _state(recording: Recording, now: int) -> str:
    under_way = [entry for entry in recording.entries if not entry.retired]
    if under_way:
        first = under_way[0]
        seconds = max(0.0, (now - first.time_created_ns) / 1e9)
        more = f", and {len(under_way) - 1} more after it" if len(under_way) > 1 else ""
        return f"for {seconds:.1f} s in number {first.number} of {first.group}: {first.says}{more}"
    if recording.entries:
        newest = recording.entries[-1]
        return f"in no collective; the last was number {newest.number} of {newest.group}: {newest.says}"
    return "in no collective, and none before"


def named_ranks(ranks: list[int]) -> str:
    """Ranks in words: ranks 1, 2."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
