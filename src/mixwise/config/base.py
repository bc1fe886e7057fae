"""What every configuration has: frozen, validated, JSON and TOML, errors in one sentence."""

import json
import tomllib
from typing import Annotated, Any, Self

import tomli_w
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PositiveInt, ValidationError

from mixwise.errors import UsageError, unknown


def pair(value: Any) -> Any:
    """One number for both sides: 64 → (64, 64); anything else stays.

    >>> pair(64), pair((32, 48))
    ((64, 64), (32, 48))
    """
    return (value, value) if isinstance(value, int) else value


def _tuples(value: Any) -> Any:
    """Lists as tuples at any depth, so that what was read from a file equals what was written."""
    if isinstance(value, dict):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


Size = Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(pair)]
"""(height, width), at least 1; one number means both."""

Options = Annotated[dict[str, Any], AfterValidator(_tuples)]
"""Free keywords of a mixer or a preset, checked by whoever takes them."""


class Config(BaseModel):
    """Base of all configurations: frozen, no unknown fields, errors in one sentence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def parse(cls, data: dict[str, Any], where: str = "") -> Self:
        """Build from plain data; every mistake becomes one `UsageError` that names the field."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise in_words(error, cls, where) from None

    def to_json(self) -> str:
        """As JSON text."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From JSON text."""
        try:
            return cls.parse(json.loads(text))
        except json.JSONDecodeError as error:
            raise UsageError(f"the text is not valid JSON: {error}") from None

    def to_toml(self) -> str:
        """As TOML text. TOML has no null: fields that are None are left out, and None is their default."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def from_toml(cls, text: str, where: str = "") -> Self:
        """From TOML text."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{where or 'the text'} is not valid TOML: {error}") from None
        return cls.parse(data, where)

    def changed(self, changes: dict[str, Any]) -> Self:
        """A copy with fields replaced, addressed by dotted path: `changed({"optimizer.lr": 1e-3})`."""
        data = self.model_dump(mode="json")
        for path, value in changes.items():
            *parents, last = path.split(".")
            node: Any = data
            free = False  # inside `Options`, where any name may stand
            for key in parents:
                node = node.setdefault(key, {}) if free else node[_key(node, key, path)]
                free = (free or key.split("_")[-1] in ("changes", "options")) and isinstance(node, dict)
            node[last if free else _key(node, last, path)] = value
        return type(self).parse(data)


def in_words(error: ValidationError, cls: type[BaseModel], where: str = "") -> UsageError:
    """What pydantic found wrong with a configuration of a class, one sentence for each field."""
    return UsageError("; ".join(_sentence(cls, e, where) for e in error.errors()))


def _key(node: Any, key: str, path: str) -> str | int:
    """The key or index that a step of a dotted path means in plain data, or a sentence with those that exist."""
    allowed: list[str] = []
    if isinstance(node, dict):
        allowed = list(node)
    elif isinstance(node, list):
        allowed = [str(i) for i in range(len(node))]
    if key not in allowed:
        raise unknown("setting", key, allowed, f"{path!r}")
    return key if isinstance(node, dict) else int(key)


def _sentence(cls: type[BaseModel], error: Any, where: str) -> str:
    path = ".".join(str(part) for part in error["loc"])
    place = f" in {where}" if where else ""
    if error["type"] == "extra_forbidden":
        model: Any = cls
        for part in error["loc"][:-1]:
            field = getattr(model, "model_fields", {}).get(part)
            model = field.annotation if field else None
        return str(unknown("setting", path, getattr(model, "model_fields", {}), where))
    return f"setting {path!r}{place}: {error['msg']}, got {error['input']!r}"
