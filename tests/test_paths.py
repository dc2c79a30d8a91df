from __future__ import annotations

from pathlib import Path

import pytest

from suite.paths import whole_file


def test_a_file_is_replaced_once_it_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_text("old")
    with whole_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.suffix == path.suffix
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_file_as_it_was_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(type(error)), whole_file(path) as temporary:  # noqa: PT012  # the write begins, then fails
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_directory_in_a_file_s_place_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IsADirectoryError), whole_file(Path(name)):
        pass
    assert list(tmp_path.iterdir()) == []
