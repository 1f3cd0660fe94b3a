"""Text to text as TensorFlow graphs: tokenize, encode, search, detokenize.

`ModelFunctions` has a graph for each signature. A `Translator` calls them with batches of
sentences, and `export` writes them, so a model server gives the same answers. The way from text to
text is `translate_text`; validation runs it on each device, the explorer runs its three parts:

1. `read` cuts text [B] into ids [B, S] (text/tokenizer.py).
2. `search_ids` encodes the ids and hands the model's `step` to `beam_search` or `sample`, with the
   settings of a `SearchConfig` and of single sentences (options.py) as constraints (search/).
3. `finish` makes text [B, N] of ids, copies unknown words, and lets the task complete it.

Dimension 0 of inputs and outputs is the batch, as servers that merge requests require; a row's
answer depends on no other row, except for the padding at its end.

Shapes: B sentences, S source length, T target length, both with EOS; N translations of a sentence,
L their longest length.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID, UNK_ID, SearchConfig
from keras_transformer.decoding import NO_SCORE, Tensor, TranslationModel
from keras_transformer.errors import InputError
from keras_transformer.files import CONTROL_CHARACTERS
from keras_transformer.inference import teacher_forcing
from keras_transformer.inference.compiled_search import CompiledSearch, XlaShapes, gpu_shapes
from keras_transformer.inference.options import column_types, read_options
from keras_transformer.inference.words import copy_unknowns, words_of_tokens
from keras_transformer.search import Constraint, Hypotheses
from keras_transformer.search.model_search import max_lengths, number_settings, search_model
from keras_transformer.tasks import Task
from keras_transformer.text import Tokenizer, Vocabulary
from keras_transformer.text.tokenizer import with_eos


class SourceText(NamedTuple):
    """Sentences as the model reads them."""

    text: Tensor  # string [B]
    ids: Tensor  # int32 [B, S], with EOS, then PAD
    surfaces: tf.RaggedTensor  # string [B, (any)], the text of each token, or of more
    lengths: Tensor  # int [B], tokens without EOS; more than the model reads where they are cut


class ModelFunctions:
    """The functions from text to text of a model, which an export has as signatures.

    serving_default     text to its translations
    translate_options   text, and options of each sentence, to its translations
    score               text and a translation of it to the translation's log-probability
    attention           text and a translation to the attention between them, if there is any

    Args:
        model, source, target, search, xla, task: as in `Translator`.
        stores_projection: see `with_stored_projection`.

    Attributes:
        source_tokenizer, target_tokenizer: of the vocabularies.
        marks_cut_outputs: whether translations that have as many tokens as they may have are
            marked; exports do not.

    Raises:
        InputError: as in `Translator`.
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
        stores_projection: bool = False,
    ) -> None:
        target = target or source
        search = search or (task.search_config() if task else SearchConfig())
        check_sizes(model.config, (source, target))
        if search.coverage_penalty and not hasattr(model, "attention"):
            raise InputError(
                f"coverage_penalty={search.coverage_penalty} needs a model with attention; "
                "set it to 0"
            )
        self._longest = search.max_source_length + search.max_extra_length  # of any translation
        models = getattr(model, "models", [model])  # of an ensemble
        limits = [each.max_length for each in models if getattr(each, "max_length", None)]
        if limits:  # learned positions, one of them for BOS or EOS
            longest = max(min(limits) - 1, 1)
            self._longest = min(self._longest, longest)
            search = search.replace(
                max_source_length=min(search.max_source_length, longest),
                max_length=min(search.max_length or longest, longest),
            )
        self.model, self.search, self.task = model, search, task
        self.source_tokenizer = self.target_tokenizer = Tokenizer(source)
        if target.fingerprint != source.fingerprint:
            self.target_tokenizer = Tokenizer(target)
        self.vocabularies = source, target
        self.xla = (gpu_shapes() if xla is None else xla) or None
        self._projection: Any = None  # variables
        if stores_projection:
            self._projection = tf.nest.map_structure(
                lambda value: tf.Variable(value, trainable=False, name="projection"),
                model.encode(tf.constant([[EOS_ID]])).projection,
            )
        self._start_graphs()

    def _start_graphs(self) -> None:
        """Forgets all graphs: the next ones read the variables that the model has now."""
        self._traced: dict[tuple[str, bool], Any] = {}
        self._model_variables = [id(variable) for variable in self.model.variables]
        self._compiled: CompiledSearch | None = None
        if self.xla:
            self._compiled = CompiledSearch(self._search, self.xla, self.search.max_extra_length)

    def with_stored_projection(self) -> "ModelFunctions":
        """Returns the functions to export: they store the matrix of the logits.

        That matrix, laid out for decoding, depends on weights alone: a server need not compute it
        for every request. The functions do not notice weights that change later.
        """
        return ModelFunctions(
            self.model,
            *self.vocabularies,
            self.search,
            self.xla or False,
            self.task,
            stores_projection=True,
        )

    @property
    def names(self) -> list[str]:
        """The names of the functions."""
        names = ["serving_default", "translate_options", "score"]
        return names + ["attention"] * hasattr(self.model, "attention")

    def signatures(self) -> dict[str, Any]:
        """Returns the functions to export by name, traced."""
        return {name: self.function(name) for name in self.names}

    def function(self, name: str) -> Any:
        """Returns a function, traced once; raises `KeyError` for a name that is none of `names`."""
        if name not in self.names:
            raise KeyError(name)
        # `quantize` and `enable_lora` give a model other variables.
        if self._model_variables != [id(variable) for variable in self.model.variables]:
            self._start_graphs()
        key = name, self.marks_cut_outputs
        if key not in self._traced:
            self._traced[key] = self._trace(name)
        return self._traced[key]

    @property
    def variables(self) -> list[tf.Variable]:
        """All that an export has to save."""
        stored = [] if self._projection is None else tf.nest.flatten(self._projection)
        return [*(variable.value for variable in self.model.variables), *stored]

    def module(self) -> tf.Module:
        """Returns the root of a SavedModel of the functions: it tracks the variables.

        A SavedModel that tracks a Keras model loads in Python and fails in the C++ server.
        """
        module = tf.Module(name="translator")
        module.variables_to_save = self.variables
        return module

    def _trace(self, name: str) -> Any:
        pair = {"source": tf.string, "target": tf.string}
        options = column_types(self.search)
        if not hasattr(self.model, "attention"):
            del options["coverage_penalty"]

        def translate(text: Tensor, **columns: Tensor) -> dict[str, Tensor]:
            return self.translate_text(text, columns)

        functions: dict[str, tuple[Callable[..., Any], Mapping[str, tf.DType]]] = {
            "serving_default": (translate, {"text": tf.string}),
            "translate_options": (translate, {"text": tf.string} | options),
            "score": (self._score, pair),
            "attention": (self._attention, pair),
        }
        function, types = functions[name]
        columns = {key: tf.TensorSpec([None], dtype, name=key) for key, dtype in types.items()}
        return tf.function(function, autograph=False).get_concrete_function(**columns)

    def translate_text(
        self, text: Tensor, columns: Mapping[str, Tensor] = MappingProxyType({})
    ) -> dict[str, Tensor]:
        """Translates text [B] in a graph.

        Args:
            text: the sentences.
            columns: options [B] of `column_types`, all or none. A negative number or empty text
                stands for the value of the configuration.

        Returns:
            "translations", string [B, N], best first, and "scores" [B, N]; "source_cut", bool [B],
            whether the text is longer than the model reads; "code_unknown", bool [B], where the
            vocabulary has language codes, and the text begins with another one; with options also
            "options_ignored", bool [B], see `read_options`.
        """
        text = _checked(text, columns.values(), "every option must have a value for each row")
        source = self.read(text)
        limit = self.search.max_source_length
        lengths = tf.minimum(source.lengths, limit)
        is_cut = self.source_tokenizer.cuts(source.text, limit + 1)
        answer = {"source_cut": is_cut | (source.lengths > limit)}
        if self.source_tokenizer.vocabulary.language_codes:
            answer["code_unknown"] = self.source_tokenizer.has_unknown_code(source.text)
        settings: Mapping[str, Tensor] = {}
        if columns:
            settings, answer["options_ignored"] = read_options(
                columns, self.search, self.target_tokenizer, lengths
            )
        hypotheses = self.search_ids(source.ids, settings)
        translations = self.finish(hypotheses.ids, source, settings.get("prefix"))
        is_blank = (source.lengths == 0)[:, None]  # [B, 1]
        if self.marks_cut_outputs:
            limits = max_lengths(self._with_defaults(settings), tf.cast(lengths, tf.int32))
            # EOS counts in the lengths of hypotheses.
            answer["best_cut"] = (hypotheses.lengths[:, 0] > limits) & (source.lengths > 0)
        blank_scores = tf.where(tf.range(tf.shape(hypotheses.scores)[1]) == 0, 0.0, NO_SCORE)
        scores = tf.where(is_blank, blank_scores, hypotheses.scores)
        if self.search.method == "beam" and self.search.num_translations > 1:
            translations, scores = _without_repeats(translations, scores)
        return {"translations": translations, "scores": scores} | answer

    def read(self, text: Tensor) -> SourceText:
        """Returns text [B] as the model reads it; one more token shows where there is one."""
        # A byte that is not UTF-8 is read as U+FFFD; what is copied from the text is UTF-8 then.
        text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")
        if self.task is not None:
            text = self.task.read_text(text)
        limit = self.search.max_source_length
        tokens, surfaces = self.source_tokenizer.tokenize_with_surfaces(text, limit + 1)
        return SourceText(text, with_eos(tokens, limit), surfaces, tokens.row_lengths())

    def search_ids(
        self,
        ids: Tensor,
        settings: Mapping[str, Tensor] = MappingProxyType({}),
        constraints: Sequence[Constraint] = (),
    ) -> Hypotheses:
        """Returns translations of ids [B, S] with EOS, then PAD.

        Single sentences may have settings, by `read_options`; the constraints are the last ones.
        """
        if settings or constraints or self._compiled is None:
            return self._search(ids, None, settings, constraints)
        return self._compiled(ids)

    def finish(self, ids: Tensor, source: SourceText, prefix: Tensor | None = None) -> Tensor:
        """Returns the translations of a search as users get them, string [B, N].

        Copies unknown words as the configuration says, a sentence of unknown tokens alone as a
        whole, and completes the text as the task does; a blank sentence has the empty translation.

        Args:
            ids: int32 [B, N, L], of a search, with EOS, then PAD.
            source: the sentences.
            prefix: int32 [B, any], then PAD, with which translations begin.
        """
        translations = self.target_tokenizer.detokenize(ids)
        if self.search.replace_unknowns:
            translations = copy_unknowns(translations, ids, source.ids, source.surfaces, prefix)
            # Of unknown tokens alone the model would make something up.
            space_ids = self.source_tokenizer.vocabulary.space_ids
            blank = tf.constant([PAD_ID, EOS_ID, *space_ids])
            is_blank = tf.reduce_any(source.ids[..., None] == blank, axis=2)
            is_unknown = source.ids == UNK_ID
            is_copied = tf.reduce_all(is_blank | is_unknown, 1) & tf.reduce_any(is_unknown, 1)
            if prefix is not None:
                is_copied &= tf.reduce_all(prefix == PAD_ID, 1)
            # But for bytes that are no text.
            is_copied &= ~tf.strings.regex_full_match(source.text, "(?s).*\ufffd.*")
            copied = tf.strings.regex_replace(source.text, CONTROL_CHARACTERS, " ")
            copied = tf.strings.strip(copied)[:, None]
            translations = tf.where(is_copied[:, None], copied, translations)
        if self.task is not None:
            translations = self.task.finish(translations, source.text)
        return tf.where(source.ids[:, :1] == EOS_ID, "", translations)

    def _with_defaults(self, settings: Mapping[str, Tensor]) -> dict[str, Any]:
        return number_settings(self.search) | dict(settings)

    def _search(
        self,
        ids: Tensor,
        longest: int | None = None,
        settings: Mapping[str, Tensor] = MappingProxyType({}),
        constraints: Sequence[Constraint] = (),
    ) -> Hypotheses:
        """Searches; `longest` is the maximum length of a translation where shapes are fixed."""
        rules = self.task.constraints(ids, self.vocabularies) if self.task else ()
        projection = self._projection
        if projection is not None:
            projection = tf.nest.map_structure(tf.convert_to_tensor, projection)
        return search_model(
            self.model,
            ids,
            self.search,
            self._with_defaults(settings),
            space_ids=self.vocabularies[1].space_ids,
            max_length_bound=longest,
            constraints=[*rules, *constraints],
            projection=projection,
        )

    def _score(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        ids, labels, marks = self._read_pair(source, target)
        # The end of a target that is cut is not scored, EOS included.
        labels = tf.where(marks["is_cut"][:, None] & (labels == EOS_ID), PAD_ID, labels)
        return teacher_forcing.score(self.model, ids, labels) | marks

    def _attention(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        ids, labels, marks = self._read_pair(source, target)
        return {
            **marks,
            "attention": teacher_forcing.attention(self.model, ids, labels),
            "source_pieces": self.source_tokenizer.pieces(ids),
            "target_pieces": self.target_tokenizer.pieces(labels),
            "source_words": words_of_tokens(self.source_tokenizer, source, ids),
            "target_words": words_of_tokens(self.target_tokenizer, target, labels),
        }

    def _read_pair(
        self, source: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Returns ids of two texts [B], the source [B, S] and as labels the target [B, T]; and
        marks.

        The marks are "source_cut", bool [B], whether a source is longer than the model reads,
        "is_cut", bool [B], whether a target is longer than any that search can generate, and
        "code_unknown" as in `translate_text`.
        """
        text = _checked(source, [target], "source and target must have as many rows")
        text = text if self.task is None else self.task.read_text(text)
        limit = self.search.max_source_length
        tokens = self.source_tokenizer.tokenize(text, limit + 1)
        target_tokens = self.target_tokenizer.tokenize(target, self._longest + 1)
        labels = with_eos(target_tokens, self._longest)
        marks = {
            "source_cut": self.source_tokenizer.cuts(text, limit + 1)
            | (tokens.row_lengths() > limit),
            "is_cut": self.target_tokenizer.cuts(target, self._longest + 1)
            | (target_tokens.row_lengths() > self._longest),
        }
        if self.source_tokenizer.vocabulary.language_codes:
            marks["code_unknown"] = self.source_tokenizer.has_unknown_code(text)
        return with_eos(tokens, limit), labels, marks


def check_sizes(config: Any, vocabularies: tuple[Vocabulary, Vocabulary]) -> None:
    """Raises `InputError` if the vocabularies of source and target are not of a model's sizes."""
    sizes = {"source": config.vocabulary_size, "target": config.target_size}
    for (side, size), vocabulary in zip(sizes.items(), vocabularies, strict=True):
        if size != vocabulary.size:
            raise InputError(
                f"the model has {size} {side} tokens, the vocabulary {vocabulary.size}; give the "
                "vocabularies of the model"
            )


def _without_repeats(translations: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Empties places of n-best lists [B, N] with the text of a better one, and moves them back.

    Several segmentations of a text are one translation to whoever reads it.
    """
    count = translations.shape[1] or tf.shape(translations)[1]
    is_earlier = tf.range(count) < tf.range(count)[:, None]  # [N, N]
    is_same = tf.equal(translations[:, :, None], translations[:, None])  # [B, N, N]
    is_repeat = tf.reduce_any(is_same & is_earlier, axis=2)  # [B, N]
    order = tf.argsort(tf.cast(is_repeat, tf.int32), axis=1, stable=True)
    translations, scores, is_repeat = (
        tf.gather(values, order, batch_dims=1) for values in (translations, scores, is_repeat)
    )
    return tf.where(is_repeat, "", translations), tf.where(is_repeat, NO_SCORE, scores)


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
