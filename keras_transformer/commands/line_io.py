"""What the commands that answer lines of text share, whether a model is here or on a server.

Each line of the input is translated, or an existing translation of it is scored; the results are
written to standard output in the order of the input.
"""

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from absl import flags

from keras_transformer.errors import InputError
from keras_transformer.files import iterate_lines

if TYPE_CHECKING:
    from keras_transformer.client import Client, Translation
    from keras_transformer.inference import BatchTranslator

flags.disclaim_key_flags()  # these are flags of the command that defines them through here

Postprocess: TypeAlias = Callable[[Sequence[str], Sequence[str]], list[str]]
Edit: TypeAlias = Callable[[str], str]

# Lines that are sorted by length together; their translations come out together.
_LINES_AT_ONCE = 10_000
_PROMPT = "> "


def define_flags() -> None:
    """Defines the flags that say what is written of each line."""
    flags.DEFINE_boolean(
        "scores",
        False,
        "Write line number, score and translation, tab-separated; so it is for n-best lists "
        "anyway.",
    )
    flags.DEFINE_string(
        "references",
        None,
        "A file with a translation of each line, to be scored: writes line number, "
        "log-probability and the log-probability of each token, tab-separated.",
    )
    flags.DEFINE_string(
        "prefixes", None, "A file with what the translation of each line must begin with."
    )
    flags.DEFINE_boolean(
        "alignments",
        False,
        "Write behind each best translation, or reference, a tab and its word alignment: pairs of "
        "source and target word, numbered from 0 in the lines as they are read and written, by "
        "the model's attention.",
    )


def check_flags(search_flags: Mapping[str, Any]) -> None:
    """Raises `InputError` where translations are to be scored and searched for at once."""
    if flags.FLAGS.references is not None and (search_flags or flags.FLAGS.prefixes is not None):
        raise InputError("--references scores what is there already; leave options of search out")


def options_from_flags(search_flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns flags of search as options for all sentences, several phrases one to a line."""
    return {
        name: "\n".join(value) if isinstance(value, list) else value
        for name, value in search_flags.items()
    }


def answer_lines(
    model: "BatchTranslator | Client",
    lines: Iterator[str],
    search_options: Mapping[str, Any],
    *,
    at_once: int = _LINES_AT_ONCE,
    postprocess: Postprocess = lambda outputs, sources: list(outputs),
    **options: Any,
) -> None:
    """Writes what a model makes of each line, some lines at a time.

    Args:
        model: translates, scores and aligns.
        lines: the input.
        search_options: search options that hold for all sentences.
        at_once: lines that are sorted by length together.
        postprocess: makes what is written of the model's answers, as `Task.postprocess` does.
        **options: for each call of the model's methods.
    """
    if at_once == 1 and flags.FLAGS.references is None:
        model.translate(["a"], **options, **search_options)  # the first search takes seconds more
    number = 0
    beside = flags.FLAGS.references or flags.FLAGS.prefixes
    for sentences, partners in _read_together(lines, beside, at_once):
        if flags.FLAGS.references is not None:
            _score(model, sentences, partners, number, options)
        else:
            wanted = dict(search_options)
            if flags.FLAGS.prefixes is not None:
                wanted["prefix"] = partners
            results = model.translate(sentences, **options, **wanted)
            best = [first.text for first, *_ in results]
            edits = [_edit(postprocess, sentence) for sentence in sentences]
            endings = _endings(model, sentences, best, options, edits)
            rows = zip(results, endings, edits, strict=True)
            for line, (translations, ending, edit) in enumerate(rows, start=number + 1):
                _write(line, translations, ending, edit)
        number += len(sentences)
        sys.stdout.flush()


def _edit(postprocess: Postprocess, sentence: str) -> Edit:
    """Returns what is done to each answer to a sentence."""
    return lambda text: postprocess([text], [sentence])[0]


def lines_at_once(paths: list[str]) -> int:
    """Returns how many lines to answer together: a person who types sees each answer."""
    if not paths and sys.stdin and sys.stdin.isatty():
        print("Type sentences, one a line; Ctrl-D ends.", file=sys.stderr)
        return 1
    return _LINES_AT_ONCE


def read_input(paths: list[str]) -> Iterator[str]:
    """Returns the lines of files, one file after the other, or of standard input.

    Raises:
        InputError: at once where a file does not exist; later where text is not UTF-8.
    """
    if not paths:
        return _standard_input()
    for path in paths:
        if not os.path.exists(path):
            raise InputError(
                f"the file {path} does not exist; name files, or give sentences on standard input"
            )
    return itertools.chain.from_iterable(map(iterate_lines, paths))


def _read_together(
    lines: Iterator[str], beside: str | None, at_once: int
) -> Iterator[tuple[list[str], list[str]]]:
    """Yields some lines at a time, and those of a file that has a line for each of them.

    Raises:
        InputError: the file `beside` has fewer lines, or more.
    """
    others = iter(()) if beside is None else read_input([beside])
    number = 0
    while sentences := list(itertools.islice(lines, at_once)):
        partners = list(itertools.islice(others, len(sentences)))
        if beside is not None and len(partners) < len(sentences):
            raise InputError(f"{beside} has {number + len(partners)} lines, the input has more")
        number += len(sentences)
        yield sentences, partners
    if next(others, None) is not None:
        raise InputError(f"{beside} has more lines than the {number} of the input")


def _score(
    model: "BatchTranslator | Client",
    sentences: list[str],
    references: list[str],
    number: int,
    options: Mapping[str, Any],
) -> None:
    """Scores and writes some translations; `number` lines came before them."""
    endings = _endings(model, sentences, references, options)
    rows = zip(model.score(sentences, references, **options), endings, strict=True)
    for line, (score, ending) in enumerate(rows, start=number + 1):
        tokens = "\t".join(f"{each:.4f}" for each in score.token_scores)
        sys.stdout.write(f"{line}\t{score.score:.4f}\t{tokens}{ending}\n")


def _endings(
    model: "BatchTranslator | Client",
    sentences: list[str],
    translations: list[str],
    options: Mapping[str, Any],
    edits: Iterable[Edit] = itertools.repeat(str),
) -> list[str]:
    """Returns what stands behind each translation: its alignment, if that is asked for."""
    if not flags.FLAGS.alignments:
        return [""] * len(sentences)
    alignments = model.align(sentences, translations, **options)
    return [
        "\t" + " ".join(f"{source}-{target}" for source, target in _as_written(pairs, text, edit))
        for pairs, text, edit in zip(alignments, translations, edits, strict=False)
    ]


def _as_written(pairs: list[tuple[int, int]], text: str, edit: Edit) -> list[tuple[int, int]]:
    """Returns pairs with the words of a translation numbered as in `edit(text)`.

    A word that is joined from several has the pairs of all of them, each pair once.
    """
    words, written = text.split(), []
    for source, target in pairs:
        so_far = edit(" ".join(words[: target + 1])).split()
        written.append((source, max(len(so_far) - 1, 0)))
    return list(dict.fromkeys(written))


def _write(number: int, translations: "list[Translation]", ending: str, edit: Edit) -> None:
    """Writes the translations of one sentence, the ending behind the best one."""
    with_scores = flags.FLAGS.scores or len(translations) > 1
    for text, score in translations:
        start = f"{number}\t{score:.4f}\t" if with_scores else ""
        sys.stdout.write(f"{start}{edit(text)}{ending}\n")
        ending = ""


def _standard_input() -> Iterator[str]:
    if sys.stdin is None:
        raise InputError("standard input is closed; name files, or give sentences there")
    prompt = _PROMPT if sys.stdin.isatty() else ""
    for number in itertools.count(1):
        if prompt:
            print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline()
        if not line:
            return
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            yield text.removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise InputError(
                f"standard input, line {number} is not UTF-8: {error.reason}; convert it first"
            ) from error
