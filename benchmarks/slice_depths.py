"""Whether a slice's seconds grow by those of its layers: predicted and measured slices of more layers.

    python -m benchmarks.slice_depths gpt2-124m-slice --layers 1 --sequence 256 --micro-batch 4 --rounds 5

A round launches the slice with so many layers, and with 2 and 4 times as many, every second round in the other order.
What each is predicted to take is what its parts took in the smallest slice of the same round: embedding, head and what
layers share once, layers by their number, the update by its parameters. Printed is predicted over measured less 1, the
median of the rounds and their range.

Exit codes: 0 each median within 5 %, 1 one beyond with its whole range, 3 one whose range has the limit in it, 2 bad
usage, 4 a launch that failed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from reference_runs.errors import InputError
from suite.job.events import Status
from suite.job.slice import SlicePart, SliceTimes
from suite.reproduce.reproduce import reproduce
from suite.reproduce.request import Request
from suite.reproduce.slice_plan import slice_plan, slice_tokens

LIMIT = 0.05
TIMES = (2, 4)  # as many layers
FAILED = 4
_OF_LAYERS = (SlicePart.LAYER_FORWARD, SlicePart.LAYER_BACKWARD)


class Depth(NamedTuple):
    """A slice of so many layers, and what its parts took."""

    layers: int
    times: SliceTimes

    def seconds(self, part: SlicePart) -> float:
        """Median of one part, of all its layers; 0 where it has none of it."""
        return (self.times.median(part) or 0.0) * (self.layers if part in _OF_LAYERS else 1)

    @property
    def total(self) -> float:
        """One micro-batch and an update."""
        return sum(self.seconds(part) for part in SlicePart)


def predicted_seconds(smallest: Depth, *, layers: int, parameters: int) -> float:
    """Seconds of a slice of so many layers and parameters, by the parts of a smaller one."""
    factor: Mapping[SlicePart, float] = {
        **dict.fromkeys(_OF_LAYERS, layers / smallest.layers),
        SlicePart.UPDATE: parameters / smallest.times.updated_parameters,
    }
    return sum(factor.get(part, 1.0) * smallest.seconds(part) for part in SlicePart)


def differences(rounds: Sequence[Sequence[Depth]]) -> dict[int, list[float]]:
    """Number of layers -> predicted over measured less 1 in each round; a round begins with the smallest."""
    found: dict[int, list[float]] = {}
    for smallest, *deeper in rounds:
        for depth in deeper:
            expected = predicted_seconds(smallest, layers=depth.layers, parameters=depth.times.updated_parameters)
            found.setdefault(depth.layers, []).append(expected / depth.total - 1)
    return found


def verdict(found: Mapping[int, Sequence[float]]) -> int:
    """The exit code of these differences."""
    codes = [0]
    for each in found.values():
        if abs(statistics.median(each)) > LIMIT:
            codes.append(3 if min(map(abs, each)) <= LIMIT else 1)
    return 1 if 1 in codes else max(codes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="for instance gpt2-124m-slice")
    for option in ("layers", "sequence", "micro-batch"):
        parser.add_argument(f"--{option}", type=int, default=1 if option == "layers" else None)
    parser.add_argument("--stage")
    parser.add_argument("--layout")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)
    rounds = []
    with tempfile.TemporaryDirectory(prefix="suite-") as results:
        for number in range(asked.rounds):
            depths = [asked.layers * times for times in (1, *TIMES)]
            ordered = depths if number % 2 == 0 else depths[::-1]
            try:
                done = [_measured(asked, layers, Path(results)) for layers in ordered]
            except InputError as error:
                sys.stderr.write(f"error: {error}\n")
                return 2
            except ChildProcessError as error:
                sys.stderr.write(f"{error}\n")
                return FAILED
            rounds.append(sorted(done))
            words = ", ".join(f"{depth.layers} layers {depth.total:.4g} s" for depth in rounds[-1])
            print(f"round {number + 1}: {words}", flush=True)
    found = differences(rounds)
    for layers, each in found.items():
        spread = f"{min(each):+.2%} to {max(each):+.2%} in {len(each)} rounds"
        print(f"{layers} layers: {statistics.median(each):+.2%}, {spread}")
    return verdict(found)


def _measured(asked: argparse.Namespace, layers: int, results: Path) -> Depth:
    """Raises: InputError: bad input. ChildProcessError: the launch failed."""
    given = {name: getattr(asked, name) for name in ("name", "sequence", "micro_batch", "stage", "layout", "device")}
    planned = slice_plan(Request(layers=layers, steps=asked.steps, results=results, **given))
    done = reproduce(planned, slice_tokens(planned), results, lambda _rank, _event: None)
    if done.status is not Status.OK or done.finished[0].slice_times is None:
        raise ChildProcessError(f"{layers} layers: {done.status.value}: {done.message}")
    return Depth(layers, done.finished[0].slice_times)


if __name__ == "__main__":
    sys.exit(main())
