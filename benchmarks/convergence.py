"""Loss curves of 1-bit Adam next to exact Adam: the same miniature, steps, seeds and batches.

    python -m benchmarks.convergence bloom-mini gpt2-mini --steps 300 --seeds 1 2 3 --plot docs/convergence.svg

`--out FILE.json` keeps the curves, and `--read FILE.json` draws and judges them again. Judged is the median over seeds
of the relative difference of the final losses, each the mean of the last tenth of the steps: all methods see the same
batches, so what a batch adds to both losses cancels.

Exit codes: 0 within the limit, 1 beyond it, 2 bad usage or input, 4 a launch failed.
"""

from __future__ import annotations

import argparse
import enum
import itertools
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.commands import exit_codes
from suite.job.events import Status
from suite.job.options import Averaging
from suite.reproduce.plan import corpus_for, plan
from suite.reproduce.reproduce import reproduce
from suite.reproduce.request import Request

LIMIT = 0.01  # of exact Adam's final loss
COLOURS = {"exact Adam": "0.45", "1-bit Adam": "C1", "1-bit Adam, renewed": "C0"}
SMOOTHED = 10  # steps whose mean a drawn point is


class Method(enum.StrEnum):
    """A way to average gradients, by which a run is trained."""

    EXACT = "exact Adam"
    ONE_BIT = "1-bit Adam"
    RENEWED = "1-bit Adam, renewed"


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Losses of every step of one launch.

    Args:
        exact_steps: before the switch; 0 where every step is exact.
    """

    run: str
    method: Method
    seed: int
    exact_steps: int
    losses: list[float]

    @property
    def final(self) -> float:
        """Mean loss of the last tenth of the steps."""
        return statistics.fmean(self.losses[-max(1, round(len(self.losses) / 10)) :])


class FinalLosses(msgspec.Struct, frozen=True, kw_only=True):
    """Final losses of one run and seed under exact Adam and under another method."""

    run: str
    method: Method
    seed: int
    exact: float
    other: float

    @property
    def relative(self) -> float:
        """Positive where exact Adam's is smaller."""
        return self.other / self.exact - 1


def launched(run: str, method: Method, seed: int, steps: int, results: Path) -> Curve:
    """One reproduction on the CPU by two ranks.

    Raises:
        InputError: no such run, or too few steps.
        RuntimeError: the launch did not end well.
    """
    request = Request(name=run, ranks=2, device="cpu", steps=steps, seed=seed, results=results)
    if method is not Method.EXACT:
        one_bit, renewal = Averaging.ONE_BIT.value, method is Method.RENEWED
        request = msgspec.structs.replace(request, optimizer=one_bit, renewal=renewal)
    planned = plan(request)
    result = reproduce(planned, corpus_for(planned, None), results, lambda _rank, _event: None)
    if result.status is not Status.OK:
        raise RuntimeError(f"{run}, {method}, seed {seed}: {result.status}: {result.message}")
    return Curve(run=run, method=method, seed=seed, exact_steps=planned.exact_steps, losses=result.losses)


def differences(curves: Iterable[Curve]) -> list[FinalLosses]:
    """Differences of every method from exact Adam of the same run and seed, in the order of the curves."""
    losses = {(curve.run, curve.method, curve.seed): curve.final for curve in curves}
    return [
        FinalLosses(run=run, method=method, seed=seed, exact=exact, other=final)
        for (run, method, seed), final in losses.items()
        if method is not Method.EXACT and (exact := losses.get((run, Method.EXACT, seed))) is not None
    ]


def medians(pairs: Sequence[FinalLosses]) -> dict[tuple[str, Method], float]:
    """Run and method -> median over its seeds of the relative difference."""
    groups: dict[tuple[str, Method], list[float]] = {}
    for pair in pairs:
        groups.setdefault((pair.run, pair.method), []).append(pair.relative)
    return {key: statistics.median(values) for key, values in groups.items()}


def smoothed(losses: Sequence[float]) -> list[float]:
    """Means of up to 10 steps that end with each step."""
    return [statistics.fmean(losses[max(0, end - SMOOTHED) : end]) for end in range(1, len(losses) + 1)]


def draw(path: Path, curves: Sequence[Curve]) -> None:
    """Losses above, the difference between the optimizers below; a column a run, a pair of lines a seed.

    Raises:
        InputError: matplotlib is missing, or cannot write this format or place.
    """
    try:
        import matplotlib

        matplotlib.use("agg")
        matplotlib.rcParams["svg.hashsalt"] = "convergence"  # the same file for the same numbers
        from matplotlib import pyplot
    except ImportError as error:
        raise InputError(f"a picture needs {error.name}", allowed="nox -s convergence installs it") from error
    runs = list(dict.fromkeys(curve.run for curve in curves))
    figure, axes = pyplot.subplots(
        2, len(runs), figsize=(5.5 * len(runs), 5.6), sharex="col", height_ratios=(1.7, 1), squeeze=False
    )
    for column, run in enumerate(runs):
        upper, lower = axes[0][column], axes[1][column]
        of_run = {(curve.method, curve.seed): curve for curve in curves if curve.run == run}
        seeds = sorted({seed for _, seed in of_run})
        labelled = set()
        for (method, seed), curve in of_run.items():
            steps, points = range(1, len(curve.losses) + 1), smoothed(curve.losses)
            style = {"color": COLOURS[method], "lw": 1, "alpha": 0.85}
            upper.plot(steps, points, **style, label=None if method in labelled else method.value)
            labelled.add(method)
            exact = of_run.get((Method.EXACT, seed))
            if method is not Method.EXACT and exact is not None:
                share = [100 * (b / a - 1) for a, b in zip(smoothed(exact.losses), points, strict=True)]
                lower.plot(steps, share, **style)
                for each in (upper, lower):
                    each.axvline(curve.exact_steps, color="0.7", lw=0.8, ls="--")
        upper.legend(frameon=False)
        lower.axhspan(-100 * LIMIT, 100 * LIMIT, color="0.92", lw=0, zorder=0)
        lower.axhline(0, color="0.5", lw=0.8)
        upper.set(title=f"{run}, seeds {', '.join(map(str, seeds))}")
        lower.set(xlabel="step; dashed: the switch")
        for each in (upper, lower):
            each.spines[["top", "right"]].set_visible(False)
    axes[0][0].set(ylabel=f"loss, mean of {SMOOTHED} steps")
    axes[1][0].set(ylabel="over exact Adam's, %")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot draw: {error}", where=str(path)) from error
    finally:
        pyplot.close(figure)


def line(pair: FinalLosses) -> str:
    """One row of the table."""
    name = f"{pair.run:<12} seed {pair.seed:<3} {pair.method.value:<20}"
    return f"{name} {pair.other:.4f}, exact Adam {pair.exact:.4f}: {pair.relative:+.2%}"


def main() -> None:
    """Train, judge, draw."""
    parser = argparse.ArgumentParser(prog="convergence", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="*", default=["bloom-mini", "gpt2-mini"])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--methods", type=Method, nargs="+", default=list(Method), help=", ".join(Method))
    parser.add_argument("--out", type=Path, default=None, help="FILE.json for the curves")
    parser.add_argument("--read", type=Path, default=None, help="FILE.json of curves, instead of training")
    parser.add_argument("--plot", type=Path, default=None, help="FILE.svg or FILE.png")
    arguments = parser.parse_args()
    try:
        sys.exit(_verdict(_curves(arguments), arguments.plot))
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(exit_codes.BAD_INPUT)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        sys.exit(exit_codes.EXECUTION_FAILED)


def _curves(arguments: argparse.Namespace) -> list[Curve]:
    """Curves of a file, or of launches, which are written to `--out` one after the other."""
    curves: list[Curve] = []
    if arguments.read is not None:
        try:
            curves = msgspec.json.decode(arguments.read.read_bytes(), type=list[Curve])
        except (OSError, msgspec.MsgspecError) as error:
            raise InputError(f"cannot read curves: {error}", where=str(arguments.read)) from error
        print(*map(line, differences(curves)), sep="\n")
        return curves
    with tempfile.TemporaryDirectory(prefix="suite-") as results:
        for seed, run, method in itertools.product(arguments.seeds, arguments.runs, arguments.methods):
            curves.append(launched(run, method, seed, arguments.steps, Path(results)))
            if arguments.out is not None:
                arguments.out.write_bytes(msgspec.json.encode(curves) + b"\n")
            for pair in differences(curves):
                if (pair.run, pair.method, pair.seed) == (run, method, seed):
                    print(line(pair), flush=True)
    return curves


def _verdict(curves: list[Curve], plot: Path | None) -> int:
    relative = medians(differences(curves))
    for (run, method), median in relative.items():
        print(f"{run}, {method.value}: median over seeds {median:+.2%} (limit {LIMIT:.0%})")
    if plot is not None:
        draw(plot, curves)
    return exit_codes.PASS if relative and max(relative.values()) <= LIMIT else exit_codes.FAIL


if __name__ == "__main__":
    main()
