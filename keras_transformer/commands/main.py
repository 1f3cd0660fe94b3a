"""The command keras-transformer: finds a command, parses its flags, reports its errors.

Each command is a module of this folder with a function `main`, which takes the positional
arguments. Importing it defines its flags, so only the one that runs is imported.
"""

import contextlib
import difflib
import importlib.util
import io
import os
import pathlib
import sys
from collections.abc import Callable, Iterator

from absl import flags

from keras_transformer.commands.command_flags import flags_help, parse_flags
from keras_transformer.errors import BatchesInProgressError, InputError
from keras_transformer.files import local_path
from keras_transformer.version import __version__

COMMANDS = {
    "train": "train a model, or resume a run",
    "translate": "translate files or standard input with a run or an exported model",
    "evaluate": "translate a test set and compute its metrics",
    "compare": "compare runs on one test set: scores, significance, cost, curves",
    "export": "export a model as a SavedModel, for CTranslate2 or for transformers",
    "serve_client": "translate with a model server",
    "import_model": "make a run of a model that another toolkit trained",
    "explore": "show what the heads of a model attend to",
}
_WITHOUT_ONE_DNN = ("compare", "evaluate", "explore", "translate")  # see `load_tensorflow`


def main() -> None:
    """Runs the command that the first argument names: the entry point of keras-transformer."""
    name, *arguments = sys.argv[1:] or [""]
    if name in COMMANDS:
        run_command(name, [f"keras-transformer {name}", *arguments])
    elif name in ("-h", "--help", "help"):
        print(_listing())
    elif name == "--version":
        print(f"keras-transformer {__version__}")
    elif not name:
        sys.exit(_listing())
    else:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        advice = f"; did you mean {close[0]}?" if close else ""
        sys.exit(f"keras-transformer: unknown command {name!r}{advice}\n\n{_listing()}")


def _listing() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "Usage: keras-transformer COMMAND [--flag=value ...] [argument ...]",
            "",
            *(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()),
            "",
            "keras-transformer COMMAND --help explains a command and lists its flags.",
        ]
    )


def run_script(path: str) -> None:
    """Runs the command of the same name as a script, which errors name."""
    script = pathlib.Path(path)
    run_command(script.stem, [script.name, *sys.argv[1:]])


def run_command(name: str, argv: list[str]) -> None:
    """Imports one of `COMMANDS` and runs it; `argv` is how errors name it, then its arguments."""
    user_module = flags.FlagValues()
    user_module.set_gnu_getopt()
    flags.DEFINE_string(
        "user_module",
        None,
        "Python file that registers your own architectures or tasks; each command on their runs "
        "needs it.",
        flag_values=user_module,
    )
    with contextlib.suppress(flags.Error, UnicodeDecodeError):  # reported with the other flags
        user_module(argv, known_only=True)
    if (path := user_module["user_module"].value) is not None:
        with _errors_in_one_line(argv[0]):
            _import_user_module(local_path(path), one_dnn=name not in _WITHOUT_ONE_DNN)
    module = importlib.import_module(f"keras_transformer.commands.{name}")
    flags.DEFINE_flag(user_module["user_module"], module_name=module.__name__)
    run(module.main, argv, module.__doc__ or "")


def _import_user_module(path: pathlib.Path, one_dnn: bool) -> None:
    """Imports the file of --user_module, before the flags of its tasks and architectures are made.

    It may import TensorFlow, which is set up first.
    """
    from keras_transformer.commands.common import load_tensorflow

    if path.suffix != ".py" or not path.is_file():
        raise InputError(f"--user_module={path} must be a Python file; there is none")
    load_tensorflow(one_dnn=one_dnn)
    sys.path.append(str(path.resolve().parent))  # for its own imports
    # Not by its name, which a module of Python may have too.
    spec = importlib.util.spec_from_file_location(f"user_module_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    if spec.name not in sys.modules:
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)


def run(main: Callable[[list[str]], None], argv: list[str], description: str) -> None:
    """Parses the command line and runs a command's `main` with its positional arguments.

    `argv` begins with the program's name; --help shows the description before the flags.
    """
    name, *arguments = argv
    with _errors_in_one_line(name):
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # whatever the locale
        if not {"-h", "--help"}.isdisjoint(arguments):
            print(f"{description}\n\n{flags_help(main.__module__)}")
        else:
            main(parse_flags(argv))
        sys.stdout.flush()


@contextlib.contextmanager
def _errors_in_one_line(name: str) -> Iterator[None]:
    """Ends the process with one line on standard error for errors that the user can fix.

    An `InputError` exits with status 1, Ctrl-C with 130; `KeyboardInterrupt` may have a text.
    """
    try:
        yield
    except InputError as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt as error:
        print(f"\n{name}: {str(error) or 'interrupted'}", file=sys.stderr)
        if isinstance(error, BatchesInProgressError):
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(130)
        sys.exit(130)
    except OSError as error:
        # Python would try once more at exit to write what is left, and complain.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader of our output, such as `head`, has gone
            sys.exit(1)
        place = f" {error.filename}" if error.filename else ""
        sys.exit(f"{name}: cannot read or write{place}: {error.strerror or error}")
