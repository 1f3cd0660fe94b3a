"""Translates files, or standard input: one sentence a line, in order.

echo "two hundred and five" | keras-transformer translate --run_dir=runs/numbers
keras-transformer translate --saved_model=exports/numbers/1 input.en > output.de
keras-transformer translate --run_dir=runs/numbers --references=output.de input.en > scores.tsv
keras-transformer translate --run_dir=runs/numbers --output=output.de input.en
echo "Good morning." | keras-transformer translate --model=en-de
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import command_flags, common, line_io
from keras_transformer.config import SearchConfig, check_options
from keras_transformer.errors import InputError
from keras_transformer.serving.model_folder import check_version, read_model_card
from keras_transformer.tasks import Task

if TYPE_CHECKING:
    from keras_transformer.inference import BatchTranslator, ModelTranslator

_RUN_DIR = command_flags.define_run_dirs_flag()
_MODEL = command_flags.define_model_flag()
_SAVED_MODEL = command_flags.define_path(
    "saved_model", None, "Exported version to translate with, instead of --run_dir."
)
_CHECKPOINT = command_flags.define_checkpoint_flag()
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Sentences translated at once.", lower_bound=1)
command_flags.define_flags(line_io.Job, line_io.Job.flag_names())
_REMOVE_BPE = flags.DEFINE_boolean(
    "remove_bpe",
    None,
    'Join pieces marked with "@@ " in the translations. Default: remove_bpe of the run.',
)
command_flags.define_flags(SearchConfig)


def main(arguments: list[str]) -> None:
    if [_RUN_DIR.value, _MODEL.value, _SAVED_MODEL.value].count(None) != 2:
        raise InputError("give --run_dir, --model or --saved_model, one of the three")
    is_export = _SAVED_MODEL.value is not None
    if is_export and _CHECKPOINT.present:
        raise InputError("--checkpoint was chosen when the model was exported; remove it")
    common.check_model_flags()
    search_options = command_flags.given_flags(SearchConfig)
    line_flags = command_flags.given_flags(line_io.Job)
    job = line_io.Job(inputs=tuple(arguments), search=search_options, **line_flags)
    models = [_RUN_DIR.value, _MODEL.value, _SAVED_MODEL.value]
    inputs = [*models, job.references, job.prefixes, *arguments]
    common.check_outputs([flags.FLAGS["output"]], inputs)
    version = pathlib.Path(_SAVED_MODEL.value or "")
    card: dict[str, Any] = {}
    if not is_export:
        check_options(search_options)  # reports a wrong value before loading
    else:
        check_version(version)
        card = read_model_card(version)
        _check_options(search_options, card)
    common.load_tensorflow(one_dnn=is_export and card["precision"]["computation"] == "bfloat16")
    model: BatchTranslator | ModelTranslator
    if not is_export:
        with common.runs_to_read(_RUN_DIR.value, _MODEL.value) as run_dirs:
            model, task = _load_run(run_dirs, search_options)
        job = dataclasses.replace(job, search={})  # the translator has them
        search = model.search.to_dict()
    else:
        from keras_transformer.serving.export import load_exported

        model, task = load_exported(version), common.task_of(card)
        search = card["search"]
    if _REMOVE_BPE.value is not None:
        if not hasattr(task, "remove_bpe"):
            raise InputError(f"--remove_bpe is for translation, not for {task.name}; remove it")
        task = task.replace(remove_bpe=_REMOVE_BPE.value)
    if job.alignments and not task.keeps_words:
        raise InputError(
            f"--alignments name words that a model writes, and {task.name} makes others of them; "
            "remove it"
        )
    model.batch_size = _BATCH_SIZE.value
    line_io.answer_lines(
        job,
        model,
        job.groups(),
        num_translations=search.get("num_translations", 1),
        postprocess=task.postprocess,
        target_text=task.target_text,
    )


def _load_run(run_dirs: str, search_options: dict[str, Any]) -> "tuple[ModelTranslator, Task]":
    """Returns the translator of runs, and their task."""
    from keras_transformer.inference import ModelTranslator

    checkpoints = common.find_checkpoints(run_dirs, _CHECKPOINT.value)
    configs = checkpoints[0][0].configs()
    search = configs.search_config(search_options)
    translator = ModelTranslator(*common.load_translator(checkpoints), search, task=configs.task)
    return translator, configs.task


def _check_options(search_options: dict[str, Any], card: Mapping[str, Any]) -> None:
    """Checks search flags by an export's model card."""
    if fixed := sorted(search_options.keys() - {*SearchConfig.fields_with(per_sentence=True)}):
        raise InputError(
            f"--{fixed[0]} was fixed when {_SAVED_MODEL.value} was exported; remove it, or "
            "translate with --run_dir"
        )
    limit = card["search"]["max_extra_length"]
    if search_options.get("max_extra_length", 0) > limit:
        raise InputError(
            f"--max_extra_length can be at most {limit}, with which {_SAVED_MODEL.value} was "
            f"exported, got {search_options['max_extra_length']}; export again, or translate with "
            "--run_dir"
        )
    check_options(search_options)
