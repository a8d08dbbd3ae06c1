"""The files that a program can be written to: PyTorch's own (.pt2) and ONNX (.onnx).

Each holds, beside the program, what its input columns are: a JSON text called ``columns``.
"""

from __future__ import annotations

import io
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._errors import ConfigError
from fedgradnorm.models._input_rows import Fields, Inputs, Sequences, call_arguments

Answering = Callable[[Inputs], Tensor]


class Format(ABC):
    """How a module is written as a program for any number of rows, and read back."""

    needs: tuple[str, ...] = ()

    def check(self) -> None:
        """A ConfigError where a package is missing."""
        for package in self.needs:
            if find_spec(package) is None:
                raise ConfigError(
                    f"an .onnx file needs {package}; install it with: "
                    "pip install 'fedgradnorm[onnx]', or write a .pt2 file"
                )

    @abstractmethod
    def written(self, module: nn.Module, rows: Inputs, columns: str) -> bytes:
        """The program as the bytes of its file."""

    @abstractmethod
    def read(self, program: bytes) -> Answering:
        """The program, ready to run."""


class Pt2(Format):
    """torch.export."""

    def written(self, module: nn.Module, rows: Inputs, columns: str) -> bytes:
        """The exported program; ``columns`` is among its extra files."""
        file = io.BytesIO()
        positional, named, shapes = _signature(rows)
        program = torch.export.export(
            module, positional, named, dynamic_shapes=shapes, strict=False
        )
        torch.export.save(program, file, extra_files={"columns.json": columns})
        return file.getvalue()

    def read(self, program: bytes) -> Answering:
        """The program as a module."""
        module = torch.export.load(io.BytesIO(program)).module()

        def answer(x: Inputs) -> Tensor:
            positional, named = call_arguments(x)
            found: Tensor = module(*positional, **named)
            return found

        return answer


class Onnx(Format):
    """torch.onnx, run by onnxruntime; inputs have their names or are ``x``, the output is ``y``."""

    needs = ("onnx", "onnxscript", "onnxruntime")

    def written(self, module: nn.Module, rows: Inputs, columns: str) -> bytes:
        """The ONNX model; ``columns`` is among its metadata."""
        positional, named, shapes = _signature(rows)
        with _quiet():
            program = torch.onnx.export(
                module,
                positional,
                kwargs=named,
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=[*(["x"] if positional else []), *named],
                output_names=["y"],
                verbose=False,
            )
            assert program is not None
            model: Any = program.model_proto
        model.metadata_props.add(key="columns", value=columns)
        content: bytes = model.SerializeToString()
        return content

    def read(self, program: bytes) -> Answering:
        """The model in a session of onnxruntime, on the CPU."""
        import onnxruntime

        session = onnxruntime.InferenceSession(program, providers=["CPUExecutionProvider"])

        def answer(x: Inputs) -> Tensor:
            positional, named = call_arguments(x)
            every = {**({"x": positional[0]} if positional else {}), **named}
            (y,) = session.run(None, {name: part.numpy() for name, part in every.items()})
            return torch.from_numpy(y)

        return answer


FORMATS: dict[str, Format] = {".pt2": Pt2(), ".onnx": Onnx()}
"""By the ending of the file."""


def _signature(x: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor], dict[str, Any]]:
    """How a program is called with the rows, for any number of rows, and of steps if it has some.

    Sequences may be of different lengths, so each has a number of steps of its own.
    """
    positional, named = call_arguments(x)
    rows = torch.export.Dim("rows", min=1)
    if isinstance(x, Tensor):
        return positional, named, {"x": {0: rows}}
    if isinstance(x, Sequences):
        steps = {0: rows, 1: torch.export.Dim("steps", min=1)}
        return positional, named, {"x": steps, "mask": steps}
    assert isinstance(x, Fields)
    shapes: dict[str, Any] = {}
    for name, part in x.fields.items():
        shapes[name] = {0: rows}
        if isinstance(part, Sequences):
            shapes[name] |= {1: torch.export.Dim(f"steps_{name}", min=1)}
            shapes[f"{name}_mask"] = shapes[name]
    return positional, named, shapes


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch.onnx says about packages that are not there, and about itself."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
