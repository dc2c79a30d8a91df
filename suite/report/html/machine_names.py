"""Names of machines on the page: the full one where it is introduced, a short one in rows of tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from suite.records.summary import LaunchSummary

VENDORS = frozenset({"AMD", "Intel", "NVIDIA", "ARM", "GeForce", "Instinct", "simulated"})
MOST_LETTERS = 16  # letters of a machine's word in a row


class MachineName(NamedTuple):
    """A machine's name where it is introduced, and in rows of tables."""

    full: str
    short: str


def machine_names(launches: Iterable[LaunchSummary]) -> dict[str, MachineName]:
    """Names of each machine, by its words in the records; these words are the full name where two would be alike.

    A short name is the first word of the processor or GPU that is no vendor's, with the number of cores or GPUs; alike
    ones are numbered in the full name too.
    """
    full: dict[str, str] = {}
    short: dict[str, str] = {}
    for launch in launches:
        if launch.machine in full:
            continue
        hardware = launch.hardware
        host = f"{hardware.get('cpu', 'unknown')}, {hardware.get('cores', '?')} cores"
        gpus = Counter(hardware.get("gpus", "none").split(", "))
        devices = ", ".join(f"{count} {name}" for name, count in sorted(gpus.items()))
        on_cpu = launch.device == "cpu"
        full[launch.machine] = host if on_cpu else f"{devices} ({host})"
        first = _model_word(hardware.get("cpu", "unknown") if on_cpu else min(gpus))
        short[launch.machine] = f"{first}, {hardware.get('cores', '?')} cores" if on_cpu else f"{gpus.total()} {first}"
    alike = Counter(full.values())
    full = {words: name if alike[name] == 1 else words for words, name in full.items()}
    several = Counter(short.values())
    names: dict[str, MachineName] = {}
    seen: Counter[str] = Counter()
    for words in sorted(full):
        name = short[words]
        if several[name] == 1:
            names[words] = MachineName(full[words], name)
            continue
        seen[name] += 1
        number = f"no. {seen[name]}"
        names[words] = MachineName(f"{full[words]} ({number})", f"{name}, {number}")
    return names


def _model_word(name: str) -> str:
    """The first word that names a model and no vendor: "EPYC" of "AMD EPYC (family 26)", "H100" of "NVIDIA H100"."""
    words = [word for word in name.split() if word.removesuffix("(R)") not in VENDORS]
    return words[0].removesuffix("(R)")[:MOST_LETTERS] if words else name[:MOST_LETTERS]
