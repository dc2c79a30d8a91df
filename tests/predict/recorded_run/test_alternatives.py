"""The plans that `predict --choices` prints can be executed as they are printed."""

from __future__ import annotations

from reference_runs.layout import Layout, Schedule, parse_layout
from suite.predict.recorded_run.alternatives import partition_words


def test_pipedreams_partition_is_printed_as_the_layout_that_executes_it() -> None:
    words = partition_words([2, 1], [3, 1])
    assert words == "pp2,pipedream,replicas2-1,layers3-1"
    assert parse_layout(words, base=Layout()) == Layout(
        pipeline_stages=2, schedule=Schedule.PIPEDREAM, stage_replicas=(2, 1), stage_layer_counts=(3, 1)
    )
    assert parse_layout(partition_words([8], [12]), base=Layout()) == Layout(data_parallel=8)
    alike = parse_layout(partition_words([2, 2], [6, 6]), base=Layout())
    assert (alike.data_parallel, alike.stage_replicas, alike.stage_layer_counts) == (2, None, (6, 6))
