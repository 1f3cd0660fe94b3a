"""The table of what was measured, and the targets."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.engines import Row

_NAMES = {"ours": "ours", "input_pipeline": "the input pipeline", "pytorch": "PyTorch",
          "ctranslate2": "CTranslate2", "ours_shortlist": "a shortlist",
          "ctranslate2_shortlist": "CTranslate2 with it"}  # fmt: skip
_OURS, _CT2 = ("ours", "ours_xla"), ("ctranslate2",)
_PYTORCH = ("pytorch", "pytorch_kept", "pytorch_kept_sleep")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns rows with the same keys as an aligned table: text left, numbers right."""
    names = [name for name, value in rows[0].items() if not isinstance(value, tuple | list)]
    lines = [[name.replace("_", " ") for name in names]]
    lines += [[_format(row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    is_text = [isinstance(rows[0][name], str) for name in names]
    return "\n".join(
        "  ".join(
            text.ljust(width) if left else text.rjust(width)
            for text, width, left in zip(line, widths, is_text, strict=True)
        )
        for line in lines
    )


def _format(value: Any) -> str:
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
    """Holds rows against the targets of decoding speed, for real sentences or their lengths."""
    rows = [row for row in rows if not row.case["one_length"]]
    shortlist, with_map = ("ours_shortlist",), ("ctranslate2_shortlist",)
    rates, times = "batches of 64 real sentences", "one real sentence at a time"
    verdicts = []
    for text, bound, engine, rival_engine, preset, batch in (
        (f"{rates} against CTranslate2's float32", 1.0, _OURS, _CT2, "run", 64),
        (f"{times} against CTranslate2's float32", 1.3, _OURS, _CT2, "run", 1),
        (f"{rates} with a shortlist against those without", 1.5, shortlist, ("ours",), "run", 64),
        (f"{rates} with a shortlist against CTranslate2's", 1.0, shortlist, with_map, "run", 64),
        ("base, batches of 32 as long as a test set's", 1.0, _OURS, _CT2, "base", 32),
        ("base, one sentence as long as a test set's", 1.3, _OURS, _CT2, "base", 1),
    ):
        ours, rival = (
            {"engine": each, "preset": preset, "batch": batch} for each in (engine, rival_engine)
        )
        measure = "times" if batch == 1 else "rates"
        verdicts.append(Target(text, bound, ours, rival, measure).verdict(rows))
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


def check_layers(rows: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """Holds rows against the targets of restricted self-attention, forward and backward."""
    measured = {(row["layer"], row["n"]): row for row in rows}
    verdicts = []
    for layer in ("self-attention", "with projections"):
        restricted = "restricted" if layer == "self-attention" else f"{layer}, restricted"
        pair = [measured.get((name, 4096)) for name in (layer, restricted)]
        for figure, text, bound in (("both_ms", "time", 8), ("both_megabytes", "memory", 10)):
            name = f"{layer} at n = 4096 has at least {bound} times the {text} of a window's"
            if pair[0] is None or pair[1] is None:
                verdicts.append(Verdict(None, f"{name}: not measured"))
                continue
            ratio = pair[0][figure] / pair[1][figure]
            verdicts.append(Verdict(ratio >= bound, f"{name}: {ratio:.1f}"))
    return verdicts


def _matches(row: Row, wanted: Mapping[str, Any]) -> bool:
    """Whether the row's case has the values, or one of each tuple of them."""
    return all(
        row.case[name] in value if isinstance(value, tuple) else row.case[name] == value
        for name, value in wanted.items()
    )


def _setting(row: Row) -> str:
    names = ("engine", "precision", "setting")
    return " ".join(str(row.case[name]) for name in names if name in row.case)
