"""What all configurations share: they check themselves and are written as JSON."""

import dataclasses
import json
import math
import numbers
from typing import Any, Literal, get_args, get_origin

from typing_extensions import Self

from keras_transformer.errors import InputError, check_choice


class JsonConfig:
    """JSON round trip and validation shared by the frozen dataclasses of this folder."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as the plain Python values that JSON has."""
        values = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    def to_json(self) -> str:
        """Returns the fields as indented JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Builds the configuration; an unknown field raises `InputError`."""
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise InputError(
                f"{cls.__name__} has no field {', '.join(unknown)}; it has {', '.join(known)}"
            )
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Builds the configuration from the text that `to_json` wrote."""
        return cls.from_dict(json.loads(text))

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed, checked like any other."""
        return type(self).from_dict(self.to_dict() | changes)

    def _check_types(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            kinds = get_args(field.type) or (field.type,)
            if get_origin(field.type) is Literal:
                check_choice(field.name, value, kinds)
            elif value is None and type(None) in kinds:
                continue
            elif float in kinds and not (isinstance(value, numbers.Real) and math.isfinite(value)):
                raise InputError(f"{field.name} must be a finite number, got {value!r}")
            elif int in kinds and not isinstance(value, numbers.Integral):
                raise InputError(f"{field.name} must be a whole number, got {value!r}")

    def _check_at_least(self, minimum: float, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise InputError(f"{name} must be at least {minimum}, got {value}")
