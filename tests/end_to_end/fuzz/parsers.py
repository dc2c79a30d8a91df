"""Everything that reads a file which a person, a disk or another version may have got wrong, with real files for it."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from reference_runs import accelerator, catalog, mlperf_layout, mlperf_log, published
from reference_runs.errors import InputError
from reference_runs.hugging_face import families
from suite.acceptance.battery_record import gpus_before, unfinished
from suite.fleet import battery_table, fleet_record
from suite.fleet.fleet_record import FleetEnd, FleetRow
from suite.fleet.node_patch import read_node
from suite.job.checkpoints import PROGRESS, Progress, progress_of
from suite.job.options import Averaging
from suite.machine import profile
from suite.paths import RECORDED
from suite.predict.plan.audit import Filling, audit
from suite.records import frame, store
from suite.records.index import launches
from suite.records.kernel_runs import kernel_runs
from suite.regression.baselines import accepted
from suite.report.html.acceptance import batteries as shown_batteries
from suite.report.html.stored_results import dry_runs, ladders
from tests.support.configurations import PUBLISHED
from tests.support.training_configurations import AXOLOTL, BRIDGE, DEEPSPEED, MEGATRON, TITAN


class Parser(NamedTuple):
    """The reader of one kind of file.

    Args:
        name: of the file below the directory that `read` is given.
        samples: real contents.
        beside: files that must lie next to it, by name.
        sealed: the same content with the checksum that it needs.
    """

    name: str
    samples: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    beside: Callable[[], dict[str, bytes]] = dict
    sealed: Callable[[bytes], bytes] = lambda data: data


def _contents(*patterns: str, root: Path = RECORDED, most: int = 3) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for pattern in patterns for path in sorted(root.glob(pattern))[:most]]


def _record() -> Path:
    return sorted((RECORDED / "records").rglob("*.begin.json"))[0]


def _halves() -> tuple[str, dict[str, bytes]]:
    """The directory of a recorded launch, and its two files."""
    begin = _record()
    end = store.end_of(begin)
    place = f"records/{begin.parent.name}"
    return begin.name, {f"{place}/{path.name}": path.read_bytes() for path in (begin, end)}


def _read_launches(name: str) -> Callable[[Path], object]:
    def read(directory: Path) -> object:
        first = sorted(_halves()[1])[0]
        with contextlib.suppress(InputError):
            store.read(directory / first)
        found, bad = launches(directory)
        frame.launches(directory)
        frame.figures(directory, ranks=True)
        assert len(found) + len(bad) >= 1, name
        return found

    return read


def _battery(suffix: str) -> str:
    return next(path.name for path in sorted((RECORDED / "acceptance").glob(f"*{suffix}")))


def _battery_files() -> dict[str, bytes]:
    names = [_battery(suffix) for suffix in (".begin.json", ".end.json")]
    return {f"acceptance/{name}": (RECORDED / "acceptance" / name).read_bytes() for name in names}


def _read_batteries(directory: Path) -> object:
    shown_batteries(directory)
    frame.batteries(directory)
    frame.battery_findings(directory)
    gpus_before(directory, "node")
    unfinished(directory, profile="quick", options={}, node="node")
    for path in (directory / "acceptance").glob("*.end.json"):
        with contextlib.suppress(InputError, OSError):
            battery_table._battery(str(directory), f"acceptance/{path.name}")
    return None


def _fleet_end() -> bytes:
    rows = [FleetRow(node="n1", verdict="accepted"), FleetRow(node="n2", verdict="rejected", part="GPU 1", since=1.5e9)]
    return msgspec.json.encode(FleetEnd(schema="1.0", id="20261101T000000Z__a__b", finished=1.7e9, rows=rows))


def _read_fleet(directory: Path) -> object:
    with contextlib.suppress(InputError, OSError):
        battery_table._fleet(str(directory), "fleet/20261101T000000Z__a__b/end.json")
    return fleet_record.latest(directory, None)


def _progress() -> bytes:
    run = catalog.reference_run("gpt2-xl" if "gpt2-xl" in catalog.run_names() else catalog.run_names()[0])
    layout = catalog.reference_run("bloom-176b").layout
    return msgspec.json.encode(
        Progress(
            step=3,
            samples_seen=6,
            samples_trained=6,
            loss_scale=None,
            good_steps=0,
            name="x",
            architecture=run.architecture,
            recipe=catalog.reference_run("bloom-176b").recipe,
            layout=layout,
            averaging=Averaging.EXACT,
            seed=1,
            steps=6,
            corpus="0" * 64,
        )
    )


def _metadata() -> bytes:
    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        StorageMeta,
        TensorProperties,
        TensorStorageMetadata,
    )

    size = torch.Size([4, 2])
    tensor = TensorStorageMetadata(
        TensorProperties(dtype=torch.float32), size, [ChunkStorageMetadata(torch.Size([0, 0]), size)]
    )
    stored = {MetadataIndex("w", torch.Size([0, 0]), 0): _StorageInfo("__0_0.distcp", 0, 100)}
    return pickle.dumps(Metadata({"w": tensor}, None, stored, StorageMeta("/x")))


def _read_metadata(directory: Path) -> object:
    from suite.execute.training.checkpoint import Reader

    try:
        return Reader(directory).read_metadata()
    except (pickle.UnpicklingError, OSError) as error:  # a rank that ends with it: its line is in the record
        raise InputError(str(error)) from error


def _read_bytes_of_node(directory: Path) -> object:
    from suite.commands.fleet_node_patch import file_bytes

    try:
        return read_node(file_bytes(directory / "node.json"), "node.json")
    except OSError as error:  # the command says it in a line
        raise InputError(str(error)) from error


def _sealed_profile(data: bytes) -> bytes:
    try:
        whole = json.loads(data)
        whole["checksum"] = profile.checksum(whole["profile"])
        return json.dumps(whole).encode()
    except (ValueError, TypeError, KeyError, RecursionError):
        return data


def _json_samples(*values: object) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(value).encode() for value in values]


_NODE = {"kind": "Node", "metadata": {"resourceVersion": "7"}, "spec": {"taints": []}, "status": {"conditions": None}}
_BASELINE = {"schema": "1.0", "accepted": 1.7e9, "run": "bloom-mini", "setup": "x", "launches": ["a"], "suite": "0.2.0"}
_BASELINE |= {"median_seconds": 0.5, "replaced": []}
_CHECKPOINT = "step-0000003"

_EVENTS = (
    ("global_batch_size", 4, {}),
    ("block_start", None, {"samples_count": 0}),
    ("block_stop", None, {"samples_count": 64}),
    ("run_stop", None, {"status": "success"}),
)
_LOG = "".join(
    f":::MLLOG {json.dumps({'time_ms': 1.7e12 + place, 'key': key, 'value': value, 'metadata': metadata})}\n"
    for place, (key, value, metadata) in enumerate(_EVENTS)
)
_SHELL = (
    "source $(dirname ${BASH_SOURCE[0]})/config_common.sh\nexport MINIBS=8  # samples\nexport DGXNGPU=8\n"
    'export DGXNNODES=$(( 2 * 4 ))\n: "${TENSOR_MODEL_PARALLEL:=4}"\nexport FP8=True\n'
)


def _audit(place: Path) -> object:
    return [*audit(place, Filling(ranks=8))]


PARSERS: dict[str, Parser] = {
    "run file": Parser(
        "my_run.toml", _contents("*.toml", root=catalog.RUNS), lambda place: catalog.load(place / "my_run.toml")
    ),
    "accelerator": Parser(
        "gpu.toml",
        _contents("*.toml", root=accelerator.ACCELERATORS),
        lambda place: accelerator.load(place / "gpu.toml"),
    ),
    "published table": Parser(
        "table.csv",
        _contents("dgxc*.csv", "korth*.csv", root=Path(published.__file__).parent / "published"),
        lambda place: published.load_table(place / "table.csv"),
    ),
    "configuration": Parser(
        "config.json",
        _json_samples(*(values for values, _ in PUBLISHED.values())),
        lambda place: families.imported(place / "config.json"),
    ),
    "configuration in TOML": Parser("job.toml", lambda: [TITAN.encode()], _audit),
    "configuration in JSON": Parser("ds.json", _json_samples(DEEPSPEED), _audit),
    "configuration in YAML": Parser("recipe.yaml", lambda: [BRIDGE.encode(), AXOLOTL.encode()], _audit),
    "configuration of arguments": Parser("run.sh", lambda: [MEGATRON.encode()], _audit),
    "log of MLPerf": Parser(
        "result_0.txt", lambda: [_LOG.encode()], lambda place: mlperf_log.logged_run(place / "result_0.txt", sequence=8)
    ),
    "configuration of MLPerf": Parser(
        "config_a.sh",
        lambda: [_SHELL.encode()],
        lambda place: [*mlperf_layout.layout_cells(mlperf_layout.read_shell(place / "config_a.sh"))],
    ),
    "machine profile": Parser(
        "profile.json",
        _contents("machines/*.json", most=1),
        lambda place: profile.read(place / "profile.json"),
        sealed=_sealed_profile,
    ),
    "record's first half": Parser(
        f"records/{_record().parent.name}/{_record().name}",
        lambda: [_record().read_bytes()],
        _read_launches("begin"),
        beside=lambda: _halves()[1],
    ),
    "record's second half": Parser(
        f"records/{_record().parent.name}/{store.end_of(_record()).name}",
        lambda: [store.end_of(_record()).read_bytes()],
        _read_launches("end"),
        beside=lambda: _halves()[1],
    ),
    "battery's first half": Parser(
        f"acceptance/{_battery('.begin.json')}",
        _contents("acceptance/*.begin.json"),
        _read_batteries,
        beside=_battery_files,
    ),
    "battery's second half": Parser(
        f"acceptance/{_battery('.end.json')}",
        _contents("acceptance/*.end.json"),
        _read_batteries,
        beside=_battery_files,
    ),
    "fleet": Parser("fleet/20261101T000000Z__a__b/end.json", lambda: [_fleet_end()], _read_fleet),
    "node of Kubernetes": Parser("node.json", _json_samples(_NODE), _read_bytes_of_node),
    "baseline": Parser("baselines/bloom-mini/a.json", _json_samples(_BASELINE), accepted),
    "ladder": Parser("ladder/a.json", _contents("ladder/*.json", most=1), ladders),
    "dry run": Parser("dry_runs/a.json", _json_samples({"schema": 1, "run": "x", "layout": "dp1"}), dry_runs),
    "kernel benchmark": Parser(
        "kernels/a.json", _contents("kernels/*/*.json", most=1), lambda place: kernel_runs(place / "kernels")
    ),
    "checkpoint's progress": Parser(
        f"{_CHECKPOINT}/{PROGRESS}", lambda: [_progress()], lambda place: progress_of(place / _CHECKPOINT)
    ),
    "checkpoint's metadata": Parser(".metadata", lambda: [_metadata()], _read_metadata),
}
