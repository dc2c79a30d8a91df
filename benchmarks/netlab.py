"""Ways of averaging gradients over slow links: measured on hosts with limited rates, next to a prediction.

python -m benchmarks.netlab --hosts 2 --rates 100 1000 0 trains one miniature of 26 million parameters in fp32, one rank
a host, under torchrun, with exact Adam, fp16 compression, PowerSGD and 1-bit Adam, at every rate in Mbit/s (0: as fast
as the machine forwards). Needs root and iproute2; elsewhere it prints NOT RUN and why, and ends with exit code 3.

The prediction of a step takes the run at the fastest rate, the predicted bytes, and the bytes a second at which
collectives of that size alone pass the limited link and the fastest one. Where DistributedDataParallel sends buckets
during the backward pass, bucket k is ready after its share of the pass and leaves after the one before it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path

import msgspec
from scipy.optimize import brentq
from scipy.stats import theilslopes

from reference_runs.catalog import reference_run
from reference_runs.miniature import miniature
from reference_runs.run import Precision
from suite.commands import exit_codes
from suite.job.corpus import Corpus
from suite.job.events import Event, Finished, Step, StepKind, events_path
from suite.job.options import Averaging, StepOptions
from suite.launch import network_namespaces
from suite.launch.multi_host import HostAccess, command_on_host, torchrun
from suite.machine.fingerprint import hardware
from suite.metrics.figures import Quantity
from suite.paths import ROOT
from suite.predict.analytic.gradient_buckets import stage_gradient_buckets
from suite.predict.analytic.parameters import parameter_count
from suite.predict.executed_run.counts import rank_figures
from suite.reproduce.plan import Plan, corpus_for, job_for

METHODS = (Averaging.EXACT, Averaging.FP16, Averaging.POWER_SGD, Averaging.ONE_BIT)
EXACT_STEPS = 2
STEPS = 12  # five or six are timed, two of them profiled
BUCKET_BYTES = 25 * 2**20
MOST_MBIT = 1e6  # the highest rate at which a break-even is sought
LAUNCH_SECONDS = 900
SHARE_MBIT = 500.0  # rate at which the share of the limit is first measured that messages reach
BASE_PAIRS = 5  # launches of each method without a limit, from which the break-even rate is predicted
PAIRS = 2  # launches of each method at each rate around it


class LinkRun(msgspec.Struct, frozen=True, kw_only=True):
    """One launch, in seconds and bytes a step of rank 0.

    Args:
        mbit_per_second: of every host; 0: not limited.
        forward, backward, communication: of the median timed step; only communication that nothing hides.
        sent_bytes, measured_bytes: predicted, and as the interface counted them.
        predicted_seconds: None for the run that the prediction takes its arithmetic from.
    """

    method: str
    hosts: int
    mbit_per_second: float
    step_seconds: float
    least_seconds: float
    most_seconds: float
    forward: float
    backward: float
    communication: float
    sent_bytes: float
    measured_bytes: float
    loss: float
    predicted_seconds: float | None = None


def small_plan(hosts: int, averaging: Averaging) -> Plan:
    """GPT-2's block with eight layers of 512 and a small vocabulary: 26 million parameters, nearly all in layers."""
    mini = miniature(reference_run("gpt2-124m"), "cpu", ranks=hosts, steps=STEPS)
    architecture = msgspec.structs.replace(
        mini.architecture,
        layers=8,
        hidden=512,
        heads=8,
        kv_heads=8,
        head_dim=64,
        ffn_hidden=2048,
        vocabulary=600,
        padded_vocabulary=608,
        sequence=128,
    )
    recipe = msgspec.structs.replace(
        mini.recipe,
        precision=Precision.FP32,
        global_batch=hosts,
        tokens=STEPS * hosts * 128,
        warmup=2 * hosts,
        decay=STEPS * hosts,
        batch_rampup_start=None,
        batch_rampup_increment=None,
        batch_rampup_samples=None,
    )
    one_bucket = averaging is Averaging.POWER_SGD  # with more, gloo's two threads can wait for each other
    layout = msgspec.structs.replace(
        mini.layout,
        micro_batch=1,
        accumulation=None,
        zero_stage=0,
        bucket_bytes=4 * parameter_count(architecture) if one_bucket else BUCKET_BYTES,
    )
    return Plan(
        name="netlab",
        architecture=architecture,
        recipe=recipe,
        layout=layout,
        device="cpu",
        compiled=False,
        steps=STEPS,
        seed=1,
        averaging=averaging,
        exact_steps=EXACT_STEPS if averaging.exact_at_first else 0,
    )


def sent_bytes(plan: Plan) -> float:
    """Predicted, of rank 0 in a step after the exact ones."""
    figures = rank_figures(plan.workload, StepOptions(averaging=plan.averaging))
    return next(f.value for f in figures if f.quantity is Quantity.SENT_BYTES and f.operation is None and f.rank == 0)


def buckets(plan: Plan) -> list[float]:
    """Bytes that leave a rank for each message that overlaps the backward pass, in their order."""
    if plan.averaging not in (Averaging.EXACT, Averaging.FP16):
        return []
    n = plan.layout.data_parallel
    share = (0.5 if plan.averaging is Averaging.FP16 else 1.0) * 2 * (n - 1) / n
    whole = stage_gradient_buckets(plan.architecture, plan.layout, stage=0, element_bytes=4)
    return [share * size for size in whole]


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes a second that a rank sends over a link in an all-reduce, and in an all-to-all and all-gather."""

    all_reduce: float
    exchange: float


def predicted_seconds(
    *, forward: float, backward: float, rest: float, total_bytes: float, overlapped: list[float], link: Link
) -> float:
    """A step over `link`: forward, backward next to the overlapped all-reduces, then rest and all other messages.

    Buckets of unequal size are ready in proportion to what they and those before them hold.
    """
    ready = left = 0.0
    whole = sum(overlapped)
    for size in overlapped:
        ready += backward * size / whole
        left = max(left, ready) + size / link.all_reduce
    return forward + max(backward, left) + rest + (total_bytes - whole) / link.exchange


def launched(plan: Plan, corpus: Corpus, names: list[str]) -> LinkRun:
    """The plan executed once, one rank a host, under torchrun.

    Raises:
        RuntimeError: a rank failed or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="suite-") as scratch:
        job = msgspec.structs.replace(job_for(plan, corpus, scratch), threads=1, interface=network_namespaces.INTERFACE)
        (Path(scratch) / "job.json").write_bytes(msgspec.json.encode(job))
        _run(names, ["suite.execute", f"{scratch}/job.json"], scratch)
        lines = Path(events_path(scratch, 0)).read_bytes().splitlines()
        events = [msgspec.json.decode(line, type=Event) for line in lines]
    steps = [event for event in events if isinstance(event, Step)]
    timed = [step.seconds for step in steps if step.kind is StepKind.TIMED]
    (finished,) = [event for event in events if isinstance(event, Finished)]
    return LinkRun(
        method=plan.averaging.value,
        hosts=len(names),
        mbit_per_second=0.0,
        step_seconds=statistics.median(timed),
        least_seconds=min(timed),
        most_seconds=max(timed),
        forward=finished.term_seconds.get("forward", 0.0),
        backward=finished.term_seconds.get("backward", 0.0),
        communication=finished.term_seconds.get("exposed communication", 0.0),
        sent_bytes=sent_bytes(plan),
        measured_bytes=finished.interface_sent_bytes or 0.0,
        loss=steps[-1].loss,
    )


def link_between(names: list[str]) -> Link:
    """Rates of the link for messages of the sizes of a bucket and of 1-bit Adam's.

    Raises:
        RuntimeError: it could not be measured.
    """
    payload = sent_bytes(small_plan(len(names), Averaging.ONE_BIT)) * len(names) / (len(names) - 1) / 2
    with tempfile.TemporaryDirectory(prefix="suite-") as scratch:
        _run(names, ["benchmarks.link_rate", str(BUCKET_BYTES), str(round(payload))], scratch)
        lines = (Path(scratch) / "host0.log").read_text().splitlines()
    return msgspec.json.decode(next(line for line in lines if line.startswith("{")), type=Link)


def _run(names: list[str], module: list[str], scratch: str) -> None:
    """Run a module as one rank on every host and wait for all.

    Raises:
        RuntimeError: a rank failed or took too long.
    """
    processes = [_start(len(names), module, scratch, number, name) for number, name in enumerate(names)]
    try:
        deadline = time.monotonic() + LAUNCH_SECONDS
        codes = [process.wait(timeout=max(1.0, deadline - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"no end after {LAUNCH_SECONDS} s") from error
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if any(codes):
        raise RuntimeError((Path(scratch) / "host0.log").read_text()[-2000:])


def _start(ranks: int, module: list[str], scratch: str, number: int, name: str) -> subprocess.Popen[bytes]:
    master = network_namespaces.address(0)
    command = torchrun(module, number=number, hosts=ranks, master=master, directory=scratch)
    variables = {"GLOO_SOCKET_IFNAME": network_namespaces.INTERFACE, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with (Path(scratch) / f"host{number}.log").open("wb") as log:
        inside = command_on_host(HostAccess.NAMESPACE, name, command, variables)
        return subprocess.Popen(inside, env=os.environ | variables, stdout=log, stderr=log, start_new_session=True)


def measure(hosts: int, rates: list[float], say: Callable[[str], None]) -> list[LinkRun]:
    """Every method at every rate, the methods in turn, the fastest rate first."""
    corpus = corpus_for(small_plan(hosts, Averaging.EXACT), None)
    runs: list[LinkRun] = []
    fastest: Link | None = None
    with network_namespaces.hosts(hosts) as names:
        for mbit in sorted(rates, key=lambda rate: -(rate or math.inf)):
            network_namespaces.limit(names, mbit * 1e6 if mbit else None)
            link = link_between(names)
            fastest = fastest or link
            reduced, exchanged = link.all_reduce * 8e-6, link.exchange * 8e-6
            limit = f"{mbit:,.0f} Mbit/s" if mbit else "unlimited"
            say(f"{hosts} hosts  {limit}: all-reduces {reduced:,.0f}, exchanges {exchanged:,.0f} Mbit/s")
            for method in METHODS:
                plan = small_plan(hosts, method)
                base = next((run for run in runs if run.method == method), None)
                run = msgspec.structs.replace(launched(plan, corpus, names), mbit_per_second=mbit)
                if base is not None:
                    run = msgspec.structs.replace(run, predicted_seconds=step_over(base, plan, link, fastest))
                runs.append(run)
                say(line(run))
    return runs


def step_over(base: LinkRun, plan: Plan, link: Link, fastest: Link) -> float:
    """Predicted seconds of a step over `link`: those of the run at the fastest rate, and what the messages take longer.

    Whatever else that run's messages cost, such as the processor's time and waiting for another rank, stays as it was.
    """
    rest = max(0.0, base.step_seconds - base.forward - base.backward - base.communication)

    def modelled(over: Link) -> float:
        return predicted_seconds(
            forward=base.forward,
            backward=base.backward,
            rest=rest,
            total_bytes=sent_bytes(plan),
            overlapped=buckets(plan),
            link=over,
        )

    return base.step_seconds + max(0.0, modelled(link) - modelled(fastest))


def break_even(runs: list[LinkRun], hosts: int, share: Link, fastest: Link) -> float:
    """Predicted rate in Mbit/s above which exact averaging is faster than 1-bit Adam; infinite where it never is.

    Args:
        share: of the limit that messages reach.
        fastest: what the link does without a limit.
    """
    plans = {method: small_plan(hosts, method) for method in (Averaging.EXACT, Averaging.ONE_BIT)}
    bases = {method: next(run for run in runs if run.method == method) for method in plans}

    def gain(mbit: float) -> float:
        link = Link(all_reduce=share.all_reduce * mbit * 1e6 / 8, exchange=share.exchange * mbit * 1e6 / 8)
        exact, one_bit = (step_over(bases[method], plans[method], link, fastest) for method in plans)
        return exact - one_bit

    if gain(MOST_MBIT) > 0:
        return math.inf
    return math.exp(brentq(lambda logarithm: gain(math.exp(logarithm)), 0.0, math.log(MOST_MBIT), xtol=1e-4))


def measured_break_even(points: list[tuple[float, float, float]]) -> float | None:
    """The rate at which the measured steps of exact averaging and 1-bit Adam are equal; None outside of what was tried.

    A step is linear in the time of a byte, 1 / rate, wherever the backward pass does not hide the messages: the rate is
    where the line of Theil and Sen through all differences is 0. A launch that something disturbed moves it little.

    Args:
        points: rate, seconds of exact averaging, seconds of 1-bit Adam, of two launches one after the other.
    """
    rates = [rate for rate, _, _ in points]
    gains = [exact - one_bit for _, exact, one_bit in points]
    line = theilslopes(gains, [1 / rate for rate in rates], method="joint")
    if line.slope <= 0 or line.intercept >= 0:
        return None
    rate = float(-line.slope / line.intercept)
    return rate if min(rates) <= rate <= max(rates) else None


def crossing(hosts: int, say: Callable[[str], None]) -> tuple[float, float | None]:
    """Predicted and measured break-even rate in Mbit/s: predicted from unlimited launches, measured around it.

    Both methods in turn, since machines drift: of the unlimited launches the median, around the rate all of them.
    """
    plans = {method: small_plan(hosts, method) for method in (Averaging.EXACT, Averaging.ONE_BIT)}
    corpus = corpus_for(plans[Averaging.EXACT], None)
    with network_namespaces.hosts(hosts) as names:

        def in_turn(mbit: float | None, repeats: int) -> list[list[LinkRun]]:
            network_namespaces.limit(names, mbit * 1e6 if mbit else None)
            pairs = [[launched(plan, corpus, names) for plan in plans.values()] for _ in range(repeats)]
            rate = f"{mbit:8,.0f} Mbit/s" if mbit else "unlimited"
            for exact, one_bit in pairs:
                say(f"{rate}: exact {exact.step_seconds:.3f} s, one-bit-adam {one_bit.step_seconds:.3f} s")
            return pairs

        def reached(mbit: float) -> Link:
            network_namespaces.limit(names, mbit * 1e6)
            whole, link = mbit * 1e6 / 8, link_between(names)
            return Link(all_reduce=link.all_reduce / whole, exchange=link.exchange / whole)

        unlimited = in_turn(None, BASE_PAIRS)
        fastest = link_between(names)
        bases = [sorted(runs, key=attrgetter("step_seconds"))[BASE_PAIRS // 2] for runs in zip(*unlimited, strict=True)]
        expected = break_even(bases, hosts, reached(SHARE_MBIT), fastest)
        if expected == math.inf:
            return expected, None
        # the faster the link, the less of it messages reach: each costs the processor its time
        expected = break_even(bases, hosts, reached(expected), fastest)
        points = []
        for factor in (0.6, 0.75, 0.9, 1.1, 1.35, 1.6):
            for exact, one_bit in in_turn(factor * expected, PAIRS):
                points.append((factor * expected, exact.step_seconds, one_bit.step_seconds))
    return expected, measured_break_even(points)


def line(run: LinkRun) -> str:
    """One row of the table."""
    rate = f"{run.mbit_per_second:,.0f} Mbit/s" if run.mbit_per_second else "unlimited"
    predicted = "-" if run.predicted_seconds is None else f"{run.predicted_seconds:.3f}"
    arithmetic = (run.forward + run.backward) / run.step_seconds
    excess = run.measured_bytes / run.sent_bytes - 1
    return (
        f"{run.hosts} hosts  {rate:>14}  {run.method:<13}  step {run.step_seconds:7.3f} s "
        f"({run.least_seconds:.3f} to {run.most_seconds:.3f}), predicted {predicted:>7}, forward and backward "
        f"{arithmetic:4.0%}, sent {run.sent_bytes / 1e6:7.2f} MB, on the interface {excess:+.2%}"
    )


def main() -> None:
    """Measure, print, and write the results as JSON."""
    parser = argparse.ArgumentParser(prog="netlab", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=[100.0, 1000.0, 0.0], help="Mbit/s; 0: not limited")
    parser.add_argument("--no-break-even", action="store_true", help="leave out the search for the break-even rate")
    parser.add_argument("--out", type=Path, default=None, help="FILE.json for what was measured")
    arguments = parser.parse_args()
    if reason := network_namespaces.why_not():
        print(f"NOT RUN: {reason}")
        sys.exit(exit_codes.INCONCLUSIVE)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # KeyboardInterrupt: namespaces and ranks go too
    try:
        _measure_all(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(exit_codes.INTERRUPTED)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        sys.exit(exit_codes.EXECUTION_FAILED)


def _measure_all(arguments: argparse.Namespace) -> None:
    say = partial(print, flush=True)
    results: dict[str, object] = {"hardware": hardware(), "time": time.time()}
    for hosts in arguments.hosts:
        runs = measure(hosts, arguments.rates, say)
        results[f"{hosts} hosts"] = msgspec.to_builtins(runs)
        slowest = min((rate for rate in arguments.rates if rate), default=None)
        if slowest is not None:
            exact, one_bit = (
                next(run for run in runs if run.method == method and run.mbit_per_second == slowest)
                for method in (Averaging.EXACT, Averaging.ONE_BIT)
            )
            gain = exact.step_seconds / one_bit.step_seconds
            say(f"{hosts} hosts at {slowest:,.0f} Mbit/s: 1-bit Adam steps {gain:.1f} times as often as exact Adam")
        if not arguments.no_break_even:
            expected, measured = crossing(hosts, say)
            results[f"{hosts} hosts, break-even Mbit/s"] = [expected, measured]
            where = "not between the rates tried" if measured is None else f"{measured:,.0f} Mbit/s"
            say(f"{hosts} hosts: 1-bit Adam pays below {expected:,.0f} Mbit/s (predicted), {where} (measured)")
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
