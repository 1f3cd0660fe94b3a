"""Text to text as TensorFlow graphs: tokenize, encode, search, detokenize.

`ModelTranslator` has a graph for each signature: Python calls them with batches of sentences,
`export` writes them, so a model server gives the same answers. Users have it with
`load` as `keras_transformer.Translator` (loading.py). The way from text to text:

1. `SentenceTranslator.translate` reads sentences and options (sentences.py), and
   `BatchTranslator` calls `serving_default`, or `translate_options`, with batches of them,
   sorted by length and in threads (batch_translator.py). Both signatures are
   `ModelTranslator._translate`.
2. `Tokenizer` cuts text [B] into ids [B, S] (text/tokenizer.py).
3. `search_model` encodes the ids and hands the model's `step` to `beam_search` or `sample`, with
   the settings of a `SearchConfig` (options.py) as constraints (search/).
4. `finish_translations` makes text [B, N] of ids, copies unknown words, and lets the task complete
   it.

Dimension 0 of inputs and outputs is the batch, as servers that merge requests require; a row's
answer depends on no other row, except for the padding at its end.

Shapes: B sentences, S source length, T target length, both with EOS; N translations of a sentence,
L their longest length.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import tensorflow as tf

from keras_transformer.config import (
    BOS_ID,
    EOS_ID,
    LANGUAGE_CODE,
    PAD_ID,
    UNK_ID,
    SearchConfig,
)
from keras_transformer.decoding import NO_SCORE, Tensor, TranslationModel
from keras_transformer.errors import InputError
from keras_transformer.files import CONTROL_CHARACTERS
from keras_transformer.inference import scores
from keras_transformer.inference.batch_translator import BatchTranslator
from keras_transformer.inference.compiled_search import CompiledSearch, XlaShapes, gpu_shapes
from keras_transformer.inference.options import column_types, config_settings, read_options
from keras_transformer.inference.unknowns import copy_unknowns
from keras_transformer.inference.words import words_of_tokens
from keras_transformer.search import Hypotheses
from keras_transformer.search.model_search import max_lengths, search_model
from keras_transformer.tasks import Task
from keras_transformer.text import Tokenizer, Vocabulary
from keras_transformer.text.normalization import NOTHING_VISIBLE
from keras_transformer.text.tokenizer import with_eos


class ModelTranslator(BatchTranslator):
    """Translates sentences with a trained model.

    Its functions, which an export has as signatures, are

    serving_default     text to its translations
    translate_options   text, and options of each sentence, to its translations
    score               text and a translation of it to the translation's log-probability
    tokens              ids to the ids of their translations
    attention           text and a translation to the attention between them, if there is any

    Args:
        model: a `Seq2SeqModel`, an `Ensemble` or another `TranslationModel`.
        source, target: the vocabularies; without `target`, the source's is that of both sides.
        search: how to search; by default the task's own search, or the paper's.
        xla: shapes for which XLA compiles the search of sentences without options and details; by
            default six where there is a GPU, see `gpu_shapes`; False for none.
        task: of the model; it may constrain searches and complete their outputs.
        details: whether the functions of an export return what a `DetailedTranslation` has, too.
        stores_projection: see `with_stored_projection`.

    Attributes:
        marks_cut_outputs: whether `translate` gives a `SentenceWarning` for translations with as
            many tokens as they may have, too; exports do not.

    Raises:
        InputError: a coverage penalty needs attention, which the model lacks; details cannot be
            combined with XLA.

    Example:
        >>> translator = Translator(run.load_model(), *run.vocabularies())
        >>> translator.translate("two hundred").text
        'zweihundert'
    """

    marks_cut_outputs: bool = False

    def __init__(
        self,
        model: TranslationModel,
        source: Vocabulary,
        target: Vocabulary | None = None,
        search: SearchConfig | None = None,
        xla: XlaShapes | Literal[False] | None = None,
        task: Task | None = None,
        details: bool = False,
        stores_projection: bool = False,
    ) -> None:
        target = target or source
        search = search or (task.search_config() if task else SearchConfig())
        super().__init__(self.function)
        sizes = {"source": model.config.vocabulary_size, "target": model.config.target_size}
        for (side, size), vocabulary in zip(sizes.items(), (source, target), strict=True):
            if size != vocabulary.size:
                raise InputError(
                    f"the model has {size} {side} tokens, the vocabulary {vocabulary.size}; give "
                    "the vocabularies of the model"
                )
        if search.coverage_penalty and not hasattr(model, "attention"):
            raise InputError(
                f"coverage_penalty={search.coverage_penalty} needs a model with attention; "
                "set it to 0"
            )
        if details and xla:
            raise InputError("details cannot be combined with XLA; remove one of them")
        self.model, self.search, self.task, self.details = model, search, task, details
        self.source_tokenizer = self.target_tokenizer = Tokenizer(source)
        if target.fingerprint != source.fingerprint:
            self.target_tokenizer = Tokenizer(target)
        self.xla = (gpu_shapes() if xla is None and not details else xla) or None
        self._projection: Any = ()  # variables
        if stores_projection:
            self._projection = tf.nest.map_structure(
                lambda value: tf.Variable(value, trainable=False, name="projection"),
                model.encode(tf.constant([[EOS_ID]])).projection,
            )
        self._start_graphs()

    def _start_graphs(self) -> None:
        """Forgets all graphs: the next ones read the variables that the model has now."""
        self._traced: dict[tuple[str, bool, bool], Any] = {}
        self._model_variables = [id(variable) for variable in self.model.variables]
        extra = self.search.max_extra_length
        self._compiled = self.xla and CompiledSearch(self._search, self.xla, extra)
        # One graph for all functions that search without options.
        self._plain_search = tf.function(
            lambda source: self._search(source, None),
            input_signature=[tf.TensorSpec([None, None], tf.int32)],
            autograph=False,
        )

    def with_stored_projection(self) -> "ModelTranslator":
        """Returns the translator to export: it stores the matrix of the logits.

        That matrix, laid out for decoding, depends on weights alone: a server need not compute it
        for every request. The functions do not notice weights that change later.
        """
        return ModelTranslator(
            self.model,
            self.source_tokenizer.vocabulary,
            self.target_tokenizer.vocabulary,
            self.search,
            self.xla or False,
            self.task,
            self.details,
            stores_projection=True,
        )

    @property
    def signature_names(self) -> list[str]:
        """The names of the functions."""
        names = ["serving_default", "translate_options", "score", "tokens"]
        return names + ["attention"] * hasattr(self.model, "attention")

    def signatures(self) -> dict[str, Any]:
        """Returns the functions to export by name, traced."""
        return {name: self.function(name) for name in self.signature_names}

    def function(self, name: str, details: bool | None = None) -> Any:
        """Returns a function, traced once; raises `KeyError` for another name.

        Args:
            name: one of `signature_names`.
            details: whether translations come with details; by default as the translator's.
        """
        details = self.details if details is None else details
        if name not in self.signature_names:
            raise KeyError(name)
        # `quantize` and `enable_lora` give a model other variables.
        if self._model_variables != [id(variable) for variable in self.model.variables]:
            self._start_graphs()
        key = name, details, self.marks_cut_outputs
        if key not in self._traced:
            self._traced[key] = self._trace(name, details)
        return self._traced[key]

    @property
    def variables(self) -> list[tf.Variable]:
        """All that an export has to save."""
        stored = tf.nest.flatten(self._projection)
        return [*(variable.value for variable in self.model.variables), *stored]

    def module(self) -> tf.Module:
        """Returns the root of a SavedModel of the functions: it tracks the variables.

        A SavedModel that tracks a Keras model loads in Python and fails in the C++ server.
        """
        module = tf.Module(name="translator")
        module.variables_to_save = self.variables
        return module

    def __call__(self, text: Tensor) -> dict[str, Tensor]:
        """Returns "translations", string [B, N], best first, and "scores" [B, N] of text [B].

        With details also what `_translate` adds then.
        """
        answer: dict[str, Tensor] = self._find("serving_default")(text=text)
        return answer

    def _find(self, name: str, details: bool = False) -> Any:
        if name not in self.signature_names:
            return super()._find(name)  # reports it
        return self.function(name, details or self.details)

    def _trace(self, name: str, details: bool) -> Any:
        pair = {"source": tf.string, "target": tf.string}
        options = column_types(self.search)
        if not hasattr(self.model, "attention"):
            del options["coverage_penalty"]

        def translate(text: Tensor, **columns: Tensor) -> dict[str, Tensor]:
            return self.translate_text(text, columns, details)

        functions: dict[str, tuple[Callable[..., Any], Mapping[str, tf.DType]]] = {
            "serving_default": (translate, {"text": tf.string}),
            "translate_options": (translate, {"text": tf.string} | options),
            "score": (self._score, pair),
            "tokens": (self._translate_tokens, {"source": tf.string}),
            "attention": (self._attention, pair),
        }
        function, types = functions[name]
        columns = {key: tf.TensorSpec([None], dtype, name=key) for key, dtype in types.items()}
        return tf.function(function, autograph=False).get_concrete_function(**columns)

    def translate_text(
        self,
        text: Tensor,
        columns: Mapping[str, Tensor] = MappingProxyType({}),
        details: bool = False,
    ) -> dict[str, Tensor]:
        """Translates text [B] in a graph.

        Args:
            text: the sentences.
            columns: options [B] of `column_types`, all or none. A negative number or empty text
                stands for the value of the configuration; phrases are separated by newlines.
            details: whether to return them.

        Returns:
            "translations", string [B, N], best first, and "scores" [B, N]; "source_cut", bool [B],
            whether the text is longer than the model reads; "code_unknown", bool [B], where the
            vocabulary has language codes, and the text begins with another one; with options also
            "options_ignored", bool [B], see `read_options`. With details also "tokens", string
            [B, N, L], and "token_scores" [B, N, L] with EOS, then padding; "output_cut", bool
            [B, N]; and, if the model has attention, "source_tokens", string [B, S], "attention"
            [B, N, L, S], and the words of the tokens, "source_words" [B, S] and "target_words"
            [B, N, L], see `words_of_tokens`.
        """
        given = text = _checked(
            text, columns.values(), "every option must have a value for each row"
        )
        # A byte that is not UTF-8 is read as U+FFFD; what is copied from the text is UTF-8 then.
        text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")
        options, answer = None, {}
        if self.task is not None:
            text = self.task.read_text(text)
        limit = self.search.max_source_length
        # One more token shows if there is one.
        tokens, surfaces = self.source_tokenizer.tokenize_with_surfaces(text, limit + 1)
        lengths = tokens.row_lengths()
        answer["source_cut"] = lengths > limit
        if codes := self.source_tokenizer.vocabulary.language_codes:
            answer["code_unknown"] = _has_other_code(text, codes)
        if columns:
            options, answer["options_ignored"] = read_options(
                columns, self.search, self.target_tokenizer, tf.minimum(lengths, limit)
            )
        source = with_eos(tokens, limit)  # [B, S]
        hypotheses = self._search_batch(source, options, details)
        translations = finish_translations(
            hypotheses.ids,
            text,
            source,
            surfaces,
            target=self.target_tokenizer,
            search=self.search,
            task=self.task,
            prefix=options["prefix"] if options else None,
        )
        is_blank = (lengths == 0)[:, None]  # [B, 1]
        if self.marks_cut_outputs:
            is_cut = self._is_cut(hypotheses, tf.minimum(lengths, limit), options)
            answer["best_cut"] = (is_cut & ~is_blank)[:, 0]
        lists = {"translations": translations, "scores": _scores(hypotheses, is_blank)}
        if details:
            ids = tf.where(is_blank[:, :, None], PAD_ID, hypotheses.ids)
            lists["tokens"] = self.target_tokenizer.pieces(ids)
            for name, values in hypotheses.details.items():
                blank = tf.reshape(is_blank, [-1, *[1] * (values.shape.rank - 1)])
                lists[name] = tf.where(blank, tf.zeros([], values.dtype), values)
            if "attention" in lists:
                answer["source_tokens"] = self.source_tokenizer.pieces(source)
                answer["source_words"] = words_of_tokens(self.source_tokenizer, given, source)
                texts = tf.reshape(translations, [-1])
                ids = tf.reshape(ids, [tf.size(texts), tf.shape(ids)[2]])
                words = words_of_tokens(self.target_tokenizer, texts, ids)
                lists["target_words"] = tf.reshape(words, tf.shape(hypotheses.ids))
        if self.search.method == "beam" and self.search.num_translations > 1:
            lists = _without_repeats(lists)
        return lists | answer

    def _translate_tokens(self, source: Tensor) -> dict[str, Tensor]:
        """Translates rows of ids, string [B]; see `Tokenizer.read_ids`.

        A matrix of ids would need padding, and model servers may crash when they pad requests of a
        batch. Returns "ids" [B, N, L] with EOS, then PAD; "lengths" [B, N] with EOS; "scores"
        [B, N]; "source_cut" [B]. A row without ids has one translation, of length 0 and score 0.
        """
        tokens = self.source_tokenizer.read_ids(source)
        hypotheses = self._search_batch(with_eos(tokens, self.search.max_source_length))
        is_blank = (tokens.row_lengths() == 0)[:, None]  # [B, 1]
        return {
            "source_cut": tokens.row_lengths() > self.search.max_source_length,
            "ids": tf.where(is_blank[:, :, None], PAD_ID, hypotheses.ids),
            "lengths": tf.where(is_blank, 0, hypotheses.lengths),
            "scores": _scores(hypotheses, is_blank),
        }

    def _search_batch(
        self,
        source: Tensor,
        options: Mapping[str, Tensor] | None = None,
        details: bool = False,
    ) -> Hypotheses:
        """Returns translations of ids [B, S] with EOS."""
        if options is not None or details:
            return self._search(source, None, options, details)
        return (self._compiled or self._plain_search)(source)

    def _search(
        self,
        source: Tensor,
        longest: int | None,
        options: Mapping[str, Tensor] | None = None,
        details: bool = False,
    ) -> Hypotheses:
        vocabularies = self.source_tokenizer.vocabulary, self.target_tokenizer.vocabulary
        has_projection = bool(tf.nest.flatten(self._projection))
        return search_model(
            self.model,
            source,
            self.search,
            config_settings(self.search, vocabularies[1]) | dict(options or {}),
            space_ids=vocabularies[1].space_ids,
            max_length_bound=longest,
            constraints=self.task.constraints(source, vocabularies) if self.task else (),
            projection=tf.nest.map_structure(tf.convert_to_tensor, self._projection)
            if has_projection
            else None,
            details=details,
        )

    def _is_cut(
        self, hypotheses: Hypotheses, lengths: Tensor, options: Mapping[str, Tensor] | None
    ) -> Tensor:
        """Returns which translations of sources of `lengths` had to end, bool [B, N]."""
        vocabulary = self.target_tokenizer.vocabulary
        settings = config_settings(self.search, vocabulary) | dict(options or {})
        longest = max_lengths(settings, tf.cast(lengths, tf.int32))
        return hypotheses.lengths > longest[:, None]  # which count EOS

    def _score(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        *_, ids, shifted, labels, is_cut = self._read_pair(source, target)
        # The end of a target that is cut is not scored, EOS included.
        labels = tf.where(is_cut["is_cut"][:, None] & (labels == EOS_ID), PAD_ID, labels)
        return scores.score(self.model, ids, shifted, labels) | is_cut

    def _attention(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        source, target, ids, shifted, labels, is_cut = self._read_pair(source, target)
        return scores.token_values(self.model, ids, shifted) | {
            **is_cut,
            "attention": scores.attention(self.model, ids, shifted, labels),
            "source_pieces": self.source_tokenizer.pieces(ids),
            "target_pieces": self.target_tokenizer.pieces(labels),
            "source_words": words_of_tokens(self.source_tokenizer, source, ids),
            "target_words": words_of_tokens(self.target_tokenizer, target, labels),
        }

    def _read_pair(
        self, source: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Returns both texts [B]; ids: the source [B, S], the target [B, T] shifted right, and as
        labels [B, T]; and marks.

        The marks are "source_cut", bool [B], whether a source is longer than the model reads, and
        "is_cut", bool [B], whether a target is longer than any that search can generate.
        """
        source = _checked(source, [target], "source and target must have as many rows")
        text = source if self.task is None else self.task.read_text(source)
        limit = self.search.max_source_length
        tokens = self.source_tokenizer.tokenize(text, limit + 1)
        longest = limit + self.search.max_extra_length
        target_tokens = self.target_tokenizer.tokenize(target, longest + 1)
        labels = with_eos(target_tokens, longest)
        shifted = tf.pad(labels[:, :-1], [[0, 0], [1, 0]], constant_values=BOS_ID)
        is_cut = {
            "source_cut": tokens.row_lengths() > limit,
            "is_cut": target_tokens.row_lengths() > longest,
        }
        return source, target, with_eos(tokens, limit), shifted, labels, is_cut


def _has_other_code(text: Tensor, codes: Sequence[str]) -> Tensor:
    """Which texts begin with a language code that is none of `codes`, bool [B]."""
    text = tf.strings.regex_replace(text, f"^{NOTHING_VISIBLE}", "")
    code = tf.strings.regex_replace(text, f"(?s)^{LANGUAGE_CODE}.*", r"\1")
    is_known = tf.reduce_any(code[:, None] == tf.constant(codes), axis=1)
    return tf.strings.regex_full_match(text, f"(?s){LANGUAGE_CODE}.*") & ~is_known


def finish_translations(
    ids: Tensor,
    text: Tensor,
    source: Tensor,
    surfaces: tf.RaggedTensor,
    *,
    target: Tokenizer,
    search: SearchConfig,
    task: Task | None,
    prefix: Tensor | None = None,
) -> Tensor:
    """Returns the translations of a search as users get them, string [B, N].

    Copies unknown words as the configuration says, a sentence of unknown tokens alone as a whole,
    and completes the text as the task does; a blank sentence has the empty translation.

    Args:
        ids: int32 [B, N, L], what the search found, with EOS, then PAD.
        text: string [B], the sentences.
        source: int32 [B, S], their ids with EOS, then PAD.
        surfaces: string [B, (length)], the text of each of their tokens, or of more.
        target: the tokenizer of the translations.
        search: says whether unknown words are copied.
        task: completes the text; None for none.
        prefix: int32 [B, any], then PAD, with which translations begin.
    """
    translations = target.detokenize(ids)
    if search.replace_unknowns:
        translations = copy_unknowns(translations, ids, source, surfaces, prefix)
        # Of unknown tokens alone the model would make something up.
        is_copied = tf.reduce_all((source == UNK_ID) | (source == EOS_ID) | (source == PAD_ID), 1)
        if prefix is not None:
            is_copied &= tf.reduce_all(prefix == PAD_ID, 1)
        is_copied &= ~tf.strings.regex_full_match(text, "(?s).*\ufffd.*")  # bytes that are no text
        copied = tf.strings.strip(tf.strings.regex_replace(text, CONTROL_CHARACTERS, " "))
        translations = tf.where(is_copied[:, None], copied[:, None], translations)
    if task is not None:
        translations = task.finish(translations, text)
    return tf.where(source[:, :1] == EOS_ID, "", translations)


def _scores(hypotheses: Hypotheses, is_blank: Tensor) -> Tensor:
    """Returns the scores [B, N]; a blank sentence, bool [B, 1], has one translation of score 0."""
    blank_scores = tf.where(tf.range(tf.shape(hypotheses.scores)[1]) == 0, 0.0, NO_SCORE)
    return tf.where(is_blank, blank_scores, hypotheses.scores)


def _without_repeats(lists: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Empties places of n-best lists whose text is that of a better one, and moves them back.

    Several segmentations of a text are one translation to whoever reads it.

    Args:
        lists: tensors [B, N, ...], among them "translations" and "scores".
    """
    texts = lists["translations"]
    count = texts.shape[1] or tf.shape(texts)[1]
    is_earlier = tf.range(count) < tf.range(count)[:, None]  # [N, N]
    is_same = tf.equal(texts[:, :, None], texts[:, None])  # [B, N, N]
    is_repeat = tf.reduce_any(is_same & is_earlier, axis=2)  # [B, N]
    order = tf.argsort(tf.cast(is_repeat, tf.int32), axis=1, stable=True)
    empty = {name: tf.zeros([], values.dtype) for name, values in lists.items()}
    empty["scores"] = tf.constant(NO_SCORE)
    is_repeat = tf.gather(is_repeat, order, batch_dims=1)
    moved = {}
    for name, values in lists.items():
        values = tf.gather(values, order, batch_dims=1)
        is_empty = tf.reshape(is_repeat, [-1, count, *[1] * (values.shape.rank - 2)])
        moved[name] = tf.where(is_empty, empty[name], values)
    return moved


def _checked(first: Tensor, others: Iterable[Tensor], message: str) -> Tensor:
    """Returns the first of several tensors [B] after a check that all have as many rows.

    A server does not check ranks: it would flatten a matrix.
    """
    first, *others = (tf.ensure_shape(column, [None]) for column in (first, *others))
    sizes = [tf.size(column) == tf.size(first) for column in others]
    if not sizes:
        return first
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(sizes), [message])]):
        return tf.identity(first)
