"""Values that one program holds, its warps, the number of programs, and the loads on the way to them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels import tiles
from kernels.operator import UnsupportedInputError
from kernels.tiles import (
    MOST_COLUMNS,
    programs_over_rows,
    programs_over_tiles,
    require_columns,
    rows_of,
    stages_of,
    tile_of,
    warps_of,
)

CPU = torch.device("cpu")  # where two multiprocessors are assumed
POWERS = [2**power for power in range(18)]


@given(columns=st.integers(1, MOST_COLUMNS), most=st.sampled_from(POWERS), values=st.sampled_from([1, 2, 4]))
def test_a_tile_is_no_wider_than_a_row_and_has_2048_values_where_rows_are_short(
    columns: int, most: int, values: int
) -> None:
    rows, block, blocks = tile_of(columns, most, values)
    assert block in POWERS
    assert block < 2 * columns
    assert block <= most
    assert (blocks - 1) * block < columns <= blocks * block
    assert blocks == 1 or block == most
    assert rows * block * values == 2048 or (rows == 1 and block * values > 2048)


def test_a_row_of_most_columns_is_one_tile() -> None:
    assert tile_of(MOST_COLUMNS) == (1, MOST_COLUMNS, 1)


@pytest.mark.parametrize("threads", [32, 64])
@pytest.mark.parametrize("each", [8, 16, 32])
@pytest.mark.parametrize("values", POWERS)
def test_a_thread_has_so_many_values_where_a_program_has_up_to_512_threads(
    values: int, each: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "_warp_threads", lambda _: threads)
    warps = warps_of(values, CPU, each)
    of_thread = values / (threads * warps)
    assert of_thread == each or (of_thread < each and warps == 1) or (of_thread > each and warps * threads == 512)


@given(rows=st.integers(0, 100), at_once=st.integers(1, 40))
def test_rows_are_divided_among_two_programs_a_multiprocessor_and_no_more_than_have_any(
    rows: int, at_once: int
) -> None:
    programs = programs_over_rows(rows, at_once, CPU)
    assert 1 <= programs <= 4
    assert (programs - 1) * at_once < max(rows, 1)
    assert programs == 4 or programs * at_once >= rows


@given(
    rows=st.integers(0, 500),
    at_once=st.sampled_from(POWERS[:6]),
    block=st.sampled_from(POWERS[4:15]),
    blocks=st.integers(1, 5),
)
def test_programs_over_tiles_hold_8192_values_a_multiprocessor(
    rows: int, at_once: int, block: int, blocks: int
) -> None:
    programs = programs_over_tiles(rows, at_once, block, blocks, CPU)
    assert programs >= 1
    assert (programs - 1) * at_once < max(rows, 1)
    held = 2 * max(8192, at_once * block)  # a tile may be larger than that
    assert programs == 1 or programs * blocks * at_once * block <= held
    assert programs * at_once >= rows or (programs + 1) * blocks * at_once * block > held


@pytest.mark.parametrize(
    ("pass_bytes", "stages"), [(1, 3), (16_383, 3), (16_384, 2), (200_000, 2), (200_001, 1), (10**6, 1)]
)
def test_passes_are_loaded_ahead_while_shared_memory_holds_them(pass_bytes: int, stages: int) -> None:
    assert stages_of(pass_bytes) == stages


@pytest.mark.parametrize("columns", [0, MOST_COLUMNS + 1])
def test_a_row_that_no_program_holds_is_refused(columns: int) -> None:
    for taken in (1, MOST_COLUMNS):
        require_columns("norm", taken)
    with pytest.raises(UnsupportedInputError, match=f"^norm: columns: allowed 1 to 65,536, got {columns:,}$"):
        require_columns("norm", columns)


def test_rows_are_copied_only_where_their_columns_lie_apart() -> None:
    wide = torch.arange(48).view(2, 3, 8)
    assert rows_of(wide).data_ptr() == wide.data_ptr()
    assert rows_of(wide[..., :4]).shape == (6, 4)
    assert rows_of(wide[..., :4]).data_ptr() == wide.data_ptr()
    assert torch.equal(rows_of(wide[..., ::2]), wide[..., ::2].reshape(6, 4))
    assert rows_of(wide[..., ::2]).is_contiguous()
    assert rows_of(wide[0, 0]).shape == (1, 8)
