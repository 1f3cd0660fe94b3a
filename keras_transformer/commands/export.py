"""Exports a trained model as a SavedModel that takes sentences and returns translations.

keras-transformer export --run_dir=runs/numbers --export_dir=exports/numbers
keras-transformer export --model=Helsinki-NLP/opus-mt-en-de --export_dir=exports/opus
keras-transformer export --run_dir=runs/numbers --export_dir=exports/ct2 --format=ctranslate2
keras-transformer export --run_dir=runs/numbers --export_dir=exports/hf --format=transformers
"""

import functools
import pathlib
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import command_flags, common
from keras_transformer.config import SearchConfig
from keras_transformer.files import read_lines
from keras_transformer.serving.model_folder import choose_version, read_model_card
from keras_transformer.tasks import TranslationTask

if TYPE_CHECKING:
    from keras_transformer.loading import NamedModel

command_flags.define_model_flags()
_EXPORT_DIR = command_flags.define_path(
    "export_dir", "The model's folder, which gets a folder for each version.", required=True
)
_VERSION = flags.DEFINE_integer("model_version", None, "Version to write. Default: the next one.")
_NAME = flags.DEFINE_string(
    "name", None, "The model's name in requests. Default: the name of its folder."
)
_FORMAT = flags.DEFINE_enum(
    "format",
    "saved_model",
    ["saved_model", "ctranslate2", "transformers"],
    "saved_model for TensorFlow Serving, ctranslate2 for that library, transformers for "
    "Hugging Face's (MarianMTModel). The last two do not store the search options of a "
    "run.",
)
_WARM_UP_FILE = command_flags.define_path(
    "warm_up_file",
    "Sentences, one a line, with which the export is checked and the server warmed up; the "
    "export contains them. Default: text generated from the vocabulary.",
)
_XLA = flags.DEFINE_boolean(
    "xla",
    False,
    "Compile the search for single sentences of up to 16, 32 and 64 tokens with XLA: faster, but "
    "takes memory and seconds of warm-up. On a CPU, TensorFlow Serving needs "
    "--xla_cpu_compilation_enabled. On a machine with a GPU, exports are compiled by default; "
    "CUDA_VISIBLE_DEVICES=-1 prevents it.",
)
_PRECISION = flags.DEFINE_enum(
    "precision",
    "float32",
    ["float32", "bfloat16"],
    "Number format of a SavedModel's weights and computation. bfloat16 halves the weights' "
    "bytes; whether it is faster depends on processor, model and batch.",
)
command_flags.define_flags(SearchConfig)


def main(arguments: list[str]) -> None:
    common.reject_arguments(arguments)
    command_flags.check_one_of("run_dir", "model")
    search = command_flags.given_search()
    if _FORMAT.value != "saved_model":
        names = ["name", "warm_up_file", "precision", "xla", *search]
        command_flags.reject_given(names, f"cannot be combined with --format={_FORMAT.value}")
    common.load_tensorflow()
    models = common.find_models()
    if _FORMAT.value == "saved_model":
        path = _export_saved_model(models, search)
    else:
        path = _export_to_toolkit(models)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    name = flags.FLAGS.model or f"checkpoint {','.join(model.checkpoint for model in models)}"
    print(f"Exported {name} to {path} ({size / 1e6:.1f} MB).")


def _export_saved_model(models: "list[NamedModel]", search_options: dict[str, Any]) -> pathlib.Path:
    from keras_transformer.inference import XlaShapes
    from keras_transformer.serving.export import export

    search = models[0].configs.search_config(search_options)
    sentences = [] if _WARM_UP_FILE.value is None else read_lines(_WARM_UP_FILE.value)
    xla = XlaShapes() if _XLA.value else None
    path = export(
        common.load_translator(models, search, precision=_PRECISION.value, xla=xla),
        _EXPORT_DIR.value,
        _VERSION.value,
        name=_NAME.value,
        sentences=sentences,
        training=[model.describe() for model in models],
        say=functools.partial(print, flush=True),
    )
    for name, signature in read_model_card(path)["signatures"].items():
        inputs, outputs = (", ".join(signature[side]) for side in ("inputs", "outputs"))
        print(f"{name + ':':<20} {inputs} -> {outputs}")
    return path


def _export_to_toolkit(models: "list[NamedModel]") -> pathlib.Path:
    from keras_transformer.interop.ctranslate2 import export_ctranslate2
    from keras_transformer.interop.transformers import export_transformers
    from keras_transformer.interop.vocabularies import tokenizer_notes

    base = pathlib.Path(_EXPORT_DIR.value)
    translator = common.load_translator(models, SearchConfig())
    model: Any = translator.model
    parts = model, translator.source, translator.target
    path = base / str(choose_version(base, _VERSION.value))
    export = export_ctranslate2 if _FORMAT.value == "ctranslate2" else export_transformers
    export(*parts, path)
    task = models[0].configs.task
    if type(task) is not TranslationTask:
        print(
            f"Texts and outputs are the model's: without what the task {task.name} makes of them."
        )
    for note in tokenizer_notes(translator.source):
        print(note)
    return path
