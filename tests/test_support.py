"""docs/support.md is what tools/support.py makes of vLLM's recipes and of the tests of its families of models."""

import json
import re
import subprocess
import sys
from pathlib import Path

import support

sys.path.insert(0, str(support.ROOT / "tests" / "vllm_plugin"))

from families import ARCHITECTURES, FAMILIES, POOLING, architectures

RECIPES = json.loads((support.ROOT / "tools" / "recipes.json").read_text())["models"]


def test_the_page_and_the_readme_are_up_to_date() -> None:
    tool = support.ROOT / "tools" / "support.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_recipes_are_read_only_with_the_sum_of_their_source(tmp_path: Path) -> None:
    tool = support.ROOT / "tools" / "recipes.py"
    done = subprocess.run([sys.executable, tool, tmp_path], capture_output=True, text=True)
    assert done.returncode == 2 and "required: sha256" in done.stderr


def test_every_family_has_a_recipe_or_stands_for_models_without_one() -> None:
    named = {recipe["architecture"] for recipe in RECIPES}
    families = [*FAMILIES.values(), *POOLING.values()]
    without = {family.kind for family in families if not named & set(architectures(family))}
    # Models that people run, for which vLLM has no recipe, or one that names another class.
    assert without <= {"gemma4_text", "internvl", "mixtral", "olmoe", "qwen3_vl"}, without
    tested = {family.kind for family in families if not family.architecture}
    assert tested == set(ARCHITECTURES), "a kind without a family"


def test_the_page_names_the_families_of_two_ranks() -> None:
    source = (support.ROOT / "tests" / "vllm_plugin" / "test_families.py").read_text()
    cases = source.split("def test_two_ranks_share")[0].rsplit("parametrize(", 1)[1]
    shared = set(re.findall(r'\("(\w+)", \{', cases))
    assert shared <= set(FAMILIES) and shared
    [named] = re.findall(
        r"On two ranks, too: (.*)\.$", (support.ROOT / "docs" / "support.md").read_text(), re.M
    )
    assert set(re.findall(r"`(\w+)`", named)) == shared | {"d3"}, "d3: test_encoders.py"


def test_a_model_is_served_in_no_precision_that_its_recipe_lacks() -> None:
    page = (support.ROOT / "docs" / "support.md").read_text()
    listed = {recipe["model"]: recipe["precisions"] for recipe in RECIPES}
    rows = [
        line.split(" | ")
        for line in page.splitlines()
        if line.removeprefix("| ").split(" | ")[0] in listed
    ]
    assert len(rows) == len(RECIPES)
    for model, precisions, _, reason, _, tests in (
        [cell.strip(" |") for cell in row] for row in rows
    ):
        assert bool(precisions) != bool(reason), model
        assert bool(precisions) == bool(tests), model
        assert set(filter(None, precisions.split(", "))) <= set(listed[model]), model
