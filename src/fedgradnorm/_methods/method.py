"""A method: a weighting and settings under a name, with its source, equation and cost."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedgradnorm._checks import shown
from fedgradnorm._errors import ConfigError, FedGradNormError, choose
from fedgradnorm._options import check_options, options_of
from fedgradnorm._registry import Registry, calling_module
from fedgradnorm._round.settings import FIELDS, Settings, key_of, name_of, unknown
from fedgradnorm.weighting import Needs, Weighting

DEFAULT = "fedgradnorm-direct"
LOCAL = "local"
"""The method that shares nothing: every client trains alone."""


@dataclass(frozen=True, repr=False)
class Method:
    """A weighting and settings under a name, for ``fgn.train(method=...)`` and config files.

    :meth:`register` makes the name known, so a module that registers one needs only be imported:

    >>> from fedgradnorm.weighting import Equal
    >>> with METHODS.restored():
    ...     _ = Method("prox-1", Equal, settings={"local.proximal": 1.0}).register()
    ...     find_method("prox-1").settings
    {'proximal': 1.0}

    Args:
        name: what the method is called.
        weighting: a class of weighting, or a function that returns one.
        fixed: options of the weighting that the name stands for.
        settings: settings that the name stands for, such as ``{"local.proximal": 0.01}``. The
            group may be left out; the names are stored without it.
        tunable: those of ``settings`` that a run may set to another value, as FedProx's mu.
        summary: what it does, in a few words.
        source: the paper it comes from.
        equation: the rule in LaTeX, in the symbols of the page on methods.
        cost: the server's work per round, with N clients and D shared parameters, in addition to
            the weighted sum of updates (N D).
    """

    name: str
    weighting: Callable[..., Weighting]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    tunable: Sequence[str] = ()
    summary: str = ""
    source: str = ""
    equation: str = ""
    cost: str = "N"

    def __post_init__(self) -> None:
        if not callable(self.weighting):
            raise ConfigError(
                f"method {self.name!r}: weighting must be a class of fgn.Weighting, or a function "
                f"that returns one, not {shown(self.weighting)}"
            )
        for key in (*self.settings, *self.tunable):
            if not name_of(key) and key not in FIELDS:
                raise ConfigError(f"method {self.name!r}: {unknown(key)}")
        flat = {name_of(key) or key: value for key, value in self.settings.items()}
        object.__setattr__(self, "settings", flat)
        tunable = tuple(name_of(key) or key for key in self.tunable)
        for name in tunable:
            choose(name, flat, f"setting of method {self.name!r} in tunable")
        object.__setattr__(self, "tunable", tunable)

    def __repr__(self) -> str:
        return f"Method({self.name!r}: {self.summary})"

    def register(self) -> Method:
        """Make the name known to ``fgn.train`` and to config files, and return the method."""
        return METHODS.register(self.name, self, calling_module())

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
    def fixes(self) -> dict[str, Any]:
        """The settings that no run of this method can change."""
        return {name: value for name, value in self.settings.items() if name not in self.tunable}

    def applied(self, settings: Settings, said: Collection[str]) -> Settings:
        """The settings with those of the method, except for tunable ones that are ``said``.

        ``said`` names the settings that somebody gave. It is a ConfigError if one of them has
        another value than the method's, and is not tunable.
        """
        for name, fixed in self.fixes.items():
            if name in said and (value := getattr(settings, name)) != fixed:
                raise ConfigError(
                    f"{key_of(name)} = {value!r} conflicts with method {self.name!r}, which is "
                    f"{name} = {fixed!r}; leave it out or choose another method"
                )
        return replace(settings, **{k: v for k, v in self.settings.items() if k not in said})

    def weigh(self, weighting: Weighting | Mapping[str, Any] | None) -> Weighting:
        """The method's weighting: from its options, or a given one if it is of this method."""
        if not isinstance(weighting, Weighting):
            return self.build(weighting)
        fixed = all(getattr(weighting, key, None) == value for key, value in self.fixed.items())
        if type(weighting) is not self.weighting or not fixed:
            maker = getattr(self.weighting, "__name__", str(self.weighting))
            fixes = ", ".join(f"{key}={value!r}" for key, value in self.fixed.items())
            raise ConfigError(
                f"method {self.name!r} weighs clients with {maker}({fixes}), not with "
                f"{type(weighting).__name__}; leave weighting out, or give options of it such as "
                "weighting={...}"
            )
        return weighting

    @property
    def needs(self) -> Needs:
        """What the server must see of a client, besides the sum of updates."""
        sizes = Needs.SIZE if self.settings.get("aggregate") == "by_size" else Needs.NOTHING
        return getattr(self.weighting, "needs", Needs.NOTHING) | sizes

    @property
    def beyond_sums(self) -> str:
        """What the server must see of its clients besides sums over them; "": nothing."""
        return getattr(self.weighting, "beyond_sums", "")


def _may_be_none(option: inspect.Parameter | None) -> bool:
    return option is not None and str(option.annotation).endswith("| None")


def find_method(name: object) -> Method:
    """The method of that name; a ConfigError with the nearest valid name if there is none."""
    if not isinstance(name, str):
        kind = name if isinstance(name, type) else type(name)
        way = "; a weighting is given as weighting=..." if issubclass(kind, Weighting) else ""
        raise ConfigError(f"method must be a name such as {DEFAULT!r}, not {shown(name)}{way}")
    return METHODS.find(name)


def methods() -> dict[str, Method]:
    """Every registered method by name: its summary, source, equation, cost and options.

    >>> methods()["fedprox"].source
    'Li, Sahu et al. 2020, algorithm 2'
    """
    return dict(METHODS)


METHODS = Registry[Method](
    "method",
    [f"{__package__}.{name}" for name in ("paper", "losses", "products", "gradients", "personal")],
)
"""Every method that ``method = "..."`` can name, in the order of tables."""
