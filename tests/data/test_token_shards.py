"""Text tokenized by several processes and workers, killed and resumed: always the same bytes."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import pytest

import keras_transformer
from keras_transformer.data import ApacheBeamShards, cached_corpus, token_cache
from keras_transformer.data.corpus import TsvFile
from keras_transformer.errors import InputError
from keras_transformer.text import learn_vocabulary

PAIRS = 2000
SHARD = 20
ROOT = pathlib.Path(keras_transformer.__file__).parents[1]
# Stops when three shards are done, until it is killed.
SCRIPT = f"""
import sys, time
from keras_transformer.data import cached_corpus, token_cache
from keras_transformer.data.corpus import TsvFile
from keras_transformer.text import Vocabulary

if __name__ == "__main__":
    token_cache._SHARD_PAIRS = {SHARD}
    folder, text, vocabulary = sys.argv[1:]
    vocabulary = Vocabulary.load(vocabulary)

    def wait(num_pairs):
        if num_pairs >= {3 * SHARD}:
            print(flush=True)
            time.sleep(3600)

    cached_corpus(
        folder, [TsvFile(text)], (vocabulary, vocabulary), max_length=9, processes=4, progress=wait
    )
"""


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(token_cache, "_SHARD_PAIRS", SHARD)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.tsv"
    path.write_text("".join(f"{n} und {n * n}\t{n} and {n * n}\n" for n in range(PAIRS)))
    return TsvFile(path)


@pytest.fixture
def vocabulary(text, tmp_path):
    vocabulary = learn_vocabulary((source for source, _ in text), size=40, kind="char")
    vocabulary.save(tmp_path / "vocabulary")
    return vocabulary


def tokenize(folder, text, vocabulary, **options):
    return cached_corpus(folder, [text], (vocabulary, vocabulary), max_length=9, **options)


def content(folder):
    """The bytes of every file of the only corpus in a folder, and nothing else is there."""
    (corpus,) = folder.iterdir()
    assert corpus.name.startswith("tokens-")
    return {path.name: path.read_bytes() for path in corpus.iterdir()}


@pytest.fixture
def expected(tmp_path, text, vocabulary, monkeypatch):
    """What a single process makes of the text as a single shard."""
    with monkeypatch.context() as patch:
        patch.setattr(token_cache, "_SHARD_PAIRS", 10_000)
        corpus = tokenize(tmp_path / "whole", text, vocabulary, processes=1)
    assert 0 < corpus.dropped["too long"] < PAIRS
    return content(tmp_path / "whole")


@pytest.mark.parametrize("processes", [1, 3])
def test_processes_make_the_same_bytes(tmp_path, text, vocabulary, expected, processes):
    tokenize(tmp_path / "cache", text, vocabulary, processes=processes)
    assert content(tmp_path / "cache") == expected


def test_killed_run_resumes_with_the_same_bytes(tmp_path, text, vocabulary, expected):
    folder = tmp_path / "cache"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, folder, text.path, tmp_path / "vocabulary"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline() == b"\n"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    done = {path: path.stat().st_mtime_ns for path in folder.glob("shards-*/*.npz")}
    assert 3 <= len(done) < PAIRS // SHARD
    kept = {}

    def look(num_pairs):
        for path in done:
            if path.exists():
                kept[path] = path.stat().st_mtime_ns

    tokenize(folder, text, vocabulary, processes=2, progress=look)
    assert kept == done
    assert content(folder) == expected


def test_damaged_shard_is_named(tmp_path, text, vocabulary):
    def stop(num_pairs):
        if num_pairs > 3 * SHARD:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize(tmp_path / "cache", text, vocabulary, processes=1, progress=stop)
    shard = next((tmp_path / "cache").glob("shards-*/0-000001.npz"))
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"0-000001\.npz is damaged .*; delete it and start again"):
        tokenize(tmp_path / "cache", text, vocabulary, processes=1)


def test_beam_pipeline_makes_the_same_bytes(tmp_path, text, vocabulary, expected):
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    made, shares = [], 3

    def counted(maker, sources):
        ApacheBeamShards(["--runner=DirectRunner"], shares)(maker, sources)
        made.extend(maker.folder.iterdir())

    tokenize(tmp_path / "cache", text, vocabulary, processes=1, make_shards=counted)
    assert len(made) == PAIRS // SHARD  # nothing was left to this process
    assert content(tmp_path / "cache") == expected


def test_without_beam_the_extra_is_named(tmp_path, text, vocabulary, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(InputError, match=r"pip install .*\[beam\]"):
        tokenize(tmp_path / "cache", text, vocabulary, make_shards=ApacheBeamShards())
    assert not list((tmp_path / "cache").glob("tokens-*"))
