"""Reading parallel text from files."""

import gzip

import pytest

from keras_transformer.data.corpus import read_lines, read_parallel
from keras_transformer.errors import InputError


def test_plain_and_gzip_files_give_the_same_lines(tmp_path):
    content = "Ein Haus.\n\nZwei Häuser.\n".encode()
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(content))
    (tmp_path / "packed_without_suffix").write_bytes(gzip.compress(content))
    for name in ("plain", "packed.gz", "packed_without_suffix"):
        assert read_lines(tmp_path / name) == ["Ein Haus.", "", "Zwei Häuser."]


def test_lines_end_at_newlines_only(tmp_path):
    (tmp_path / "text").write_bytes("a\u2028b\u0085c\x0cd\re\r\n\ufeffg\r\r\nlast".encode())
    assert read_lines(tmp_path / "text") == ["a\u2028b\u0085c\x0cd\re", "\ufeffg\r", "last"]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfone\ntwo\n")
    assert read_lines(tmp_path / "text") == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent", None, r"absent does not exist; expected"),
        ("empty", b"", r"empty is empty; expected"),
        ("empty.gz", gzip.compress(b""), r"empty\.gz is empty"),
        ("latin1", "gut\nH\u00e4user\n".encode("latin-1"), r"latin1, line 2: not UTF-8"),
        ("cut.gz", gzip.compress(b"one\n" * 99)[:-12], r"cut\.gz is not a whole gzip file"),
        ("fake.gz", b"plain text\n", r"fake\.gz is not a whole gzip file"),
        (
            "bad.gz",
            gzip.compress(bytes(range(200)))[:-9] + bytes(9),
            r"bad\.gz is not a whole gzip",
        ),
    ],
)
def test_an_unusable_file_is_named_with_its_fault(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_lines(tmp_path / name)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder; expected a text file"):
        read_lines(tmp_path)


def test_parallel_files_keep_blank_lines_in_step(tmp_path):
    (tmp_path / "en").write_text("one\n\nthree\n")
    (tmp_path / "de").write_text("eins\nzwei\n\n")
    text = read_parallel(tmp_path / "en", tmp_path / "de")
    assert text.source == ["one", "", "three"]
    assert text.target == ["eins", "zwei", ""]


def test_parallel_files_of_different_length_are_refused_with_both_counts(tmp_path):
    (tmp_path / "en").write_text("one\ntwo\n")
    (tmp_path / "de").write_text("eins\nzwei\ndrei\n")
    with pytest.raises(InputError, match=r"en has 2 and .*de has 3"):
        read_parallel(tmp_path / "en", tmp_path / "de")


def test_a_real_corpus_keeps_its_sides_in_step(shared_data):
    folder = shared_data("tatoeba_ende")
    text = read_parallel(folder / "train.en.gz", folder / "train.de.gz")
    assert len(text.source) == len(text.target) == 166_412
