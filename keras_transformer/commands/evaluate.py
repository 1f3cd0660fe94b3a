"""Translates a test set and scores the outputs, or scores those of a file.

Translations get sacreBLEU with its signature, chrF and exact match; trees get EVALB's F1.

keras-transformer evaluate --run_dir=runs/numbers
keras-transformer evaluate --run_dir=runs/mine --source=test.en --target=test.de --json
keras-transformer evaluate --model=en-de --source=test.en --target=test.de
keras-transformer evaluate --task=parsing --answers=parsed.mrg --file=gold.mrg
"""

import dataclasses
import datetime
import json
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import command_flags, common, evaluation_set
from keras_transformer.config import DataConfig, SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.files import replace_control_characters, write_atomically
from keras_transformer.host import machine, package_versions
from keras_transformer.tasks import Task, get_task, registered_tasks

if TYPE_CHECKING:
    from keras_transformer.data.corpus import ParallelText
    from keras_transformer.loading import NamedModel

    # Task, test set, output of each sentence, and what made them, for --json.
    Evaluated = tuple[Task, ParallelText, list[str], dict[str, Any]]

command_flags.define_model_flags()
_ANSWERS = command_flags.define_path(
    "answers", "File of outputs to score, instead of those of a model."
)
_TASK = flags.DEFINE_enum(
    "task", "translation", registered_tasks(), "Task of --answers; a run has its own."
)
evaluation_set.define_flags()
_OUTPUT = command_flags.define_path("output", "Write the translations to this file.")
_JSON = flags.DEFINE_boolean(
    "json",
    False,
    "Print one JSON object: metrics with 95 % intervals, date, SHA-256 of "
    "checkpoint (as of `cat average.*`) and test set, settings of model, training and "
    "search, updates and tokens seen, versions, machine.",
)
command_flags.define_flags(SearchConfig)
command_flags.define_task_options()


def main(arguments: list[str]) -> None:
    common.reject_arguments(arguments)
    common.print_warnings()
    command_flags.check_one_of("run_dir", "model", "answers")
    evaluation_set.check_flags()
    inputs = [flags.FLAGS[name].value for name in ("answers", "source", "target", "file")]
    common.check_output(_OUTPUT.value, inputs)
    search = command_flags.given_search()
    if _ANSWERS.value:
        command_flags.reject_given(["batch_size", *search], "cannot be combined with --answers")
        evaluated = _read_answers(_ANSWERS.value)
    else:
        command_flags.reject_given(["task"], "is for --answers; a run has its own task")
        common.load_tensorflow(one_dnn=False)
        evaluated = _answer(common.find_models(), search)
    task, text, outputs, made_by = evaluated
    if _OUTPUT.value is not None:
        lines = (replace_control_characters(line) + "\n" for line in outputs)
        write_atomically(_OUTPUT.value, "".join(lines))
    metrics = task.evaluate(outputs, text.target, text.source)
    if _JSON.value:
        intervals = task.intervals(outputs, text.target, text.source)
        record = {**metrics, "intervals_95": intervals}
        record |= {
            "sentences": len(outputs),
            **made_by,
            "test_set_sha256": evaluation_set.digest(text),
        }
        print(json.dumps(record))
        return
    checkpoint = {"checkpoint": made_by["checkpoint"]} if made_by else {}
    shown = {**checkpoint, "sentences": f"{len(outputs):,}", **task.report(metrics)}
    width = max(map(len, shown))
    for label, value in shown.items():
        print(f"{label:{width}}  {value}")


def _answer(models: "list[NamedModel]", search_options: dict[str, Any]) -> "Evaluated":
    """Translates the test set with a model, or an ensemble of several."""
    configs = models[0].configs
    task = command_flags.with_given_options(configs.task)
    text = evaluation_set.read_test_set(task, configs)
    if configs.data is not None:
        paths = [getattr(configs.data, name) for name in DataConfig.fields_with(is_path=True)]
        common.check_output(_OUTPUT.value, paths)
    search = configs._replace(task=task).search_config(search_options)
    outputs, _ = evaluation_set.translate(models, task, search, text)
    made_by = {
        "date": datetime.date.today().isoformat(),
        "checkpoint": flags.FLAGS.model or ",".join(model.checkpoint for model in models),
        "checkpoint_sha256": [model.digest for model in models],
        "model": configs.to_dict()["model"],
        "training": [model.configs.training_options for model in models],
        "cost": [model.cost for model in models],
        "search": dataclasses.asdict(search),
        "versions": package_versions(),
        "machine": machine(),
    }
    return task, text, outputs, made_by


def _read_answers(path: str) -> "Evaluated":
    """Reads the outputs in a file, and their references."""
    options = get_task(_TASK.value)
    task = options(**command_flags.given_flags(options))
    text = evaluation_set.read_test_set(task, None)
    answers = task.read_answers(path)
    if len(answers) != len(text.source):
        raise InputError(
            f"{path} has {len(answers):,} outputs for {len(text.source):,} sentences; give one each"
        )
    return task, text, answers, {}
