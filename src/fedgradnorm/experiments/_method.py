"""What a method is: a weighting, and the settings that go with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedgradnorm._errors import ConfigError, FedGradNormError
from fedgradnorm._options import check_options, options_of
from fedgradnorm.weighting import Needs, Weighting


@dataclass(frozen=True)
class Method:
    """A weighting and the settings that make it a published (or our own) method.

    ``fixed`` are options of the weighting and ``settings`` fields of
    ``Settings`` that cannot be chosen otherwise under this name. ``cost`` is the server's work in a
    round, with N clients and D shared parameters, beside the weighted sum of updates (N D)
    itself.
    """

    name: str
    summary: str
    paper: str
    weighting: Callable[..., Weighting]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    cost: str = "N"

    def options(self) -> dict[str, inspect.Parameter]:
        """What ``[weighting]`` may hold with this method."""
        return options_of(self.weighting, without=self.fixed)

    def build(self, options: Mapping[str, Any] | None = None) -> Weighting:
        """The weighting with these options; a wrong name or value is a ConfigError.

        TOML has no null: "none" stands for None, for options that can be None.
        """
        allowed = self.options()
        given = {
            name: None if value == "none" and _may_be_none(allowed.get(name)) else value
            for name, value in (options or {}).items()
        }
        what = f"the weighting of method {self.name!r}"
        check_options(what, given, allowed)
        try:
            return self.weighting(**self.fixed, **given)
        except FedGradNormError:
            raise
        except Exception as error:  # a value of the wrong kind may fail anywhere in there
            reason = str(error) or type(error).__name__
            raise ConfigError(f"{what} cannot be made with {given}: {reason}") from error

    @property
    def needs(self) -> Needs:
        """What the server must see of a client, beside the sum of updates."""
        return getattr(self.weighting, "needs", Needs.NOTHING)

    @property
    def state(self) -> tuple[str, ...]:
        """What the server keeps per client from round to round."""
        starts: Mapping[str, float] = getattr(self.weighting, "starts", {})
        return ("weight", *starts) if self.needs or starts else ()

    @property
    def beyond_sums(self) -> str:
        """What the server must see of its clients beside sums over them; "": nothing."""
        return getattr(self.weighting, "beyond_sums", "")


def _may_be_none(option: inspect.Parameter | None) -> bool:
    return option is not None and str(option.annotation).endswith("| None")
