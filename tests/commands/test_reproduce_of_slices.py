"""What `reproduce NAME-slice` refuses, from the command line: one line, exit code 2, before anything is launched."""

from __future__ import annotations

import pytest

from suite.__main__ import main
from suite.reproduce import slice_memory


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["bloom-176b-slice", "--stage", "12"], "no such stage"),
        (["bloom-176b-slice", "--layers", "7"], "layers of the middle stage; got 7, allowed: 1 to 6"),
        (["bloom-176b-slice", "--ranks", "3"], "processes of a slice; got 3, allowed: 1, or 4 = 4 (tp)"),
        (["bloom-mini-slice"], "unknown run"),
        (["gpt2-124m-slice"], "does not fit: the slice needs 73.1 GiB; got 8.0 GiB"),
        (["bloom-mini", "--layers", "2"], "--layers: of a slice alone"),
        (["bloom-mini", "--stage", "first", "--sequence", "8"], "--stage, --sequence: of a slice alone"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_memory, "free_bytes", lambda: 8 * 2**30)
    assert main(["reproduce", *arguments, "--device", "cpu"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert line in err
    assert err.count("\n") == 1
