"""What was measured, as rows and as a table, and which of our targets it meets."""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_OURS, _PIPELINE = ("ours",), ("input_pipeline",)
_RIVALS = ("pytorch", "pytorch_sleep")
_HEADINGS = ("engine", "preset", "precision", "batch", "tokens/s", "lowest-highest", "s/step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """The rounds of one engine with one model and batch.

    Attributes:
        engine: one of `ENGINES`.
        preset: of the model; of the one that it took turns with for the input pipeline.
        precision: of the model; "-" for the input pipeline.
        batch: text that `BatchKind.parse` reads.
        rounds: real target symbols a second in each round. Rounds of the same number and batch
            were run right after each other.
        seconds_per_step: median over the rounds.
        steps: in each round.
        threads: cores that the engine might use.
        version: of its libraries.
    """

    engine: str
    preset: str
    precision: str
    batch: str
    rounds: tuple[float, ...]
    seconds_per_step: float
    steps: int
    threads: int
    version: str

    @property
    def tokens_per_second(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Returns the row as one JSON object."""
        computed = {
            "tokens_per_second": round(self.tokens_per_second, 1),
            "tokens_per_second_best": round(max(self.rounds), 1),
            "tokens_per_second_worst": round(min(self.rounds), 1),
        }
        return dataclasses.asdict(self) | computed

    def cells(self) -> tuple[str, ...]:
        """Returns the row's entries of the table."""
        return (
            self.engine,
            self.preset,
            self.precision,
            self.batch,
            f"{self.tokens_per_second:,.0f}",
            f"{min(self.rounds):,.0f}-{max(self.rounds):,.0f}",
            f"{self.seconds_per_step:.4f}",
        )


def table_line(cells: Sequence[str] = _HEADINGS) -> str:
    """Returns a line of the table; without arguments its head."""
    widths = (15, 7, 15, 14)
    left = "".join(f"{text:<{width}}" for text, width in zip(cells, widths, strict=False))
    return left + f"{cells[4]:>11} {cells[5]:>17} {cells[6]:>9}"


class Verdict(NamedTuple):
    """Whether a target was met; `met` is None where it was not measured."""

    met: bool | None
    text: str

    def __str__(self) -> str:
        word = {True: "ok", False: "MISSED", None: "skipped"}[self.met]
        return f"{word:<8}{self.text}"


def check(rows: Sequence[Row]) -> list[Verdict]:
    """Holds the rows against every target of training speed on two cores."""
    return [
        _against_rival(rows, "tiny", "128x16", 1.5),
        _against_rival(rows, "base", "128x16", 1.0),
        _real_batches(rows, "tiny", 10_000),
        _pipeline(rows, "tiny", 10.0),
    ]


def ratio_of_rounds(rounds: Sequence[float], others: Sequence[float]) -> float:
    """Returns the median of the ratios of rounds that were run right after each other."""
    return statistics.median(a / b for a, b in zip(rounds, others, strict=True))


def _against_rival(rows: Sequence[Row], preset: str, batch: str, wanted: float) -> Verdict:
    """Compares the best of our precisions with the best of the rival's settings."""
    name = f"{preset} {batch} against PyTorch's best, at least {wanted:g} times"
    ours = _fastest(row for row in rows if _is(row, _OURS, preset, batch))
    rival = _fastest(row for row in rows if _is(row, _RIVALS, preset, batch))
    if ours is None or rival is None:
        missing = "ours" if ours is None else "PyTorch"
        return Verdict(None, f"{name}: {missing} was not measured")
    ratio = ratio_of_rounds(ours.rounds, rival.rounds)
    return Verdict(
        ratio >= wanted,
        f"{name}: {ratio:.2f} ({ours.precision} against {rival.engine} {rival.precision})",
    )


def _real_batches(rows: Sequence[Row], preset: str, wanted: float) -> Verdict:
    name = f"{preset} on real batches, at least {wanted:,.0f} target tokens a second"
    ours = _fastest(row for row in rows if _is(row, _OURS, preset) and _is_real(row))
    if ours is None:
        return Verdict(None, f"{name}: not measured")
    speed = ours.tokens_per_second
    return Verdict(speed >= wanted, f"{name}: {speed:,.0f} ({ours.precision}, {ours.batch})")


def _pipeline(rows: Sequence[Row], preset: str, wanted: float) -> Verdict:
    """Compares the input pipeline with what the model consumes, at their closest."""
    name = f"input pipeline against {preset}, at least {wanted:g} times"
    ratios = []
    for pipeline in (row for row in rows if _is(row, _PIPELINE, preset)):
        ours = _fastest(row for row in rows if _is(row, _OURS, preset, pipeline.batch))
        if ours is not None:
            ratios.append((ratio_of_rounds(pipeline.rounds, ours.rounds), pipeline.batch))
    if not ratios:
        return Verdict(None, f"{name}: not measured")
    ratio, batch = min(ratios)
    return Verdict(ratio >= wanted, f"{name}: {ratio:.1f} ({batch})")


def _is(row: Row, engines: tuple[str, ...], preset: str, batch: str | None = None) -> bool:
    return row.engine in engines and row.preset == preset and batch in (None, row.batch)


def _is_real(row: Row) -> bool:
    return row.batch.startswith("multi30k")


def _fastest(rows: Iterable[Row]) -> Row | None:
    return max(rows, key=lambda row: row.tokens_per_second, default=None)
