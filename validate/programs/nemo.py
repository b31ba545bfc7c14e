"""NeMo: `nemo.yaml` put over a configuration of Megatron-Bridge, as its programs do it.

Transformer Engine does not install without CUDA; modules of its name stand in for it, empty.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import sys
import types
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any


class _Nothing(type):
    def __getattr__(cls, name: str) -> Any:
        return cls


class _Empty(types.ModuleType):
    __path__ = ()
    __version__ = "2.10.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {})


class _StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> Any:
        if name.partition(".")[0] in ("transformer_engine", "transformer_engine_torch"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


@dataclass
class Recipe:
    """The parts of a recipe that the file sets."""

    model: Any
    train: Any
    ddp: Any


def main(folder: str) -> None:
    """Print what Megatron-Bridge understood of the files of a folder."""
    warnings.simplefilter("ignore")
    sys.meta_path.insert(0, _StandIn())
    given = json.loads(Path(folder, "ask.json").read_text("utf-8"))
    with contextlib.redirect_stdout(io.StringIO()):
        from megatron.bridge.models.gpt_provider import GPTModelProvider
        from megatron.bridge.training.config import DistributedDataParallelConfig, TrainingConfig
        from megatron.bridge.training.utils.omegaconf_utils import (
            apply_overrides,
            create_omegaconf_dict_config,
        )
        from omegaconf import OmegaConf

        def build(**other: Any) -> Recipe:
            recipe = Recipe(
                GPTModelProvider(**given["model"]),
                TrainingConfig(),
                DistributedDataParallelConfig(),
            )
            known, excluded = create_omegaconf_dict_config(recipe)
            OmegaConf.set_struct(known, True)
            file = OmegaConf.load(Path(folder, "nemo.yaml"))
            merged = OmegaConf.merge(known, file, OmegaConf.create(other))
            values = OmegaConf.to_container(merged, resolve=True)
            apply_overrides(recipe, values, excluded)
            recipe.model.finalize()
            recipe.ddp.finalize()
            return recipe

        recipe = build()
        understood = {}
        for name in given["names"]:
            part, _, key = name.partition(".")
            value = getattr(getattr(recipe, part), key)
            understood[name] = value if isinstance(value, int | float | str | None) else str(value)
        try:
            build(model={"no_such_field": 1})
        except Exception as error:  # noqa: BLE001 - whatever it raises
            understood["another key"] = f"refused: {type(error).__name__}"
        else:
            understood["another key"] = "taken"
    said = {"version": version("megatron-bridge"), "understood": understood}
    print(json.dumps(said, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1])
