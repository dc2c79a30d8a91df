from __future__ import annotations

from pathlib import Path

import msgspec

from suite.job.events import StoreWork
from suite.job.synchronisation import parse_slow_ranks, parse_synchronisation
from suite.records.index import launches
from suite.records.record import Record
from suite.report.compared_launches import execution
from suite.report.html.setup_details import detail
from suite.report.html.setups import judged_setup, remembered, setups
from tests.support.page_records import job_of, record


def test_a_launch_with_a_parameter_store_says_how_its_workers_waited_and_how_stale_they_were(tmp_path: Path) -> None:
    job = msgspec.structs.replace(
        job_of("stale"), synchronisation=parse_synchronisation("ssp:3"), slow_ranks=parse_slow_ranks("1:2:10")
    )
    record(tmp_path, job, 1)
    (setup,) = setups(launches(tmp_path)[0])
    assert execution(setup.latest) == "eager, ssp:3 at a parameter store, slow 1:2:10"
    judged = judged_setup(setup, remembered())
    assert judged.record is not None
    assert judged.record.end is not None
    work = StoreWork(
        computed_seconds=[1.0] * 2,
        slept_seconds=[0.0] * 2,
        waited_seconds=[0.0] * 2,
        ahead=[0, 3],
        delays=[0, 1],
        updates=4,
    )
    ranks = [msgspec.structs.replace(rank, store_work=work) for rank in judged.record.end.ranks]
    end = msgspec.structs.replace(judged.record.end, ranks=ranks)
    whole: Record = msgspec.structs.replace(judged.record, end=end)
    about = dict(detail(msgspec.structs.replace(judged, record=whole), []).about)
    assert about["synchronisation"] == "ssp:3, a parameter store on all ranks, slow rank 1:2:10"
    assert about["staleness"] == "at most 3 steps ahead of the slowest worker, mean 1.5 (0: 2, 3: 2)"
    assert about["updates"].startswith("4 of 4 gradients")
