"""Lines of text in, lines out: shared by `translate` and `serve_client`.

Each line of the input is translated, or a given translation of it is scored; the results are
written to standard output in the order of the input.
"""

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from absl import flags

from keras_transformer.errors import InputError
from keras_transformer.files import iterate_lines, replace_control_characters

if TYPE_CHECKING:
    from keras_transformer.client import Client
    from keras_transformer.inference import BatchTranslator

flags.disclaim_key_flags()  # these are flags of the command that defines them through here

Postprocess: TypeAlias = Callable[[Sequence[str], Sequence[str]], list[str]]

_LINES_AT_ONCE = 10_000
_PROMPT = "> "


def define_line_flags() -> None:
    """Defines the flags of what is given with each line and what is written for it."""
    flags.DEFINE_boolean(
        "scores",
        False,
        "Write line number, score and translation, tab-separated, as is always done for n-best "
        "lists.",
    )
    flags.DEFINE_string(
        "references",
        None,
        "A file with a translation of each line, to be scored: writes line number, "
        "log-probability and the log-probability of each token, tab-separated.",
    )
    flags.DEFINE_string(
        "prefixes", None, "A file with the text that the translation of each line must begin with."
    )
    flags.DEFINE_boolean(
        "alignments",
        False,
        "Write after each best translation, or reference, a tab and its word alignment: pairs of "
        "source and target word, numbered from 0 in the lines as they are read and written, by "
        "the model's attention.",
    )


def check_flags(search_flags: Mapping[str, Any]) -> None:
    """Raises `InputError` if translations are to be scored and searched for at the same time."""
    if flags.FLAGS.references is not None and (search_flags or flags.FLAGS.prefixes is not None):
        raise InputError(
            "--references scores given translations and cannot be combined with search options; "
            "remove them"
        )


def lines_at_once(paths: list[str]) -> int:
    """Returns how many lines to answer together: one if a person types them."""
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


def _standard_input() -> Iterator[str]:
    if sys.stdin is None:
        raise InputError("standard input is closed; name files, or give sentences there")
    for number in itertools.count(1):
        if sys.stdin.isatty():
            print(_PROMPT, end="", file=sys.stderr, flush=True)
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


def _as_is(outputs: Sequence[str], sources: Sequence[str]) -> list[str]:
    return list(outputs)


def answer_lines(
    model: "BatchTranslator | Client",
    lines: Iterator[str],
    search_options: Mapping[str, Any],
    *,
    at_once: int = _LINES_AT_ONCE,
    postprocess: Postprocess = _as_is,
    **options: Any,
) -> None:
    """Writes the translations of all lines, or the scores of references, in the lines' order.

    Args:
        model: translates, scores and aligns.
        lines: the input.
        search_options: for all sentences.
        at_once: lines that are sorted by length together; their answers come out together.
        postprocess: what is done to translations before they are written, see `Task.postprocess`.
        **options: for each call of the model's methods.
    """
    references, prefixes = flags.FLAGS.references, flags.FLAGS.prefixes
    if at_once == 1 and references is None:
        model.translate(["a"], **options, **search_options)  # the first search takes seconds more
    has_scores = flags.FLAGS.scores
    numbers = itertools.count(1)  # comes last in `zip`, which stops at the first that has ended
    for sentences, partners in _read_together(lines, references or prefixes, at_once):
        if references is not None:
            found = model.score(sentences, partners, **options)
            alignments = _alignments(model, sentences, partners, options, _as_is)
            for each, alignment, number in zip(found, alignments, numbers, strict=False):
                scores = [f"{score:.4f}" for score in (each.score, *each.token_scores)]
                write_row(str(number), *scores, *alignment)
        else:
            wanted = dict(search_options)
            if prefixes is not None:
                wanted["prefix"] = partners
            results = model.translate(sentences, **options, **wanted)
            best = [first.text for first, *_ in results]
            alignments = _alignments(model, sentences, best, options, postprocess)
            # A sentence may have fewer translations than others, but rows have the same columns.
            has_scores = has_scores or any(len(translations) > 1 for translations in results)
            rows = zip(sentences, results, alignments, numbers, strict=False)
            for sentence, translations, alignment, number in rows:
                for text, score in translations:
                    start = [str(number), f"{score:.4f}"] if has_scores else []
                    write_row(*start, *postprocess([text], [sentence]), *alignment)
                    alignment = []  # only the best translation has one
        sys.stdout.flush()


def write_row(*columns: str) -> None:
    """Writes one line; control characters in the columns are replaced."""
    sys.stdout.write("\t".join(map(replace_control_characters, columns)) + "\n")


def _alignments(
    model: "BatchTranslator | Client",
    sentences: list[str],
    translations: list[str],
    options: Mapping[str, Any],
    postprocess: Postprocess,
) -> list[list[str]]:
    """Returns a column with the alignment of each translation, none unless it is asked for.

    Words are numbered as in the postprocessed translation: one that is joined from several has the
    pairs of all of them, each pair once.
    """
    if not flags.FLAGS.alignments:
        return [[] for _ in sentences]
    columns = []
    found = model.align(sentences, translations, **options)
    for sentence, translation, pairs in zip(sentences, translations, found, strict=True):
        words, written = translation.split(), []
        for source, target in pairs:
            (so_far,) = postprocess([" ".join(words[: target + 1])], [sentence])
            written.append(f"{source}-{max(len(so_far.split()) - 1, 0)}")
        columns.append([" ".join(dict.fromkeys(written))])
    return columns


def _read_together(
    lines: Iterator[str], beside: str | None, at_once: int
) -> Iterator[tuple[list[str], list[str]]]:
    """Yields some lines at a time, with the lines of the file `beside` that belong to them.

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
