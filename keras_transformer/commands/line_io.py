"""Lines of text in, lines out: shared by `translate` and `serve_client`.

Each line of the input is translated, or a given translation of it is scored. The results are
written in the order of the input, to standard output, or to a file once all are there.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO, TypeAlias

from keras_transformer.client import ServingError
from keras_transformer.commands.common import LineRemarks
from keras_transformer.config import JsonConfig, option
from keras_transformer.errors import InputError
from keras_transformer.files import (
    iterate_lines,
    local_path,
    replace_control_characters,
    sync,
    temporary_folder,
)
from keras_transformer.paragraphs import SplitParagraphs
from keras_transformer.results import DetailedTranslation
from keras_transformer.sentences import SentenceTranslator

# Lines of the input, and what belongs to them.
LineGroup: TypeAlias = tuple[list[str], list[str]]
Postprocess: TypeAlias = Callable[[Sequence[str], Sequence[str]], list[str]]

_LINES_AT_ONCE = 10_000  # sorted by length together
_PAUSE_S = 0.05  # a program that writes nothing for so long waits for an answer
_READ_BYTES = 1 << 16
_PROMPT = "> "


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(JsonConfig):
    """What to do with each line of an input; all but the attributes named here are flags.

    Attributes:
        inputs: files, one after the other; none for standard input.
        search: search options for all sentences.

    Raises:
        InputError: options contradict each other, or a file of the input does not exist.
    """

    inputs: tuple[str, ...] = ()
    search: dict[str, Any] = dataclasses.field(default_factory=dict)
    scores: bool = option(
        False,
        "Write line number, score and translation, tab-separated; n-best lists are always "
        "written so.",
    )
    alignments: bool = option(
        False,
        "Append to each best translation, or reference, a tab and its word alignment by "
        "attention: pairs of source and target word, both numbered from 0 in the lines as they "
        "are read and written.",
    )
    details: bool = option(
        False,
        "Write each translation as a line of JSON: line number, text, score, tokens with their "
        "log-probabilities, word alignment, and whether source or output was truncated. An "
        "export must have been made with the same flag.",
    )
    references: str | None = option(
        None,
        "File with a translation of each line, to be scored: writes line number, "
        "log-probability of the line, and log-probability of each token, tab-separated.",
        is_path=True,
    )
    prefixes: str | None = option(
        None,
        "File with the text that the translation of each line must begin with.",
        is_path=True,
    )
    split_sentences: str | None = option(
        None,
        "Translate each sentence of a line by itself and join the translations; the value is "
        "the language of the input, for example en.",
    )
    output: str | None = option(
        None,
        "Write to this file, which appears once it is complete. Default: standard output.",
        is_path=True,
    )

    @classmethod
    def flag_names(cls) -> list[str]:
        """Returns the fields that are flags."""
        return [name for name in cls.fields_with() if name not in ("inputs", "search")]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.references is not None and (self.search or self.prefixes is not None):
            raise InputError(
                "--references scores given translations and cannot be combined with search "
                "options; remove them"
            )
        unused = {
            "references": ["scores"],
            "details": ["references", "scores", "alignments", "split_sentences"],
            "split_sentences": ["references", "scores", "alignments", "prefixes"],
        }
        for name, others in unused.items():
            for other in others:
                if getattr(self, name) and getattr(self, other):
                    raise InputError(
                        f"--{other} cannot be combined with --{name}; remove one of them"
                    )
        if self.split_sentences and "num_translations" in self.search:
            raise InputError(
                "--num_translations cannot be combined with --split_sentences; remove one of them"
            )
        if self.split_sentences:
            SplitParagraphs([], self.split_sentences)  # reports a wrong language now
        for path in self.inputs:
            if not local_path(path).exists():
                raise InputError(
                    f"the file {path} does not exist; name files, or give sentences on standard "
                    "input"
                )

    def groups(self) -> Iterator[list[str]]:
        """Yields the lines of the input, some at a time, which are answered together."""
        if self.inputs:
            lines = itertools.chain.from_iterable(map(iterate_lines, self.inputs))
            while group := list(itertools.islice(lines, _LINES_AT_ONCE)):
                yield group
            return
        group = []
        for line in _standard_input():
            if line is not None:
                group.append(line)
            if group and (line is None or len(group) == _LINES_AT_ONCE):
                yield group
                group = []
        if group:
            yield group


def answer_lines(
    job: Job,
    model: SentenceTranslator,
    groups: Iterable[list[str]],
    *,
    num_translations: int = 1,
    postprocess: Postprocess = lambda outputs, sources: list(outputs),
    target_text: Callable[[str], str] = str,
) -> None:
    """Writes the translations of all lines, or the scores of references, in the lines' order.

    Reports at the end which lines the model did not take as they are.

    Args:
        job: what to do.
        model: translates, scores and aligns.
        groups: of the job; a group's answers come out together.
        num_translations: as many as the model returns of a line, if that is known.
        postprocess: what is done to translations before they are written, see `Task.postprocess`.
        target_text: what is done to references before they are scored, see `Task.target_text`.

    Raises:
        InputError: the input is wrong, or the model rejects some lines. Nothing that was answered
            before is lost.
    """
    answers = _Answers(job, model, postprocess, target_text, LineRemarks())
    steps = _with_partners(groups, job.references or job.prefixes)
    has_scores = (job.scores or num_translations > 1) and not job.split_sentences
    progress = Progress(has_scores=has_scores)
    with _open_output(job.output) as stream:
        for step in steps:
            answers.write(step, progress, stream)
            stream.flush()
    answers.remarks.report()


@contextlib.contextmanager
def _open_output(path: str | None) -> Iterator[TextIO]:
    """Yields standard output, or a file that gets its name when the block ends without an error."""
    if path is None:
        yield sys.stdout
        return
    target = pathlib.Path(os.path.realpath(path))
    with temporary_folder(target.parent) as folder:
        with (folder / "output").open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
        sync(folder / "output")
        os.replace(folder / "output", target)


def write_row(*columns: str, stream: TextIO | None = None) -> None:
    """Writes one line, by default to standard output; control characters are replaced."""
    row = "\t".join(map(replace_control_characters, columns)) + "\n"
    (stream or sys.stdout).write(row)


def _standard_input() -> Iterator[str | None]:
    """Yields the lines of standard input, and None where it pauses."""
    if sys.stdin is None:
        raise InputError("standard input is closed; name files, or give sentences there")
    descriptor, is_terminal = sys.stdin.fileno(), sys.stdin.isatty()
    if is_terminal:
        print("Type sentences, one a line; Ctrl-D ends.", file=sys.stderr)
    number, has_ended = 0, False
    parts: list[bytes] = []  # of a line that has not ended
    while not has_ended:
        if is_terminal:
            print(_PROMPT, end="", file=sys.stderr, flush=True)
        read = os.read(descriptor, _READ_BYTES)
        has_ended = not read
        *lines, rest = read.split(b"\n")
        if lines or has_ended:
            lines = [b"".join([*parts, *lines[:1]]), *lines[1:]]
            parts.clear()
        parts.append(rest)
        if has_ended and not lines[0]:
            break
        for line in lines:
            number += 1
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"standard input, line {number} is not UTF-8: {error.reason}; convert it first"
                ) from error
            yield text.removesuffix("\r")
        if not select.select([descriptor], [], [], _PAUSE_S)[0]:
            yield None


def _with_partners(groups: Iterable[list[str]], path: str | None) -> Iterator[LineGroup]:
    """Yields groups of lines with those of a file; raises `InputError` unless it has as many."""
    others = iter(()) if path is None else iterate_lines(path)
    number = 0
    for group in groups:
        partners = list(itertools.islice(others, len(group)))
        if path is not None and len(partners) < len(group):
            raise InputError(f"{path} has {number + len(partners)} lines, the input has more")
        number += len(group)
        yield group, partners
    if next(others, None) is not None:
        raise InputError(f"{path} has more lines than the {number} of the input")


@dataclasses.dataclass
class Progress:
    """How far a job has come.

    Attributes:
        num_lines: lines of the input that are done.
        has_scores: whether rows have scores.
    """

    num_lines: int = 0
    has_scores: bool = False


@dataclasses.dataclass(frozen=True)
class _Answers:
    """Answers groups of lines; the attributes are arguments of `answer_lines`."""

    job: Job
    model: SentenceTranslator
    postprocess: Postprocess
    target_text: Callable[[str], str]
    remarks: LineRemarks

    def write(self, step: LineGroup, progress: Progress, stream: TextIO) -> None:
        """Writes the rows of some lines and counts the lines in `progress`."""
        first = progress.num_lines + 1
        try:
            with self.remarks.collected(range(first, first + len(step[0]))):
                rows = list(self._rows(*step, first, progress))
        except ServingError as error:
            if not error.rows:
                raise
            numbers = ", ".join(str(first + row) for row in error.rows[:3])
            others = f" and {len(error.rows) - 3} others" if len(error.rows) > 3 else ""
            raise InputError(f"line {numbers}{others}: {error}") from error
        for row in rows:
            write_row(*row, stream=stream)
        progress.num_lines += len(step[0])

    def _rows(
        self, sentences: list[str], partners: list[str], first: int, progress: Progress
    ) -> Iterator[list[str]]:
        """Yields the columns of each row; `first` is the number of the first line."""
        if self.job.references is not None:
            partners = list(map(self.target_text, partners))
            scores = self.model.score(sentences, partners)
            as_is = dataclasses.replace(self, postprocess=lambda outputs, _: list(outputs))
            alignments = as_is._alignments(sentences, partners)
            for number, (score, alignment) in enumerate(
                zip(scores, alignments, strict=True), first
            ):
                columns = [f"{value:.4f}" for value in (score.score, *score.token_scores)]
                yield [str(number), *columns, *alignment]
            return
        if self.job.split_sentences:
            for text in self._translate_sentences(sentences, first):
                yield text.split("\t")  # a tab is a space between sentences
            return
        results = self._translate(sentences, partners)
        alignments = self._alignments(sentences, [best.text for best in results])
        # A sentence may have fewer translations than others, but rows have the same columns.
        progress.has_scores |= self.model.num_translations > 1
        for row, (sentence, best, alignment) in enumerate(
            zip(sentences, results, alignments, strict=True)
        ):
            for translation in (best, *best.alternatives):
                if self.job.details:
                    yield [self._in_json(first + row, sentence, translation)]
                    continue
                columns = [str(first + row), f"{translation.score:.4f}"] * progress.has_scores
                yield [*columns, *self.postprocess([translation.text], [sentence]), *alignment]
                alignment = []  # only the best translation has one

    def _translate(self, sentences: list[str], prefixes: list[str]) -> list[Any]:
        options: dict[str, Any] = {**self.job.search, "details": self.job.details}
        if self.job.prefixes is not None:
            options["prefix"] = prefixes
        return self.model.translate(sentences, **options)

    def _translate_sentences(self, lines: list[str], first: int) -> list[str]:
        """Returns the translations of lines, sentence by sentence."""
        split = SplitParagraphs(lines, self.job.split_sentences or "")
        try:
            with self.remarks.collected([first + row for row in split.rows]):
                results = self._translate(split.sentences, [])
        except ServingError as error:
            rows = sorted({split.rows[row] for row in error.rows})
            raise ServingError(str(error), error.code, rows) from error
        joined = split.join(list(map(str, results)))
        return [
            self.postprocess([text], [line])[0] for text, line in zip(joined, lines, strict=True)
        ]

    def _alignments(self, sentences: list[str], translations: list[str]) -> list[list[str]]:
        """Returns a column with the alignment of each translation, none unless it is asked for."""
        if not self.job.alignments:
            return [[] for _ in sentences]
        alignments = self.model.align(sentences, translations)
        rows = zip(alignments, sentences, translations, strict=True)
        return [[self._in_written_words(*row)] for row in rows]

    def _in_written_words(
        self, pairs: Sequence[tuple[int, int]], sentence: str, translation: str
    ) -> str:
        """Returns an alignment with words numbered as in the postprocessed translation.

        A word that is joined from several has the pairs of all of them, each pair once.
        """
        words, written = translation.split(), []
        for source, target in pairs:
            (so_far,) = self.postprocess([" ".join(words[: target + 1])], [sentence])
            written.append(f"{source}-{max(len(so_far.split()) - 1, 0)}")
        return " ".join(dict.fromkeys(written))

    def _in_json(self, number: int, sentence: str, translation: DetailedTranslation) -> str:
        """Returns a translation with its details, but for the attention, for a line of output."""
        pairs = (translation.alignment, sentence, translation.text)
        values: dict[str, Any] = {"line": number} | vars(translation)
        (values["text"],) = self.postprocess([translation.text], [sentence])
        values["score"] = round(translation.score, 4)
        values["token_scores"] = [round(score, 4) for score in translation.token_scores]
        values["alignment"] = self._in_written_words(*pairs)
        del values["attention"], values["alternatives"]
        return json.dumps(values, ensure_ascii=False)
