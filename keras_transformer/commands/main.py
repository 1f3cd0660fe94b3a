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
from collections.abc import Callable

from absl import flags

from keras_transformer.commands.command_flags import define_standard_flags, parse_flags
from keras_transformer.errors import BatchesInProgressError, InputError
from keras_transformer.files import local_path
from keras_transformer.version import __version__

_WITHOUT_ONE_DNN = ("compare", "evaluate", "explore", "translate")  # see `load_tensorflow`
COMMANDS = {
    "train": "train a model, or resume a run",
    "translate": "translate files or standard input with a run or an exported model",
    "evaluate": "translate a test set and compute its metrics",
    "compare": "compare runs on one test set: scores, significance, cost",
    "export": "export a model as a SavedModel, for CTranslate2 or for transformers",
    "serve_client": "translate with a model server",
    "import_model": "make a run of a model that another toolkit trained",
    "average_checkpoints": "average the weights of a run's checkpoints",
    "learn_vocabulary": "learn a SentencePiece vocabulary from text files",
    "explore": "show what the heads of a model attend to",
}


def main() -> None:
    """Runs the command that the first argument names: the entry point of keras-transformer."""
    name, *arguments = sys.argv[1:] or [""]
    if name in COMMANDS:
        program = f"keras-transformer {name}"
        run_command(name, [program, *arguments], example=program)
        return
    if name in ("-h", "--help", "help"):
        print(_listing())
        return
    if name == "--version":
        print(f"keras-transformer {__version__}")
        return
    lines = []
    if name:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        advice = f"; did you mean {close[0]}?" if close else ""
        lines = [f"keras-transformer: unknown command {name!r}{advice}", ""]
    sys.exit("\n".join([*lines, _listing()]))


def run_script(path: str) -> None:
    """Runs the command of the same name as a script; its help and errors name the script."""
    script = pathlib.Path(path)
    example = f"python scripts/{script.name}"
    run_command(script.stem, [script.name, *sys.argv[1:]], example=example)


def run_command(name: str, argv: list[str], example: str) -> None:
    """Imports a command and runs it.

    Args:
        name: one of `COMMANDS`.
        argv: how errors name the program, then its arguments.
        example: how the help texts write "keras-transformer NAME".
    """
    try:
        argv = [argv[0], *_with_flag_files(argv[1:])]
        user_module = _user_module(argv)
        if user_module is not None:
            _import_user_module(user_module, one_dnn=name not in _WITHOUT_ONE_DNN)
    except InputError as error:
        sys.exit(f"{argv[0]}: {error}")
    module = importlib.import_module(f"keras_transformer.commands.{name}")
    flags.DEFINE_flag(
        flags.Flag(
            flags.ArgumentParser(),
            None,
            "user_module",
            None,
            "Python file, or importable module, that registers your own architectures or tasks; "
            "each command on their runs needs it.",
        ),
        module_name=module.__name__,
    )
    run(module.main, argv, (module.__doc__ or "").replace(f"keras-transformer {name}", example))


def _with_flag_files(arguments: list[str]) -> list[str]:
    """Returns the arguments with the flags of a file instead of each --flagfile.

    Of a flag that is given twice the last counts.
    """
    expanded: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        name, has_path, path = argument.partition("=")
        if name not in ("--flagfile", "-flagfile"):
            expanded.append(argument)
            continue
        path = path if has_path else next(remaining, "")
        try:
            text = local_path(path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            cause = getattr(error, "strerror", None) or "it is not UTF-8"
            raise InputError(
                f"--flagfile={path} cannot be read: {cause}; give a text file of flags"
            ) from error
        lines = (line.strip() for line in text.splitlines())
        expanded += (line for line in lines if line and not line.startswith(("#", "//")))
    return expanded


def _user_module(argv: list[str]) -> str | None:
    """Returns the value of --user_module, which is needed before flags can be parsed."""
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        name, has_value, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name == "user_module":
            return value if has_value else following
    return None


def _import_user_module(name: str, one_dnn: bool) -> None:
    """Imports a Python file or a module; it may import TensorFlow, so that is set up first."""
    from keras_transformer.commands.common import load_tensorflow

    spec = None
    path = local_path(name)
    if path.suffix == ".py":  # not by its name, which a module of Python may have too
        sys.path.append(str(path.resolve().parent))  # for its own imports
        spec = importlib.util.spec_from_file_location(f"user_module_{path.stem}", path)
        spec = spec if path.is_file() else None
    else:
        sys.path.insert(0, ".")
        with contextlib.suppress(ModuleNotFoundError):  # the package that it would be in
            spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise InputError(
            f"--user_module: there is no module {name!r}; give the path of a Python file"
        )
    load_tensorflow(one_dnn=one_dnn)
    if spec.name in sys.modules:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def run(
    main: Callable[[list[str]], None], argv: list[str] | None = None, description: str | None = None
) -> None:
    """Parses the command line and runs a command's `main` with its positional arguments.

    An `InputError` becomes one line on standard error and exit status 1. Ctrl-C exits with 130;
    `main` may raise `KeyboardInterrupt` again with a text to print.

    Args:
        main: of a module that has defined its flags.
        argv: the program's name and its arguments; None means those of this process.
        description: what --help shows before the flags; None means the docstring of that module.
    """
    name, *arguments = [os.path.basename(sys.argv[0]), *sys.argv[1:]] if argv is None else argv
    if description is None:
        description = main.__globals__["__doc__"]
    try:
        if sys.stdout is None:
            raise InputError("standard output is closed; redirect it to a file, or to /dev/null")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # whatever the locale
        define_standard_flags(name, main.__module__, description)
        main(parse_flags([name, *arguments]))
        sys.stdout.flush()
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader of our output, such as `head`, has gone
            sys.exit(1)
        place = f" {error.filename}" if error.filename else ""
        sys.exit(f"{name}: cannot read or write{place}: {error.strerror or error}")


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
