"""Enumerate all graphs of up to two operators of a set, and prove the laws among them.

python examples/generate_rules.py
"""

from pathlib import Path

from superopt.api import check_rules, generate_rules


def main() -> None:
    made = generate_rules(
        "found", ops="Transpose(perm=(1, 0)),Relu,Concat(axis=0)", shapes="x=2x3,y=2x3", max_ops=2
    )
    for family in made.families:
        candidates = sum(level.candidates for level in family.levels)
        print(f"{candidates:,} graphs, {family.laws} laws, {family.rules} rules")
    for file in sorted(Path("found").glob("*.rules")):
        print(file.read_text())
        print([f"{v.name}: {v.decision}" for v in check_rules(file)])


if __name__ == "__main__":
    main()
