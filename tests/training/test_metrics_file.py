"""metrics.jsonl: written row by row, and cut back where a run goes on from a checkpoint."""

import json
import math

import pytest

from keras_transformer.errors import InputError
from keras_transformer.training.metrics import MetricsFile, read_metrics


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def steps(path) -> list[float]:
    return [row["step"] for row in read_metrics(path)]


def write(path, *rows: int, ending: str = "") -> None:
    path.write_text("".join(f'{{"step": {step}, "loss": 1.5}}\n' for step in rows) + ending)


def test_rows_come_back_as_they_were_written(path):
    file = MetricsFile(path)
    file.append({"step": 100, "loss": 1.25})
    file.append({"step": 200, "loss": 0.5, "bleu": 30.0})
    assert read_metrics(path) == [
        {"step": 100, "loss": 1.25},
        {"step": 200, "loss": 0.5, "bleu": 30.0},
    ]


def test_each_row_is_on_disk_at_once_and_on_a_line_of_its_own(path):
    file = MetricsFile(path)
    for count in (1, 2):
        file.append({"step": count})
        assert len(path.read_text().splitlines()) == count


def test_numbers_are_short_and_counts_are_whole(path):
    MetricsFile(path).append({"step": 1, "loss": 6.18446683883667, "target_tokens": 123456789})
    assert path.read_text() == '{"step": 1, "loss": 6.18447, "target_tokens": 123456789}\n'


def test_a_loss_that_is_no_number_is_still_json(path):
    MetricsFile(path).append({"step": 1, "loss": math.nan, "perplexity": math.inf})
    json.loads(path.read_text(), parse_constant=pytest.fail)
    assert math.isnan(read_metrics(path)[0]["loss"])


@pytest.mark.parametrize(
    ("step", "left"), [(300, [100, 200, 300]), (250, [100, 200]), (200, [100, 200]), (0, [])]
)
def test_rows_beyond_the_step_where_the_run_goes_on_are_dropped(path, step, left):
    write(path, 100, 200, 300)
    file = MetricsFile(path, step)
    assert (file.last or {}).get("step", 0) == max(left, default=0)
    file.append({"step": 500})
    assert steps(path) == [*left, 500]


@pytest.mark.parametrize("ending", ['{"step": 3', '{"step": 300, "loss": 1.0}', "\x00\x00\n", "{"])
def test_a_last_line_that_is_not_whole_is_left_out_and_written_anew(path, ending):
    write(path, 100, 200, ending=ending)
    assert steps(path) == [100, 200]
    file = MetricsFile(path, 300)
    assert file.last["step"] == 200
    file.append({"step": 300})
    assert steps(path) == [100, 200, 300]


def test_what_stays_is_not_written_again(path):
    write(path, 100, 200, 300)
    before = path.stat().st_ino
    MetricsFile(path, 200).append({"step": 300})
    assert path.stat().st_ino == before


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"loss": 1}', '"step"'])
def test_a_damaged_line_among_others_is_named(path, line):
    path.write_text(f'{{"step": 100}}\n{line}\n{{"step": 300}}\n')
    with pytest.raises(InputError, match=r"metrics.jsonl is damaged: line 2 is no JSON object"):
        MetricsFile(path, 300)


@pytest.mark.parametrize("text", [None, "", '{"step"'])
def test_where_there_is_no_row_yet_readers_are_told_so(path, text):
    if text is not None:
        path.write_text(text)
    assert MetricsFile(path, 300).last is None
    with pytest.raises(InputError, match=r"no metrics in .* yet; give the directory of a run"):
        read_metrics(path)


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"cannot write .*rows \(No such file"):
        MetricsFile(tmp_path / "absent" / "rows").append({"step": 1})
    with pytest.raises(InputError, match=r"cannot read .* \(Is a directory\)"):
        MetricsFile(tmp_path, 1)
