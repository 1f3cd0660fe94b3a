"""The lines that show the progress of training, in a log and on a terminal."""

import io
import types

import pytest

from keras_transformer.tasks import TranslationTask
from keras_transformer.training import progress
from keras_transformer.training.progress import Progress

ROW = {
    "step": 12_300, "seconds": 999.0, "loss": 3.4567, "perplexity": 12.345, "accuracy": 0.567,
    "padding": 0.06, "learning_rate": 1.23e-4, "tokens_per_second": 12345.0,
    "target_tokens": 10**8, "flops": 4_567 * 10**12, "skipped_steps": 0,
}  # fmt: skip
DEV = {"val_loss": 3.21, "val_perplexity": 9.876, "val_accuracy": 0.6, "bleu": 23.456}
BLEU = TranslationTask.metric


class Screen:
    """A progress display, its time, and what it has written."""

    def __init__(self, monkeypatch, *, live=False, train_steps=100_000, step=0):
        self.now, self.stream, self.looks, self.step = 0.0, io.StringIO(), 0, step
        time = types.SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(progress, "time", time)
        monkeypatch.setenv("COLUMNS", "100")
        self.progress = Progress(self, [BLEU], train_steps, self.stream, live)

    def row_so_far(self, step):
        self.looks += 1
        return ROW | {"loss": 9.0}

    def batch(self, seconds=1.0):
        self.now += seconds
        self.step += 1
        self.progress.end_batch(self.step)

    @property
    def text(self):
        return self.stream.getvalue()

    @property
    def lines(self):
        return self.text.splitlines()


@pytest.fixture
def screen(monkeypatch):
    return lambda **options: Screen(monkeypatch, **options)


def test_row_is_one_line_of_log(screen):
    log = screen(step=12_298)
    log.batch(50.0)  # the first, which compiles, does not count for the time left
    log.batch(2.0)
    log.progress.show(ROW)
    assert log.text == (
        " 12,300/100,000  loss 3.457  ppl 12.35  acc 56.7%  lr 1.2e-4  12.3k tok/s  4.57P FLOP"
        "  left 2d00h\n"
    )


def test_dev_line_follows_in_same_columns(screen):
    log = screen()
    log.progress.show(ROW | DEV)
    log.progress.show(ROW | {"val_loss": 3.0, "val_perplexity": 9.9, "val_accuracy": 0.5})
    first, second, _, fourth = log.lines
    assert second == (
        " 12,300/100,000  loss 3.210  ppl 9.876  acc 60.0%  BLEU 23.46  on the dev set"
    )
    assert "BLEU" not in fourth
    assert [first.index(name) for name in ("loss", "ppl", "acc")] == [
        second.index(name) for name in ("loss", "ppl", "acc")
    ]


def test_new_skipped_updates_are_reported(screen):
    log = screen()
    for skipped in (0, 2, 2, 3):
        log.progress.show(ROW | {"skipped_steps": skipped})
    notes = [line for line in log.lines if "skipped" in line]
    assert notes == [
        f" 12,300/100,000  {count} updates skipped so far: gradient not finite" for count in (2, 3)
    ]


@pytest.mark.parametrize("train_steps", [999_999, 100_000, 12])
def test_lines_have_at_most_100_columns(screen, train_steps):
    log = screen(train_steps=train_steps, step=1)
    log.batch()
    log.batch(10.0)  # so that it takes weeks
    extremes = {"loss": 12.3, "perplexity": 8e9, "accuracy": 1.0, "padding": 1.0}
    log.progress.show(ROW | DEV | extremes | {"tokens_per_second": 9.99e8, "skipped_steps": 10**5})
    assert len(log.lines) == 3
    assert max(map(len, log.lines)) <= 100


def test_terminal_line_changes_twice_a_second(screen):
    terminal = screen(live=True)
    for _ in range(21):
        terminal.batch(0.125)
    assert terminal.text.count("\r") == terminal.looks == 5 + 1
    assert "\n" not in terminal.text
    assert {len(line) for line in terminal.text.split("\r")[1:]} == {99}


def test_terminal_keeps_dev_lines_apart(screen):
    terminal = screen(live=True)
    terminal.batch()
    terminal.progress.show(ROW | DEV)
    terminal.batch()
    terminal.progress.finish()
    first, second, third = terminal.text.split("\n")[:3]
    assert first.startswith("\r") and "BLEU" in second and third.startswith("\r")
    assert terminal.text.endswith("\n") and terminal.text.count("\n") == 3
