"""The lines that show the progress of training, in a log and on a terminal."""

import io
import types

from keras_transformer.tasks import TranslationTask
from keras_transformer.training import progress
from keras_transformer.training.progress import ProgressLines

ROW = {
    "step": 12_300, "seconds": 999.0, "loss": 3.4567, "perplexity": 12.345, "accuracy": 0.567,
    "padding": 0.06, "learning_rate": 1.23e-4, "tokens_per_second": 12345.0,
    "target_tokens": 10**8, "flops": 4_567 * 10**12, "skipped_steps": 0,
}  # fmt: skip
DEV = {"val_loss": 3.21, "val_perplexity": 9.876, "val_accuracy": 0.6, "bleu": 23.456}


def measured(count, total, cut):
    return types.SimpleNamespace(num_sentences=count, num_all=total, num_cut=cut)


class Screen:
    """A progress display, its time, and what it has written."""

    def __init__(self, monkeypatch, *, live):
        self.now, self.stream, self.looks, self.step = 0.0, io.StringIO(), 0, 12_298
        time = types.SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(progress, "time", time)
        monkeypatch.setenv("COLUMNS", "100")
        metrics = {
            TranslationTask.metric: measured(1000, 1000, cut=0),
            TranslationTask.metric.of_dev_set(2): measured(500, 2000, cut=3),
        }
        self.progress = ProgressLines(self, metrics, 100_000, self.stream, live)

    def row_so_far(self, step):
        self.looks += 1
        return ROW | {"loss": 9.0}

    def batch(self, seconds):
        self.now += seconds
        self.step += 1
        self.progress.end_batch(self.step)


def test_log_has_a_line_for_each_row_dev_set_and_skipped_updates(monkeypatch):
    log = Screen(monkeypatch, live=False)
    log.batch(50.0)  # the first, which compiles, does not count for the time left
    log.batch(2.0)
    log.progress.show(ROW)
    log.progress.show(ROW | DEV | {"skipped_steps": 2})
    log.progress.show(ROW | {"bleu_2": 12.0, "skipped_steps": 2})
    log.progress.show({"step": 0, "val_loss": 3.0, "skipped_steps": 2})  # before the first update
    first, again, skipped, dev, *_, part, start = log.stream.getvalue().splitlines()
    assert first == again and first.startswith(" 12,300/100,000  loss 3.457  ppl 12.35  acc 56.7%")
    assert first.endswith("left 2d00h")
    assert skipped == " 12,300/100,000  2 updates skipped so far: gradient not finite"
    assert dev == " 12,300/100,000  loss 3.210  ppl 9.876  acc 60.0%  BLEU 23.46  on the dev set"
    assert part == " 12,300/100,000  BLEU (2) 12.00 (500 of 2,000, 3 cut)  on the dev set"
    assert start == "      0/100,000  loss 3.000  on the dev set"


def test_time_left_forgets_the_slow_steps_at_the_beginning(monkeypatch):
    log = Screen(monkeypatch, live=False)
    log.step = 0
    for step in range(1, 101):  # each of the first ten has a new shape
        log.batch(10.0 if step <= 10 else 1.0)
        if step in (5, 100):
            log.progress.show(ROW | {"step": step})
    early, late = log.stream.getvalue().splitlines()
    assert early.endswith("left 11d13h")  # ten seconds a step
    assert late.endswith("left 1d03h")  # one second


class BrokenPipe(io.StringIO):
    """A pipe whose reader has ended."""

    def flush(self):
        raise BrokenPipeError


def test_closed_pipe_is_noted(monkeypatch):
    log = Screen(monkeypatch, live=False)
    log.progress.show(ROW)
    assert not log.progress.is_closed
    log.progress._stream = BrokenPipe()
    log.progress.show(ROW)
    assert log.progress.is_closed
    log.progress.finish()


def test_terminal_line_changes_twice_a_second_and_dev_lines_stay(monkeypatch):
    terminal = Screen(monkeypatch, live=True)
    for _ in range(21):
        terminal.batch(0.125)
    text = terminal.stream.getvalue()
    assert text.count("\r") == terminal.looks == 5 + 1
    assert "\n" not in text
    assert {len(line) for line in text.split("\r")[1:]} == {99}
    terminal.progress.show(ROW | DEV)
    terminal.batch(1.0)
    terminal.progress.finish()
    first, second, third = terminal.stream.getvalue().split("\n")[:3]
    assert first.startswith("\r") and "BLEU" in second and third.startswith("\r")
    assert terminal.stream.getvalue().endswith("\n")
