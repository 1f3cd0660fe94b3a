"""What was measured of decoding, as rows and as a table, and which of our targets it meets."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.report import Verdict, ratio_of_rounds

_HEADINGS = (
    "engine", "preset", "sentences", "batch", "setting", "sentences/s", "lowest-highest",
    "p50 ms", "p99 ms", "peak MB", "load s", "first s", "equal",
)  # fmt: skip
_WIDTHS = (12, 7, 11, 6, 8)
_NUMBER_WIDTHS = (12, 16, 9, 9, 8, 7, 8, 10)

_Better = Callable[["DecodingRow"], float]  # the larger, the better


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingRow:
    """The rounds of one engine in one setting.

    Attributes:
        engine: ours (a plain graph), ours_xla or ctranslate2.
        preset: of the model; "run" for that of a training run.
        sentences: what was translated: "20 forced" is random sentences of 20 symbols with
            translations of 20 symbols.
        batch: sentences of a batch.
        workers: batches that were translated at the same time; in a batch of one sentence it was
            one in any case, and the other workers slept.
        threads: cores of a worker.
        rounds: sentences a second in each round. Rounds of the same number were run right after
            each other.
        latency_rounds_ms: median of the times of a batch in each round.
        num_latencies: batches in all rounds.
        latency_p50_ms, latency_p99_ms: percentiles of their times.
        load_seconds: to read the model, the libraries having been loaded.
        first_seconds: the first batch, with whatever is made ready or compiled then.
        peak_megabytes: the most resident memory of all workers together.
        equal: translations of `compared` ones that are CTranslate2's, None where it was not run.
        compared: as said.
        version: of the engine.
    """

    engine: str
    preset: str
    sentences: str
    batch: int
    workers: int
    threads: int
    rounds: tuple[float, ...]
    latency_rounds_ms: tuple[float, ...]
    num_latencies: int
    latency_p50_ms: float
    latency_p99_ms: float
    load_seconds: float
    first_seconds: float
    peak_megabytes: float | None
    equal: int | None
    compared: int
    version: str

    @property
    def sentences_per_second(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.rounds)

    @property
    def latency_ms(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.latency_rounds_ms)

    @property
    def setting(self) -> str:
        return f"{self.workers}x{self.threads}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the row as one JSON object."""
        speed = {"sentences_per_second": round(self.sentences_per_second, 2)}
        return dataclasses.asdict(self) | speed

    def cells(self) -> tuple[str, ...]:
        """Returns the row's entries of the table."""
        return (
            self.engine,
            self.preset,
            self.sentences,
            str(self.batch),
            self.setting,
            f"{self.sentences_per_second:,.1f}",
            f"{min(self.rounds):,.1f}-{max(self.rounds):,.1f}",
            f"{self.latency_p50_ms:,.1f}",
            f"{self.latency_p99_ms:,.1f}",
            "-" if self.peak_megabytes is None else f"{self.peak_megabytes:,.0f}",
            f"{self.load_seconds:.2f}",
            f"{self.first_seconds:.2f}",
            "-" if self.equal is None else f"{self.equal}/{self.compared}",
        )


def decoding_line(cells: Sequence[str] = _HEADINGS) -> str:
    """Returns a line of the table; without arguments its head."""
    left = "".join(f"{text:<{width}}" for text, width in zip(cells, _WIDTHS, strict=False))
    numbers = zip(cells[len(_WIDTHS) :], _NUMBER_WIDTHS, strict=True)
    return left + " ".join(f"{text:>{width}}" for text, width in numbers)


def check_decoding(rows: Sequence[DecodingRow]) -> list[Verdict]:
    """Holds the rows against every target of decoding speed on two cores."""
    many = [row for row in rows if (row.preset, row.batch) == ("tiny", 64)]
    single = [row for row in rows if (row.preset, row.batch) == ("tiny", 1)]
    many, single = (
        [row for row in part if row.sentences == "20 forced"] for part in (many, single)
    )
    return [
        _throughput_against_rival(many, 1.0),
        _latency_against_rival(single, 1.0),
        _throughput(many, 194),
        _latency(single, 25),
        _equality([*many, *single], 0.95),
    ]


def _throughput_against_rival(rows: Sequence[DecodingRow], wanted: float) -> Verdict:
    name = f"tiny in batches, XLA against CTranslate2, at least {wanted:g} times as many a second"
    ours, rival = (_best(rows, engine, _speed) for engine in ("ours_xla", "ctranslate2"))
    if ours is None or rival is None:
        return _not_measured(name, ours)
    ratio = ratio_of_rounds(ours.rounds, rival.rounds)
    return Verdict(ratio >= wanted, f"{name}: {ratio:.2f} ({_settings(ours, rival)})")


def _latency_against_rival(rows: Sequence[DecodingRow], wanted: float) -> Verdict:
    name = f"tiny one sentence at a time, XLA against CTranslate2, at most {wanted:g} times as long"
    ours, rival = (_best(rows, engine, _quickness) for engine in ("ours_xla", "ctranslate2"))
    if ours is None or rival is None:
        return _not_measured(name, ours)
    ratio = ratio_of_rounds(ours.latency_rounds_ms, rival.latency_rounds_ms)
    return Verdict(ratio <= wanted, f"{name}: {ratio:.2f} ({_settings(ours, rival)})")


def _throughput(rows: Sequence[DecodingRow], wanted: float) -> Verdict:
    name = f"tiny in batches, plain graph, at least {wanted:g} sentences a second"
    ours = _best(rows, "ours", _speed)
    if ours is None:
        return _not_measured(name, ours)
    speed = ours.sentences_per_second
    return Verdict(speed >= wanted, f"{name}: {speed:.1f} ({ours.setting})")


def _latency(rows: Sequence[DecodingRow], wanted: float) -> Verdict:
    name = f"tiny one sentence at a time, plain graph, below {wanted:g} ms"
    ours = _best(rows, "ours", _quickness)
    if ours is None:
        return _not_measured(name, ours)
    return Verdict(ours.latency_ms < wanted, f"{name}: {ours.latency_ms:.1f} ({ours.setting})")


def _equality(rows: Sequence[DecodingRow], wanted: float) -> Verdict:
    name = f"tiny, translations that are CTranslate2's, at least {wanted:.0%} (ties are rounded)"
    ours = [row for row in rows if row.engine != "ctranslate2" and row.equal is not None]
    if not ours:
        return _not_measured(name, next(iter(rows), None))
    fewest = min(ours, key=lambda row: (row.equal or 0) / row.compared)
    share = (fewest.equal or 0) / fewest.compared
    text = f"{name}: {fewest.equal} of {fewest.compared} ({fewest.engine})"
    return Verdict(share >= wanted, text)


def _not_measured(name: str, ours: DecodingRow | None) -> Verdict:
    missing = "ours" if ours is None else "CTranslate2"
    return Verdict(None, f"{name}: {missing} was not measured")


def _best(rows: Sequence[DecodingRow], engine: str, better: _Better) -> DecodingRow | None:
    """Returns an engine's row in its best setting."""
    return max((row for row in rows if row.engine == engine), key=better, default=None)


def _speed(row: DecodingRow) -> float:
    return row.sentences_per_second


def _quickness(row: DecodingRow) -> float:
    return -row.latency_ms


def _settings(ours: DecodingRow, rival: DecodingRow) -> str:
    return f"{ours.setting} against {rival.setting} workers x threads"
