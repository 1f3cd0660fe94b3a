"""Shows the attention and the search of a translation as a page.

keras-transformer explore --run_dir=runs/mine "A man rides a horse." --output=page.html
keras-transformer explore --run_dir=runs/mine,runs/larger "One." "Two." --output=page.html
keras-transformer explore --model=en-de "Good morning." --output=page.html

The page is one file that loads nothing else.
"""

from keras_transformer.commands import command_flags, common
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError, check_unicode
from keras_transformer.files import write_atomically

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
    from keras_transformer.explorer.page import make_page, page_content
    from keras_transformer.explorer.views import inspect_model

    inspectors = []
    for model in common.find_models():
        task, settings = model.configs.task, model.configs.search_config(search)
        parts = model.build("float32"), model.vocabularies
        inspectors.append(inspect_model(model.label, *parts, task, settings))
    views = [inspect(sentence) for sentence in dict.fromkeys(arguments) for inspect in inspectors]
    write_atomically(_OUTPUT.value, make_page(page_content(views)))
    print(f"Wrote {_OUTPUT.value}.")
