"""Turns real text into tokens: hashes it, byte-pair encodes it with the wanted vocabulary, caches it by the hash."""

from __future__ import annotations

import array
import hashlib
import itertools
import os
import re
import stat
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from reference_runs.errors import InputError
from reference_runs.regular_file import file_text
from suite.job.options import Documents, Texts
from suite.paths import cache_directory, whole_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
END_TOKEN = 0  # its number: special tokens come first in an encoding
STANDARD_LIBRARY = "Python standard library"  # the source of the corpus where no path is given
MOST_CORPUS_BYTES = 1 << 40  # of one file: what fits in memory is for the user to choose
DOCUMENT_BYTES = 16 * 1024
_WORD = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
_LEFT_OUT = ("site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__")


class Corpus(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenised corpus: where it came from, the hash of its text, and the file of little-endian int32 tokens."""

    source: str
    sha256: str
    text_bytes: int
    files: int
    vocabulary: int
    tokens: int
    tokens_file: str


def standard_library_files() -> list[Path]:
    """The sources of the running Python's standard library, sorted, without tests."""
    files: list[Path] = []
    for parent, directories, names in os.walk(sysconfig.get_path("stdlib")):
        directories[:] = [name for name in directories if name not in _LEFT_OUT]  # nor is anything below them walked
        files += [Path(parent, name) for name in names if name.endswith(".py")]
    return sorted(files)


def corpus_files(path: Path | None) -> list[Path]:
    """The text files of a corpus: the standard library's sources, one file, or every file below a directory.

    Raises:
        InputError: the path is missing, unreadable, or holds no file.
    """
    if path is None:
        files = standard_library_files()
        if not files:
            raise InputError("this Python comes without its sources", allowed="--corpus PATH", where="corpus")
        return files
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            return [path]
        below = (Path(parent, name) for parent, _, names in os.walk(path, onerror=_refuse) for name in names)
        files = sorted(file for file in below if file.is_file() and not file.name.startswith("."))
    except OSError as error:
        got = str(error.filename or path)
        raise InputError(f"cannot read the corpus: {error.strerror}", got=got, where="--corpus") from error
    if not files:
        raise InputError("the directory holds no file", got=str(path), allowed="UTF-8 text files", where="--corpus")
    return files


def _refuse(error: OSError) -> None:
    raise error


@cache
def distinct_words() -> int:
    """Distinct words of the standard library: an encoding of byte pairs that is trained to its end has as many tokens.

    Source: tokenizers, pre_tokenizers.ByteLevel, GPT-2's expression, here with the letters and digits of `re`.

    Raises:
        InputError: this Python comes without its sources.
    """
    found: set[str] = set()
    for text in _texts(corpus_files(None)):
        found.update(_WORD.findall(text))
    return len(found)


def tokenised_corpus(path: Path | None, *, vocabulary: int, least_tokens: int) -> Corpus:
    """Tokens of the corpus at `path` (None: the standard library's sources), from the cache if it has them.

    The byte-pair encoding is trained on the same text; documents end with an end-of-text token.

    Raises:
        InputError: missing, unreadable, empty or undecodable text, or text too small for the vocabulary or for
            `least_tokens` tokens.
    """
    corpus = _described(path, vocabulary, "tokens")
    target = Path(corpus.tokens_file)
    if not target.exists():
        texts, corpus = _read(path, vocabulary, "tokens")
        target = Path(corpus.tokens_file)
        tokens, _ = _tokens(_trained(texts, vocabulary, _option(path)), texts)
        _write(target, tokens.tobytes())
    return _counted(corpus, least_tokens, _option(path))


def tokenised_documents(path: Path | None, *, vocabulary: int, least_tokens: int) -> tuple[Corpus, Texts]:
    """The same tokens, with the encoding and the documents' offsets, from which each document can be tokenised again.

    Documents are at most 16 KiB long, so that all samples take about as long. They have separate files, because an
    encoding that is trained again may differ where pairs are equally frequent.

    Raises:
        InputError: as `tokenised_corpus`.
    """
    texts, corpus = _read(path, vocabulary, "pieces.tokens")
    target = Path(corpus.tokens_file)
    stem = target.name.removesuffix(".pieces.tokens")
    tokenizer, text_file, offsets = (
        target.with_name(f"{stem}.{name}") for name in ("tokenizer.json", "pieces.text", "pieces.json")
    )
    if not all(file.exists() for file in (target, tokenizer, text_file, offsets)):
        documents = [document for text in texts for document in _documents(text)]
        encoding = _trained(texts, vocabulary, _option(path))
        tokens, starts = _tokens(encoding, documents)
        encoded = [document.encode() for document in documents]
        ends = itertools.accumulate(map(len, encoded), initial=0)
        _write(tokenizer, encoding.to_str().encode())
        _write(text_file, b"".join(encoded))
        _write(offsets, msgspec.json.encode(Documents([*ends], [*starts, len(tokens)])))
        _write(target, tokens.tobytes())
    corpus = _counted(corpus, least_tokens, _option(path))
    return corpus, Texts(tokenizer_file=str(tokenizer), text_file=str(text_file), documents_file=str(offsets))


def _option(path: Path | None) -> str:
    """Where errors say that a text comes from."""
    return "corpus" if path is None else "--corpus"


def standard_library_is_tokenised(vocabulary: int) -> bool:
    """Whether the cache has the standard library's tokens; otherwise it takes some seconds to make them.

    Raises:
        InputError: this Python comes without its sources.
    """
    return Path(_described(None, vocabulary, "tokens").tokens_file).exists()


class _Digest(NamedTuple):
    """The SHA-256 of texts, each followed by a NUL byte, and their bytes together."""

    sha256: str
    text_bytes: int


def _texts(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        try:
            yield file_text(file, most=MOST_CORPUS_BYTES)
        except OSError as error:
            raise InputError(f"cannot read the file: {error.strerror}", got=str(file), where="--corpus") from error
        except UnicodeDecodeError as error:
            raise InputError("not UTF-8 text", got=str(file), allowed="UTF-8 text files", where="--corpus") from error


def _digest(texts: Iterable[str]) -> _Digest:
    digest, text_bytes = hashlib.sha256(), 0
    for text in texts:
        data = text.encode("utf-8")
        digest.update(data + b"\0")
        text_bytes += len(data)
    return _Digest(digest.hexdigest(), text_bytes)


@cache
def _standard_library_digest(files: tuple[Path, ...]) -> _Digest:
    """Read once a process: a battery launches a dozen jobs that train on it."""
    return _digest(_texts(files))


def _described(path: Path | None, vocabulary: int, name: str) -> Corpus:
    """The corpus whose tokens are in the cached file NAME, or will be, not yet counted."""
    files = corpus_files(path)
    digest = _standard_library_digest(tuple(files)) if path is None else _digest(_texts(files))
    return _corpus(path, vocabulary, name, len(files), digest)


def _read(path: Path | None, vocabulary: int, name: str) -> tuple[list[str], Corpus]:
    """The texts, and the corpus that they are."""
    texts = list(_texts(corpus_files(path)))
    return texts, _corpus(path, vocabulary, name, len(texts), _digest(texts))


def _corpus(path: Path | None, vocabulary: int, name: str, files: int, digest: _Digest) -> Corpus:
    sha256, text_bytes = digest
    if text_bytes == 0:
        raise InputError("the corpus is empty", got="0 bytes", allowed="UTF-8 text", where=_option(path))
    if text_bytes < 4 * vocabulary:
        what = f"the corpus is too small for a vocabulary of {vocabulary} tokens"
        allowed = f"at least {4 * vocabulary} bytes"
        raise InputError(what, got=f"{text_bytes} bytes", allowed=allowed, where=_option(path))
    return Corpus(
        source=STANDARD_LIBRARY if path is None else str(path),
        sha256=sha256,
        text_bytes=text_bytes,
        files=files,
        vocabulary=vocabulary,
        tokens=0,
        tokens_file=str(cache_directory() / f"{sha256[:32]}-{vocabulary}.{name}"),
    )


def _counted(corpus: Corpus, least_tokens: int, where: str) -> Corpus:
    tokens = Path(corpus.tokens_file).stat().st_size // 4
    if tokens < least_tokens:
        what, allowed = "the corpus is smaller than one global batch", f"at least {least_tokens} tokens"
        raise InputError(what, got=f"{tokens} tokens", allowed=allowed, where=where)
    return msgspec.structs.replace(corpus, tokens=tokens)


def _documents(text: str) -> Iterator[str]:
    """The text in documents of at most DOCUMENT_BYTES, of whole lines where these are no longer."""
    parts: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        for start in range(0, len(line), DOCUMENT_BYTES // 4):  # a character has at most 4 bytes
            part = line[start : start + DOCUMENT_BYTES // 4]
            length = len(part.encode())
            if size + length > DOCUMENT_BYTES:
                yield "".join(parts)
                parts, size = [], 0
            parts.append(part)
            size += length
    if parts:
        yield "".join(parts)


def _trained(texts: list[str], vocabulary: int, where: str) -> Tokenizer:
    # imported here, because only a corpus that is not cached needs it
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        what = f"the corpus has too few distinct words for a vocabulary of {vocabulary} tokens"
        got = f"{tokenizer.get_vocab_size()} tokens"
        raise InputError(what, got=got, allowed="more varied text", where=where)
    return tokenizer


def _tokens(tokenizer: Tokenizer, texts: list[str]) -> tuple[array.array[int], list[int]]:
    """The tokens of all texts, each followed by an end-of-text token, and the index of each text's first token."""
    (end,) = tokenizer.encode(END_OF_TEXT).ids
    assert end == END_TOKEN
    tokens = array.array("i")
    starts = []
    for encoding in tokenizer.encode_batch(texts):
        starts.append(len(tokens))
        tokens.extend(encoding.ids)
        tokens.append(end)
    return tokens, starts


def _write(target: Path, data: bytes) -> None:
    try:
        with whole_file(target) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise InputError(f"cannot write the cache: {error.strerror}", got=str(target), where="corpus") from error
