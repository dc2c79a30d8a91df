from __future__ import annotations

from functools import cache

import msgspec
import pytest

from reference_runs.errors import InputError
from reference_runs.machine_model import machine_model
from reference_runs.published import PublishedRow, load_table
from reference_runs.published_tables import PUBLISHED, proxy_tables
from suite.predict.analytic.measured_parts import modelled_parts
from suite.predict.machine_model.model import prepared_row, row_machine, row_step_seconds
from suite.predict.validation.proxies import ProxyPair, parts_of_proxy, proxy_pairs

GROK, LLAMA = "dgxc_25_02_grok1_moe", "dgxc_24_11_bf16"


@cache
def pairs(name: str) -> tuple[ProxyPair, ...]:
    return tuple(proxy_pairs(load_table(PUBLISHED / f"{name}.csv")))


def rows_of_grok() -> tuple[PublishedRow, ...]:
    return load_table(PUBLISHED / f"{GROK}.csv").rows


def without_pipeline_in_fp8(pair: ProxyPair) -> bool:
    return pair.products == "fp8-delayed" and pair.proxy_stages == 1


def test_the_table_of_proxies_has_every_published_row() -> None:
    (path,) = proxy_tables()
    table = load_table(path)
    assert (path.stem, len(table.rows), len(table.skipped)) == (GROK, 18, 0)
    assert {row.architecture.experts for row in table.rows} == {8}


def test_every_proxy_of_8_16_and_32_layers_predicts_every_larger_model() -> None:
    for products in ("bf16", "fp8-delayed"):
        found = {(pair.proxy_layers, pair.accelerators) for pair in pairs(GROK) if pair.products == products}
        sizes = {8: (128, 256, 512, 1024, 2048), 16: (256, 512, 1024, 2048), 32: (512, 1024, 2048)}
        assert found == {(layers, accelerators) for layers, larger in sizes.items() for accelerators in larger}


def test_whole_models_are_within_4_percent_of_what_their_proxies_say_but_for_one() -> None:
    errors = [pair.error_percent for pair in (*pairs(GROK), *pairs(LLAMA)) if not without_pipeline_in_fp8(pair)]
    assert len(errors) == 31
    # Llama 3.1 405B on 2,304 accelerators, of its 21 layers on 96: 4.1 %
    *others, largest = sorted(map(abs, errors))
    assert max(others) < 4
    assert largest < 4.1
    # in fp8 2,048 accelerators take 1.7 % longer than 1,024, in bf16 0.4 %: more than any message between them
    odd = ("fp8-delayed", 2048)
    behind_pipelines = [pair for pair in pairs(GROK) if pair.proxy_stages > 1]
    regular = [pair.error_percent for pair in behind_pipelines if (pair.products, pair.accelerators) != odd]
    assert (len(behind_pipelines), len(regular)) == (14, 12)
    assert max(map(abs, regular)) < 2.5


def test_the_proxy_in_fp8_without_a_pipeline_takes_longer_than_larger_models_that_have_its_work_on_a_stage() -> None:
    """The 8 layers and the head of one stage take 17.53 s, the same on the last of 2 stages 16.70 s: published so."""
    missed = [pair for pair in pairs(GROK) if without_pipeline_in_fp8(pair)]
    assert [round(pair.error_percent, 1) for pair in missed] == [4.9, 4.8, 4.2, 3.6, 1.9]
    (proxy,) = {pair.proxy_line for pair in missed}
    published = next(row.step_seconds for row in rows_of_grok() if row.line == proxy)
    assert published == 17.53
    for pair in missed:
        assert pair.measured_seconds < published
        # more stages, accelerators and messages can only add, but that the embedding's message is the first stage's; a
        # bubble of 7 of 8 * 128 chunks is 0.7 %
        assert 0.999 * published <= pair.predicted_seconds < 1.013 * published


@pytest.mark.parametrize("name", [GROK, LLAMA])
def test_a_proxy_from_the_plain_prediction_predicts_what_is_plainly_predicted(name: str) -> None:
    table, model = load_table(PUBLISHED / f"{name}.csv"), machine_model()
    plain = [row_step_seconds(model, model.values(), prepared_row(row)) for row in table.rows]
    rows = [msgspec.structs.replace(row, step_seconds=time) for row, time in zip(table.rows, plain, strict=True)]
    again = proxy_pairs(table._replace(rows=tuple(rows)))
    assert len(again) == len(pairs(name))
    for pair in again:
        assert pair.predicted_seconds == pytest.approx(pair.plain_seconds, rel=1e-9)
        assert pair.layer_seconds == pytest.approx(pair.modelled_layer_seconds, rel=1e-9)


def test_the_layer_of_a_proxy_gives_its_step_back_and_its_rest_is_the_machines() -> None:
    proxy = rows_of_grok()[3]
    model, parts = machine_model(), parts_of_proxy(proxy)
    machine = row_machine(model, model.values(), prepared_row(proxy))
    modelled = modelled_parts(proxy.workload, machine)
    assert (parts.head, parts.embedding, parts.update) == (modelled.head, modelled.embedding, modelled.update)
    layers, micro_batches = proxy.architecture.layers, prepared_row(proxy).micro_batches
    slower = parts.layers[0].total - modelled.layers[0].total
    plain = row_step_seconds(model, model.values(), prepared_row(proxy))
    assert proxy.step_seconds == pytest.approx(plain + micro_batches * layers * slower, rel=1e-3)


def test_a_proxy_that_is_faster_than_all_but_its_layers_is_refused() -> None:
    with pytest.raises(InputError, match="no time of a layer gives the proxy's step"):
        parts_of_proxy(msgspec.structs.replace(rows_of_grok()[3], step_seconds=0.01))
