"""Translates files, or standard input: one sentence a line, in order.

echo "two hundred and five" | keras-transformer translate --run_dir=runs/numbers
keras-transformer translate --saved_model=exports/numbers/1 input.en > output.de
keras-transformer translate --run_dir=runs/numbers --references=output.de input.en > scores.tsv
keras-transformer translate --run_dir=runs/numbers --output=output.de input.en
echo "Good morning." | keras-transformer translate --model=en-de
"""

import pathlib
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import command_flags, common, line_io
from keras_transformer.config import SearchConfig
from keras_transformer.config.search import REQUEST_OPTIONS
from keras_transformer.errors import InputError
from keras_transformer.serving.model_folder import check_version, read_model_card
from keras_transformer.tasks import Task, TranslationTask, get_task

if TYPE_CHECKING:
    from keras_transformer.inference import LocalTranslator

command_flags.define_model_flags()
_SAVED_MODEL = command_flags.define_path(
    "saved_model", "Exported version to translate with, instead of --run_dir."
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Sentences translated at once.", lower_bound=1)
command_flags.define_flags(line_io.Job)
_REMOVE_BPE = flags.DEFINE_boolean(
    "remove_bpe",
    None,
    'Join pieces marked with "@@ " in the translations. Default: remove_bpe of the run.',
)
command_flags.define_flags(SearchConfig)


def main(arguments: list[str]) -> None:
    command_flags.check_one_of("run_dir", "model", "saved_model")
    job = line_io.Job(**command_flags.given_flags(line_io.Job))
    search = command_flags.given_search()
    line_io.check_search(job, search)
    common.check_output(job.output, [job.references, *arguments])
    model: LocalTranslator
    if _SAVED_MODEL.value is None:
        common.load_tensorflow(one_dnn=False)
        models = common.find_models()
        configs = models[0].configs
        model, task = common.load_translator(models, configs.search_config(search)), configs.task
        search = {}  # the translator has them
    else:
        model, task = _load_export(pathlib.Path(_SAVED_MODEL.value), search)
    if _REMOVE_BPE.value is not None:
        task = task.replace(remove_bpe=_REMOVE_BPE.value)
    if job.alignments and not task.keeps_words:
        raise InputError(
            f"--alignments name words that a model writes, and {task.name} makes others of them; "
            "remove it"
        )
    model.batch_size = _BATCH_SIZE.value
    line_io.answer_lines(job, model, arguments, search, task)


def _load_export(version: pathlib.Path, search: dict[str, Any]) -> "tuple[LocalTranslator, Task]":
    """Returns the translator of --saved_model, and its task: translation if no run was exported."""
    check_version(version)
    card = read_model_card(version)
    fixed = [name for name in search if name not in REQUEST_OPTIONS]
    command_flags.reject_given(fixed, f"was fixed when {version} was exported")
    common.load_tensorflow(one_dnn=card["precision"] == "bfloat16")
    from keras_transformer.serving.export import load_exported

    task: Task = TranslationTask()
    if card["training"]:
        options = dict(card["training"][0]["task"])
        task = get_task(options.pop("name")).from_dict(options)
    return load_exported(version), task
