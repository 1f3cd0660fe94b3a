"""Classes that are found by a name, such as tasks; modules of users add theirs."""

from typing import Any, TypeVar

from keras_transformer.errors import InputError, NotRegisteredError

T = TypeVar("T")


def add_class(classes: dict[Any, type[T]], key: Any, new: type[T], what: str) -> None:
    """Adds a class under a key; an `InputError` says `what` has the key if another class has it.

    A class of the same module and name replaces the one before, as when a notebook's cell runs
    again.
    """
    old = classes.get(key, new)
    if (old.__module__, old.__qualname__) != (new.__module__, new.__qualname__):
        raise InputError(
            f"{what} of {new.__qualname__} is that of {old.__qualname__}; choose another name"
        )
    classes[key] = new


def find_class(classes: dict[str, type[T]], name: str, kind: str) -> type[T]:
    """Returns the class of a name; raises `NotRegisteredError` if there is none of this kind."""
    if name not in classes:
        raise NotRegisteredError(
            f"{kind} must be one of {', '.join(classes)}, got {name!r}; if it is yours, give "
            "commands --user_module=FILE, and in Python import its module first"
        )
    return classes[name]
