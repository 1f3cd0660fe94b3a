"""Evaluates a model's answers to a test set, or those of a file, as the task does: translations by
sacreBLEU with its signature, chrF and exact match, trees as EVALB does.

keras-transformer evaluate --run_dir=runs/numbers
keras-transformer evaluate --run_dir=runs/mine --source=test.en --target=test.de --json
keras-transformer evaluate --task=parsing --answers=parsed.mrg --file=gold.mrg
"""

import json
import pathlib
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import common, config_flags
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.files import write_atomically
from keras_transformer.tasks import Task, get_task, registered_tasks

if TYPE_CHECKING:
    from keras_transformer.data import ParallelText

    # The task, the test set, an n-best list for each sentence, and what else to say of them.
    Evaluated = tuple[Task, ParallelText, list[list[str]], dict[str, str]]

_RUN_DIR = flags.DEFINE_string(
    "run_dir",
    None,
    "Directory of a training run. Several, separated by commas, translate together.",
)
_ANSWERS = flags.DEFINE_string(
    "answers", None, "A file of answers to evaluate, in place of those of --run_dir."
)
_TASK = flags.DEFINE_enum(
    "task", "translation", registered_tasks(), "The task of --answers; a run knows its own."
)
_CHECKPOINT = config_flags.define_checkpoint_flag()
_SOURCE = flags.DEFINE_string(
    "source", None, "File to translate, plain or .gz, in place of the run's test set."
)
_TARGET = flags.DEFINE_string("target", None, "Its reference translation.")
_FILE = flags.DEFINE_string(
    "file", None, "A file that holds both, as --test_file of train, in place of these two."
)
_SPLIT = flags.DEFINE_string(
    "split", "test", "Split of the run's data set, where the run names no test files."
)
_OUTPUT = flags.DEFINE_string("output", None, "File for the translations; not written otherwise.")
_EACH = flags.DEFINE_string(
    "each", None, "File for the figures of each sentence, tab-separated; not written otherwise."
)
_JSON = flags.DEFINE_boolean("json", False, "Print one JSON object.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Sentences translated at once.", lower_bound=1)
config_flags.define_flags(SearchConfig)
config_flags.define_task_options()


def main(arguments: list[str]) -> None:
    common.refuse_arguments(arguments)
    if (_RUN_DIR.value is None) == (_ANSWERS.value is None):
        raise InputError("give --run_dir or --answers, one of the two")
    if (_SOURCE.value is None) != (_TARGET.value is None):
        raise InputError("--source and --target go together; one of them is missing")
    if None not in (_SOURCE.value, _FILE.value):
        raise InputError("--file takes the place of --source and --target; leave one out")
    _refuse_what_has_no_use()
    for path in filter(None, (_OUTPUT.value, _EACH.value)):
        common.check_output(pathlib.Path(path))
    evaluated = _read_answers(_ANSWERS.value) if _ANSWERS.value else _answer(_RUN_DIR.value or "")
    task, text, n_best, about = evaluated
    outputs = [best for best, *_ in n_best]
    if _OUTPUT.value is not None:
        write_atomically(_OUTPUT.value, "".join(line + "\n" for line in outputs))
    if _EACH.value is not None:
        rows = task.evaluate_each(outputs, text.target, text.source)
        lines = [list(rows[0]), *(list(map(str, row.values())) for row in rows)]
        write_atomically(_EACH.value, "".join("\t".join(line) + "\n" for line in lines))
    metrics = task.evaluate(outputs, text.target, text.source)
    of_n_best: dict[str, Any] = {}
    if any(len(answers) > 1 for answers in n_best):
        values = task.evaluate_n_best(n_best, text.target, text.source)
        of_n_best = {f"n_best_{name}": value for name, value in values.items()}
    if _JSON.value:
        print(json.dumps({**metrics, **of_n_best, "sentences": len(outputs), **about}))
        return
    shown = {**about, "sentences": f"{len(outputs):,}", **task.report(metrics)}
    shown |= {name: f"{value:.4g}" for name, value in of_n_best.items()}
    width = max(map(len, shown))
    for label, value in shown.items():
        print(f"{label:{width}}  {value}")


def _refuse_what_has_no_use() -> None:
    """Raises `InputError` for a flag that has no use beside --run_dir or --answers."""
    if _ANSWERS.value is None:
        option, names = "run_dir", ["task"]
    else:
        of_search = config_flags.given_flags(SearchConfig)
        option, names = "answers", ["checkpoint", "split", "batch_size", *of_search]
    for name in names:
        if flags.FLAGS[name].present:
            raise InputError(f"--{name} has no use with --{option}; leave it out")


def _answer(run_dirs: str) -> "Evaluated":
    """Returns the answers of the models of runs."""
    given = config_flags.given_flags(SearchConfig)
    SearchConfig(**given)  # so that a wrong value is reported at once
    common.load_tensorflow(one_dnn=False)
    from keras_transformer.inference import Translator
    from keras_transformer.training import read_test_text

    found = common.find_checkpoints(run_dirs, _CHECKPOINT.value)
    configs = found[0][0].configs()
    options = config_flags.given_task_options(type(configs.task))
    for name in options.keys() & set(configs.task.learned_options):
        raise InputError(
            f"--{name} belongs to training, and the run has {getattr(configs.task, name)}; leave "
            "it out"
        )
    task = configs.task.replace(**options)
    text = _read_pairs(task) or read_test_text(configs.corpora, _SPLIT.value, task)
    search = configs._replace(task=task).search_config(given)
    shortlist = common.load_shortlist(found, search)
    translator = Translator(*common.load_translator(found), search, task=task, shortlist=shortlist)
    results = translator.with_cached_projection().translate(text.source, _BATCH_SIZE.value)
    n_best = [
        task.postprocess([each.text for each in answers], [source] * len(answers))
        for answers, source in zip(results, text.source, strict=True)
    ]
    return task, text, n_best, {"checkpoint": ",".join(name for _, name in found)}


def _read_answers(path: str) -> "Evaluated":
    """Returns the answers of a file."""
    options = get_task(_TASK.value)
    task = options(**config_flags.given_task_options(options))
    text = _read_pairs(task)
    if text is None:
        raise InputError(
            "--answers needs what to compare them with: --source and --target, or --file"
        )
    answers = task.read_answers(path)
    if len(answers) != len(text.source):
        raise InputError(
            f"{path} has {len(answers):,} answers to {len(text.source):,} sentences; "
            "there must be one for each"
        )
    return task, text, [[answer] for answer in answers], {}


def _read_pairs(task: Task) -> "ParallelText | None":
    """Returns the sentences and references that flags name."""
    from keras_transformer.data import ParallelText, read_parallel

    if _SOURCE.value is not None and _TARGET.value is not None:
        return read_parallel(_SOURCE.value, _TARGET.value)
    return None if _FILE.value is None else ParallelText.from_pairs(task.read_file(_FILE.value))
