"""Writes the fields that transformers' decoder families leave to their class.

Run: ``python benchmarks/plan_families.py transformers-….whl``. Sources are read, nothing is
installed. ``plan/describe/families.json`` has the sizes that a ``config.json`` may leave out, and
other names of fields, per ``model_type``.
"""

import argparse
import ast
import json
import re
import zipfile
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[1] / "plan" / "describe" / "families.json"
MAPPING = "transformers/models/auto/modeling_auto.py"
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
)
OTHER_NAMES = {
    "intermediate_size": ("ffn_dim", "ffn_hidden_size", "n_inner", "dff", "dim_ff"),
    "num_attention_heads": ("attention_heads", "num_heads"),
    "num_hidden_layers": ("num_layers",),
    "num_experts_per_tok": ("moe_k", "moe_topk"),
}
"""Names of fields that no class declares as the usual one."""
POPPED = {"bloom": {"hidden_size": "n_embed"}, "falcon": {"hidden_size": "n_embed"}}
"""Names that classes take out of the file by hand."""


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    table = {}
    with zipfile.ZipFile(parser.parse_args().wheel) as files:
        decoders = decoder_families(files.read(MAPPING).decode())
        for name in files.namelist():
            if re.fullmatch(r"transformers/models/\w+/configuration_\w+\.py", name):
                source = files.read(name).decode()
                for node in ast.parse(source).body:
                    if isinstance(node, ast.ClassDef):
                        family, facts = facts_of(node)
                        if family in decoders or family.endswith("_text"):
                            table[family] = facts
    lines = [
        f"{json.dumps(name)}: {json.dumps(table[name], sort_keys=True)}" for name in sorted(table)
    ]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(table)} families")


def decoder_families(source: str) -> set[str]:
    """Return the families that generate text."""
    start = source.index("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = ")
    return set(re.findall(r'\("([\w-]+)", "', source[start : source.index("\n)\n", start)]))


def facts_of(node: ast.ClassDef) -> tuple[str, dict[str, dict[str, object]]]:
    """Return a class's family, and its defaults and aliases."""
    values: dict[str, Any] = {}
    for line in node.body:
        if not isinstance(line, ast.Assign | ast.AnnAssign) or line.value is None:
            continue
        target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
        if isinstance(target, ast.Name):
            try:
                values[target.id] = ast.literal_eval(line.value)
            except ValueError:
                continue
    names = values.get("attribute_map", {})
    aliases = {k: v for k, v in names.items() if k in SIZES and not v.startswith("moe_")}
    for name, others in OTHER_NAMES.items():
        found = [other for other in others if other in values and name not in values]
        if found and name not in aliases:
            aliases[name] = found[0]
    defaults = {k: values.get(aliases.get(k, k)) for k in SIZES}
    known = {k: v for k, v in defaults.items() if isinstance(v, int)}
    family = str(values.get("model_type", ""))
    return family, {"aliases": aliases | POPPED.get(family, {}), "defaults": known}


if __name__ == "__main__":
    main()
