"""Files of models of other toolkits: bytes, text, JSON, and what their options may be."""

import json
import mmap
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from keras_transformer.errors import InputError


class Given(NamedTuple):
    """What a user says of a model beside naming it.

    Attributes:
        vocabularies: of source and target, where they are not beside the model; else empty.
        spms: SentencePiece models of source and target; else empty.
        num_heads: attention heads, where the files do not tell.
        positions: "theirs", or "marian" for those with which Marian trains, in place of those that
            transformers and CTranslate2 compute for its models, which differ a little.
    """

    vocabularies: tuple[pathlib.Path, ...] = ()
    spms: tuple[pathlib.Path, ...] = ()
    num_heads: int | None = None
    positions: str = "theirs"


def map_file(path: pathlib.Path) -> memoryview:
    """Returns a file's bytes, mapped into memory.

    Raises:
        InputError: it cannot be read, is empty, or names a file that git keeps elsewhere.
    """
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise InputError(f"{path} is missing; give the folder of a whole model") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path} ({error}); download it again") from error
    if bytes(content[:40]).startswith(b"version https://git-lfs"):
        raise InputError(f"{path} only names a file that git keeps elsewhere; run git lfs pull")
    return content


def read_text(path: pathlib.Path) -> str:
    """Returns a file's text; `InputError` where it cannot be read or is not UTF-8."""
    try:
        return bytes(map_file(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text; download it again") from error


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Returns the object in a JSON file; `InputError` where there is none."""
    try:
        values = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not JSON, or damaged ({error}); download it again") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no JSON object; download it again")
    return values


def refuse(found: Mapping[str, Any]) -> None:
    """Raises `InputError` that lists all options whose value is true."""
    if names := [name for name, is_there in found.items() if is_there]:
        raise InputError(
            f"the model has {', '.join(names)}, which a Transformer as here does not; such a model "
            "cannot be imported: translate with its own toolkit, or train one on its translations"
        )


def rate(value: Any) -> float:
    """Returns a dropout rate of a configuration, the usual one where it makes no sense."""
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 else 0.1
