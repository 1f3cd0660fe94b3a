"""The table of what was measured, and the targets that it meets."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.engines import Row

# What a table shows of a row: heading and width.
_COLUMNS = {
    "engine": ("engine", -19),
    "preset": ("preset", -7),
    "precision": ("precision", -15),
    "sentences": ("sentences", -18),
    "batch": ("batch", -14),
    "setting": ("setting", -8),
    "tokens_per_second": ("tokens/s", 9),
    "tokens_per_second_worst": ("lowest", 9),
    "tokens_per_second_best": ("highest", 9),
    "sentences_per_second": ("sentences/s", 12),
    "sentences_per_second_worst": ("lowest", 8),
    "sentences_per_second_best": ("highest", 8),
    "seconds_per_step": ("s/step", 8),
    "latency_p50_ms": ("p50 ms", 8),
    "latency_p99_ms": ("p99 ms", 8),
    "faults": ("faults", 9),
    "system_seconds": ("system s", 9),
    "peak_megabytes": ("peak MB", 8),
    "load_seconds": ("load s", 7),
    "first_seconds": ("first s", 8),
    "equal": ("equal", 6),
}
_NAMES = {"ours": "ours", "input_pipeline": "the input pipeline", "pytorch": "PyTorch",
          "ctranslate2": "CTranslate2"}  # fmt: skip
_OURS, _CT2 = ("ours", "ours_xla"), ("ctranslate2",)
_PYTORCH = ("pytorch", "pytorch_kept", "pytorch_kept_sleep")


def table_lines(row: Row, *, with_head: bool) -> list[str]:
    """Returns a row's line of the table, and the head before it where that is asked for."""
    values = row.to_dict()
    columns = [(name, *_COLUMNS[name]) for name in _COLUMNS if name in values]
    lines = [[heading for _, heading, _ in columns]] if with_head else []
    lines.append([_text(values[name]) for name, _, _ in columns])
    widths = [width for _, _, width in columns]
    return [
        " ".join(
            text.ljust(-width) if width < 0 else text.rjust(width)
            for text, width in zip(line, widths, strict=True)
        )
        for line in lines
    ]


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


class Verdict(NamedTuple):
    """Whether a target was met; `met` is None where it was not measured."""

    met: bool | None
    text: str

    def __str__(self) -> str:
        word = {True: "ok", False: "MISSED", None: "skipped"}[self.met]
        return f"{word:<8}{self.text}"


class Target(NamedTuple):
    """A bound on the ratio of the best of our rows to the best of a rival's.

    Attributes:
        text: what is compared.
        bound: least ratio of the rates, or largest one of the times.
        ours, rival: what the rows' cases have: a value, or one of several.
        measure: "rates" or "times".
    """

    text: str
    bound: float
    ours: Mapping[str, Any]
    rival: Mapping[str, Any]
    measure: str = "rates"

    def verdict(self, rows: Sequence[Row]) -> Verdict:
        is_rate = self.measure == "rates"
        name = f"{self.text}, at {'least' if is_rate else 'most'} {self.bound:g} times"
        best = []
        for case in (self.ours, self.rival):
            found = [row for row in rows if _matches(row, case)]
            if not found:
                return Verdict(None, f"{name}: {_NAMES[case['engine'][0]]} was not measured")
            choose = max if is_rate else min
            best.append(choose(found, key=lambda row: statistics.median(self._of(row))))
        # Neighbouring turns are compared, so that a slow minute of the machine does not count.
        ratio = statistics.median(a / b for a, b in zip(*map(self._of, best), strict=True))
        met = ratio >= self.bound if is_rate else ratio <= self.bound
        return Verdict(met, f"{name}: {ratio:.2f} ({' against '.join(map(_setting, best))})")

    def _of(self, row: Row) -> tuple[float, ...]:
        return row.rates if self.measure == "rates" else row.times


def check_training(rows: Sequence[Row], *, bfloat16: bool) -> list[Verdict]:
    """Holds rows against the targets of training speed.

    Args:
        rows: what was measured.
        bfloat16: whether the processor computes in it; if not, ours counts in float32 only.
    """
    targets = []
    for preset, batch, bound in (
        ("tiny", "128x16", 1.5 if bfloat16 else 1.2),
        ("tiny", "multi30k:2048", 1.5 if bfloat16 else 1.2),
        ("tiny", "multi30k:8192", 1.5 if bfloat16 else 1.2),
        ("base", "128x16", 1.0),
    ):
        case = {"preset": preset, "batch": batch}
        ours = {"engine": ("ours",), **case} | ({} if bfloat16 else {"precision": "float32"})
        rival = {"engine": _PYTORCH, **case}
        targets.append(Target(f"{preset} {batch} against PyTorch's best", bound, ours, rival))
        if batch.startswith("multi30k"):
            pipeline = {"engine": ("input_pipeline",), **case}
            targets.append(Target(f"input pipeline against {preset} {batch}", 10, pipeline, ours))
    return [target.verdict(rows) for target in targets]


def check_decoding(rows: Sequence[Row]) -> list[Verdict]:
    """Holds rows against the targets of decoding speed, which are for real sentences."""
    verdicts = []
    for batch, text, bound, measure in (
        (64, "real sentences in batches of 64", 1.0, "rates"),
        (1, "one real sentence at a time", 1.3, "times"),
    ):
        ours, rival = ({"engine": each, "preset": "run", "batch": batch} for each in (_OURS, _CT2))
        target = Target(f"{text} against CTranslate2's float32", bound, ours, rival, measure)
        verdicts.append(target.verdict(rows))
    name = "translations that are CTranslate2's, at least 95 % (ties are rounded)"
    shares = [
        (row.values["equal"] / row.values["compared"], row)
        for row in rows
        if _matches(row, {"engine": _OURS, "preset": "run"}) and row.values["equal"] is not None
    ]
    if not shares:
        return [*verdicts, Verdict(None, f"{name}: not measured")]
    share, row = min(shares, key=lambda pair: pair[0])
    figures = f"{row.values['equal']} of {row.values['compared']} ({row.case['engine']})"
    return [*verdicts, Verdict(share >= 0.95, f"{name}: {figures}")]


def _matches(row: Row, wanted: Mapping[str, Any]) -> bool:
    """Whether the row's case has the values, or one of each tuple of them."""
    return all(
        row.case[name] in value if isinstance(value, tuple) else row.case[name] == value
        for name, value in wanted.items()
    )


def _setting(row: Row) -> str:
    names = ("engine", "precision", "setting")
    return " ".join(str(row.case[name]) for name in names if name in row.case)
