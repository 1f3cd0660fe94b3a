"""Shows the attention and the search of a translation as a page.

keras-transformer explore --run_dir=runs/mine "A man rides a horse." --output=page.html
keras-transformer explore --run_dir=runs/mine,runs/larger "One." "Two." --output=page.html
keras-transformer explore --model=en-de "Good morning." --output=page.html

The page is one file that loads nothing else.
"""

from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import command_flags, common
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError, check_unicode
from keras_transformer.files import write_atomically

if TYPE_CHECKING:
    from keras_transformer.explorer.views import Inspector

command_flags.define_model_flags()
_OUTPUT = command_flags.define_path("output", "Write a page, an .html file.")
command_flags.define_flags(SearchConfig)


def main(arguments: list[str]) -> None:
    command_flags.check_one_of("run_dir", "model")
    if not _OUTPUT.value or not arguments:
        raise InputError(
            'give sentences and --output=page.html, for example: explore --run_dir=... "A man '
            'rides a horse." --output=page.html'
        )
    common.check_output(_OUTPUT.value)
    for sentence in arguments:
        check_unicode("a sentence", sentence)
    search = command_flags.given_search()
    common.load_tensorflow(one_dnn=False)
    inspectors = _inspectors(search)
    from keras_transformer.explorer.page import make_page, page_content

    views = [inspect(sentence) for sentence in dict.fromkeys(arguments) for inspect in inspectors]
    write_atomically(_OUTPUT.value, make_page(page_content(views)))
    print(f"Wrote {_OUTPUT.value}.")


def _inspectors(search: dict[str, Any]) -> "list[Inspector]":
    from keras_transformer.explorer.views import inspect_model

    inspectors = []
    with common.find_checkpoints() as checkpoints:
        for run, checkpoint in checkpoints:
            configs = run.configs()
            model, vocabularies = run.load_model(checkpoint), run.vocabularies()
            name = flags.FLAGS.model or f"{run.path} ({checkpoint})"
            settings = configs.search_config(search)
            inspectors.append(inspect_model(name, model, vocabularies, configs.task, settings))
    return inspectors
