"""Describe cookbooks for the index: recipes as plain data, checked against each other."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.model.errors import BadCookbook
from stoker.plan.recipe import Category, Cookbook


def describe(cookbooks: Sequence[Cookbook]) -> list[dict[str, Any]]:
    """Give every recipe as data, in the order of categories, then by name."""
    entries: dict[str, dict[str, Any]] = {}
    for cookbook in cookbooks:
        for recipe in cookbook.recipes:
            if recipe.name in entries:
                first = entries[recipe.name]["cookbook"]
                where = f"is in two cookbooks, {first} and {cookbook.name}"
                raise BadCookbook(
                    f"recipe {recipe.name} {where if first != cookbook.name else f'is twice in cookbook {first}'}",
                    hint="uninstall one, or rename its recipe",
                )
            entries[recipe.name] = {
                "name": recipe.name,
                "cookbook": cookbook.name,
                "summary": recipe.summary,
                "category": str(recipe.category),
                "backend": recipe.backend,
                "version": recipe.version,
                "inputs": [str(kind.ref()) for kind in recipe.inputs],
                "output": str(recipe.output.ref()),
                "args": recipe.args.schema(),
                "prefill": recipe.args.prefill(cookbook.prefill.get(recipe.name, {})),
            }
    order = [str(category) for category in Category]
    return sorted(entries.values(), key=lambda entry: (order.index(entry["category"]), entry["name"]))


def files_of(cookbooks: Mapping[str, Cookbook]) -> list[str]:
    """Give the source files that cookbooks, by the module that has them, are made of as far as they are imported."""
    packages: set[str] = set()
    for declaring, cookbook in cookbooks.items():
        modules = {recipe.compile.__module__ for recipe in cookbook.recipes} | {
            stage.module for stage in cookbook.stages
        }
        packages |= {declaring, *modules, *(module.rpartition(".")[0] or module for module in modules)}
    files = set()
    for name, module in list(sys.modules.items()):
        if any(name == package or name.startswith(f"{package}.") for package in packages):
            file = getattr(module, "__file__", None)
            if file and os.path.isfile(file):
                files.add(os.path.abspath(file))
    return sorted(files)
