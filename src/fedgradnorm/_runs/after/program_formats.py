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

Answering = Callable[[Tensor], Tensor]


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
    def written(self, module: nn.Module, rows: Tensor, columns: str) -> bytes:
        """The program as the bytes of its file."""

    @abstractmethod
    def read(self, program: bytes) -> Answering:
        """The program, ready to run."""


class Pt2(Format):
    """torch.export."""

    def written(self, module: nn.Module, rows: Tensor, columns: str) -> bytes:
        """The exported program; ``columns`` is among its extra files."""
        file = io.BytesIO()
        program = torch.export.export(module, (rows,), dynamic_shapes=_any_rows(), strict=False)
        torch.export.save(program, file, extra_files={"columns.json": columns})
        return file.getvalue()

    def read(self, program: bytes) -> Answering:
        """The program as a module."""
        answer: Answering = torch.export.load(io.BytesIO(program)).module()
        return answer


class Onnx(Format):
    """torch.onnx, run by onnxruntime; the input is ``x``, the output ``y``."""

    needs = ("onnx", "onnxscript", "onnxruntime")

    def written(self, module: nn.Module, rows: Tensor, columns: str) -> bytes:
        """The ONNX model; ``columns`` is among its metadata."""
        with _quiet():
            program = torch.onnx.export(
                module,
                (rows,),
                dynamo=True,
                dynamic_shapes=_any_rows(),
                input_names=["x"],
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

        def answer(x: Tensor) -> Tensor:
            (y,) = session.run(None, {"x": x.numpy()})
            return torch.from_numpy(y)

        return answer


FORMATS: dict[str, Format] = {".pt2": Pt2(), ".onnx": Onnx()}
"""By the ending of the file."""


def _any_rows() -> dict[str, Any]:
    """The input of a program has any number of rows."""
    return {"x": {0: torch.export.Dim("rows", min=1)}}


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
