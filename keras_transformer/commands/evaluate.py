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

from keras_transformer.commands import command_flags, common
from keras_transformer.commands.evaluation_set import EvaluationSet, digest
from keras_transformer.config import DataConfig, SearchConfig, check_options
from keras_transformer.errors import InputError
from keras_transformer.files import replace_control_characters, write_atomically
from keras_transformer.host import machine, package_versions
from keras_transformer.tasks import Task, get_task, registered_tasks

if TYPE_CHECKING:
    from keras_transformer.data import ParallelText

    # Task, test set, output of each sentence, and what made them, for --json.
    Evaluated = tuple[Task, ParallelText, list[str], dict[str, Any]]

_RUN_DIR = command_flags.define_run_dirs_flag()
_MODEL = command_flags.define_model_flag()
_ANSWERS = command_flags.define_path(
    "answers", "File of outputs to score, instead of those of a model."
)
_TASK = flags.DEFINE_enum(
    "task", "translation", registered_tasks(), "Task of --answers; a run has its own."
)
_CHECKPOINT = command_flags.define_checkpoint_flag()
_TEST_SET = EvaluationSet.define()
_OUTPUT = command_flags.define_path("output", "Write the translations to this file.")
_EACH = command_flags.define_path(
    "each", "Write the scores of each sentence to this file, tab-separated."
)
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
    if [_RUN_DIR.value, _MODEL.value, _ANSWERS.value].count(None) != 2:
        raise InputError("give --run_dir, --model or --answers, one of the three")
    _TEST_SET.check()
    inputs = [_ANSWERS.value, _TEST_SET.source.value, _TEST_SET.target.value, _TEST_SET.file.value]
    for output in (_OUTPUT, _EACH):
        common.check_output(output.value, inputs)
    search = command_flags.given_flags(SearchConfig)
    if _ANSWERS.value:
        unused = ["checkpoint", "batch_size", *search]
        command_flags.reject_given(unused, "cannot be combined with --answers")
        evaluated = _read_answers(_ANSWERS.value)
    else:
        command_flags.reject_given(["task"], "is for --answers; a run has its own task")
        if _MODEL.value is not None:
            command_flags.reject_given(["checkpoint"], "cannot be combined with --model")
        check_options(search)  # reports a wrong value before loading
        common.load_tensorflow(one_dnn=False)
        with common.runs_to_read(_RUN_DIR.value, _MODEL.value) as run_dirs:
            evaluated = _answer(run_dirs, search)
    task, text, outputs, made_by = evaluated
    if _OUTPUT.value is not None:
        lines = (replace_control_characters(line) + "\n" for line in outputs)
        write_atomically(_OUTPUT.value, "".join(lines))
    if _EACH.value is not None:
        rows = task.evaluate_each(outputs, text.target, text.source)
        table = [list(rows[0]), *(list(map(str, row.values())) for row in rows)]
        lines = ("\t".join(map(replace_control_characters, row)) + "\n" for row in table)
        write_atomically(_EACH.value, "".join(lines))
    metrics = task.evaluate(outputs, text.target, text.source)
    if _JSON.value:
        intervals = task.intervals(outputs, text.target, text.source)
        record = {**metrics, "intervals_95": intervals}
        record |= {"sentences": len(outputs), **made_by, "test_set_sha256": digest(text)}
        print(json.dumps(record))
        return
    checkpoint = {"checkpoint": made_by["checkpoint"]} if made_by else {}
    shown = {**checkpoint, "sentences": f"{len(outputs):,}", **task.report(metrics)}
    width = max(map(len, shown))
    for label, value in shown.items():
        print(f"{label:{width}}  {value}")


def _answer(run_dirs: str, search_options: dict[str, Any]) -> "Evaluated":
    """Translates the test set with the models of runs, whose folders are separated by commas."""
    from keras_transformer.inference import Translator
    from keras_transformer.training.metrics import training_cost
    from keras_transformer.training.prepare import read_test_text

    checkpoints = common.find_checkpoints(run_dirs, _CHECKPOINT.value)
    configs = checkpoints[0][0].configs()
    task = command_flags.with_given_options(configs.task)
    text = _TEST_SET.read(task) or read_test_text(configs.required_data, task=task)
    if configs.data is not None:
        paths = [getattr(configs.data, name) for name in DataConfig.fields_with(is_path=True)]
        for output in (_OUTPUT, _EACH):
            common.check_output(output.value, paths)
    search = configs._replace(task=task).search_config(search_options)
    model, source_vocabulary, vocabulary = common.load_translator(checkpoints)
    task.check_references(text.target, vocabulary)
    translator = Translator(model, source_vocabulary, vocabulary, search, task=task)
    results = _TEST_SET.translate(translator, text.source)
    outputs = task.postprocess([best.text for best in results], text.source)
    made_by = {
        "date": datetime.date.today().isoformat(),
        "checkpoint": _MODEL.value or ",".join(name for _, name in checkpoints),
        "checkpoint_sha256": [run.checkpoints().digest(name) for run, name in checkpoints],
        "model": configs.to_dict()["model"],
        "training": [run.configs().trained_with for run, _ in checkpoints],
        "cost": [training_cost(run.metrics_path, name) for run, name in checkpoints],
        "search": dataclasses.asdict(search),
        "versions": package_versions(),
        "machine": machine(),
    }
    return task, text, outputs, made_by


def _read_answers(path: str) -> "Evaluated":
    """Reads the outputs in a file, and their references."""
    options = get_task(_TASK.value)
    task = options(**command_flags.given_flags(options))
    text = _TEST_SET.read(task)
    if text is None:
        raise InputError("--answers needs references: give --source and --target, or --file")
    answers = task.read_answers(path)
    if len(answers) != len(text.source):
        raise InputError(
            f"{path} has {len(answers):,} outputs for {len(text.source):,} sentences; give one each"
        )
    return task, text, answers, {}
