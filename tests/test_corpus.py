"""Text to tokens."""

from __future__ import annotations

import array
from pathlib import Path

import pytest

from reference_runs.errors import InputError
from suite import corpus
from suite.corpus import standard_library_files, tokenised_corpus

WORDS = ["loss", "step", "rank", "token", "layer", "batch", "stage", "weight", "moment", "shard"]
TEXT = "".join(
    f"The {WORDS[n % 10]} of {WORDS[n * 7 % 10]} {n} is {n * n % 1009}: λ = {n / 7:.3f}\n" for n in range(900)
)


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def _tokens(path: str) -> array.array[int]:
    tokens = array.array("i")
    data = Path(path).read_bytes()
    tokens.frombytes(data)
    return tokens


def test_the_same_text_gives_the_same_tokens(text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tokenised_corpus(text_file, vocabulary=400, least_tokens=100)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    two = tokenised_corpus(text_file, vocabulary=400, least_tokens=100)
    assert one.tokens_file != two.tokens_file
    assert one.sha256 == two.sha256
    assert _tokens(one.tokens_file) == _tokens(two.tokens_file)


def test_tokens_are_below_the_vocabulary_and_compress_the_text(text_file: Path) -> None:
    told = tokenised_corpus(text_file, vocabulary=400, least_tokens=100)
    tokens = _tokens(told.tokens_file)
    assert told.tokens == len(tokens)
    assert min(tokens) >= 0
    assert max(tokens) < 400
    assert len(tokens) < told.text_bytes / 2
    assert len(set(tokens)) > 100


def test_a_cached_corpus_is_not_tokenised_again(text_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tokenised_corpus(text_file, vocabulary=400, least_tokens=100)

    def refuse(*arguments: object) -> None:
        raise AssertionError("tokenised again")

    monkeypatch.setattr(corpus, "_encoded", refuse)
    assert tokenised_corpus(text_file, vocabulary=400, least_tokens=100) == first
    with pytest.raises(AssertionError, match="tokenised again"):
        tokenised_corpus(text_file, vocabulary=401, least_tokens=100)


def test_other_text_has_another_hash(text_file: Path) -> None:
    before = tokenised_corpus(text_file, vocabulary=400, least_tokens=100)
    text_file.write_text(TEXT.replace("loss", "gain", 1), encoding="utf-8")
    after = tokenised_corpus(text_file, vocabulary=400, least_tokens=100)
    assert before.sha256 != after.sha256
    assert before.tokens_file != after.tokens_file


def test_documents_end_with_the_end_of_text_token(tmp_path: Path) -> None:
    directory = tmp_path / "texts"
    directory.mkdir()
    for name in ("b.txt", "a.txt"):
        (directory / name).write_text(TEXT, encoding="utf-8")
    told = tokenised_corpus(directory, vocabulary=400, least_tokens=100)
    tokens = _tokens(told.tokens_file)
    assert told.files == 2
    half = len(tokens) // 2
    assert tokens[:half] == tokens[half:]
    assert tokens[-1] == tokens[half - 1]
    assert list(tokens).count(tokens[-1]) == 2


def test_an_interrupted_write_leaves_no_cache(
    text_file: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="cannot write the cache: No space left on device"):
        tokenised_corpus(text_file, vocabulary=400, least_tokens=100)
    assert [path for path in private_cache.rglob("*") if path.is_file()] == []
    monkeypatch.undo()


def test_repetitive_text_is_refused_with_what_it_gives(tmp_path: Path) -> None:
    path = tmp_path / "same.txt"
    path.write_text("ab " * 4000)
    with pytest.raises(InputError, match=r"too few distinct words for a vocabulary of 400 tokens; got 2\d\d tokens"):
        tokenised_corpus(path, vocabulary=400, least_tokens=100)


def test_the_default_corpus_is_real_python_text_without_tests() -> None:
    files = standard_library_files()
    assert len(files) > 200
    assert {"ast.py", "typing.py"} <= {path.name for path in files}
    assert not any({"test", "site-packages"} & set(path.parts[-4:-1]) for path in files)
