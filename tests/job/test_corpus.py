"""Text to tokens."""

from __future__ import annotations

import array
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from reference_runs.errors import InputError
from reference_runs.regular_file import file_text
from suite.job import corpus
from suite.job.corpus import END_OF_TEXT, standard_library_files, standard_library_is_tokenised, tokenised_corpus

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


def test_the_same_text_gives_the_same_tokens_below_the_vocabulary(text_file, tmp_path, monkeypatch):
    one = tokenised_corpus(text_file, vocabulary=400, least_tokens=100)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    two = tokenised_corpus(text_file, vocabulary=400, least_tokens=100)
    assert (one.tokens_file == two.tokens_file, one.sha256) == (False, two.sha256)
    tokens = _tokens(one.tokens_file)
    assert tokens == _tokens(two.tokens_file)
    assert one.tokens == len(tokens) < one.text_bytes / 2
    assert 0 <= min(tokens) <= max(tokens) < 400
    assert len(set(tokens)) > 100


def test_a_cached_corpus_is_not_tokenised_again(text_file, monkeypatch):
    first = tokenised_corpus(text_file, vocabulary=400, least_tokens=100)

    def refuse(*arguments: object) -> None:
        raise AssertionError("tokenised again")

    monkeypatch.setattr(corpus, "_trained", refuse)
    assert tokenised_corpus(text_file, vocabulary=400, least_tokens=100) == first
    with pytest.raises(AssertionError, match="tokenised again"):
        tokenised_corpus(text_file, vocabulary=401, least_tokens=100)


def test_the_standard_library_is_read_once_and_known_to_be_tokenised(text_file, monkeypatch):
    read: list[Path] = []

    def counted(file: Path, *, most: int) -> str:
        read.append(file)
        return file_text(file, most=most)

    monkeypatch.setattr(corpus, "file_text", counted)
    monkeypatch.setattr(corpus, "standard_library_files", lambda: [text_file])
    assert not standard_library_is_tokenised(400)
    tokenised = tokenised_corpus(None, vocabulary=400, least_tokens=100)
    before = len(read)
    assert standard_library_is_tokenised(400)
    assert not standard_library_is_tokenised(401)
    assert tokenised_corpus(None, vocabulary=400, least_tokens=100) == tokenised
    assert len(read) == before == 2  # once for its hash, once to be tokenised


def test_text_that_changes_while_it_is_read_is_stored_under_its_own_hash(text_file, monkeypatch):
    described = corpus._described

    def changed(*arguments: Any) -> Any:
        before = described(*arguments)
        text_file.write_text(TEXT.replace("loss", "gain", 1), encoding="utf-8")
        return before

    with monkeypatch.context() as patched:
        patched.setattr(corpus, "_described", changed)
        first = tokenised_corpus(text_file, vocabulary=400, least_tokens=100)
    changed_text = tokenised_corpus(text_file, vocabulary=400, least_tokens=100)
    assert changed_text.sha256 == first.sha256
    text_file.write_text(TEXT, encoding="utf-8")
    other = tokenised_corpus(text_file, vocabulary=400, least_tokens=100)
    assert (other.sha256 == first.sha256, other.tokens_file == first.tokens_file) == (False, False)


def test_documents_end_with_the_end_of_text_token(tmp_path):
    directory = tmp_path / "texts"
    directory.mkdir()
    for name in ("b.txt", "a.txt"):
        (directory / name).write_text(TEXT, encoding="utf-8")
    reported = tokenised_corpus(directory, vocabulary=400, least_tokens=100)
    tokens = _tokens(reported.tokens_file)
    assert reported.files == 2
    half = len(tokens) // 2
    assert tokens[:half] == tokens[half:]
    assert tokens[-1] == tokens[half - 1]
    assert list(tokens).count(tokens[-1]) == 2


def test_tokens_decode_to_the_text_with_a_tokenizer_trained_alike(tmp_path):
    from tokenizers import ByteLevelBPETokenizer

    directory = tmp_path / "texts"
    directory.mkdir()
    texts = [TEXT[:9000], "", TEXT[9000:] + "é 🙂\r\n"]
    for name, text in zip("abc", texts, strict=True):
        (directory / name).write_text(text, encoding="utf-8", newline="")
    tokens = _tokens(tokenised_corpus(directory, vocabulary=400, least_tokens=100).tokens_file)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=400, min_frequency=0, special_tokens=[END_OF_TEXT])
    # reading a text turns its \r\n into \n
    expected = "".join(text.replace("\r\n", "\n") + END_OF_TEXT for text in texts)
    assert tokenizer.decode(list(tokens), skip_special_tokens=False) == expected


def test_readers_see_only_whole_corpora(text_file, private_cache, monkeypatch):
    seen: list[list[Path]] = []

    write_bytes = Path.write_bytes

    def watched(self: Path, data: bytes) -> int:
        size = write_bytes(self, data)
        seen.append(list(private_cache.rglob("[!.]*.tokens")))
        return size

    monkeypatch.setattr(Path, "write_bytes", watched)
    tokenised = tokenised_corpus(text_file, vocabulary=400, least_tokens=100)
    assert seen == [[]]
    assert [path for path in private_cache.rglob("*") if path.is_file()] == [Path(tokenised.tokens_file)]


def test_an_interrupted_write_leaves_no_cache(text_file, private_cache, monkeypatch):
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="cannot write the cache: No space left on device"):
        tokenised_corpus(text_file, vocabulary=400, least_tokens=100)
    assert [path for path in private_cache.rglob("*") if path.is_file()] == []
    monkeypatch.undo()


def test_the_default_corpus_is_real_python_text_without_tests():
    files = standard_library_files()
    assert len(files) > 200
    assert {"ast.py", "typing.py"} <= {path.name for path in files}
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    assert files == sorted(path for path in root.rglob("*.py") if not left_out & {*path.relative_to(root).parts})
