"""Write two rules, one of them wrong; prove the one, refute the other, and optimize with the first.

python examples/write_and_prove_a_rule.py
"""

from pathlib import Path

import small_model

import superopt
from superopt.api import check_rules

RULES = """
# Two Transposes of a matrix cancel.
transpose-twice(x: f[n, m]): Transpose(Transpose(x, perm=(1, 0)), perm=(1, 0)) => x

# Wrong: the softmax is over the other axis.
softmax-transpose(x: f[n, m]):
    Softmax(Transpose(x, perm=(1, 0)), axis=1) => Transpose(Softmax(x, axis=1), perm=(1, 0))
"""


def main() -> None:
    Path("own.rules").write_text(RULES)
    for verdict in check_rules("own.rules"):
        print(f"{verdict.name}: {verdict.decision}, float class {verdict.computed or 'unknown'}")
        for line in verdict.counterexample:
            print("   ", line)

    proved = RULES.partition("# Wrong")[0]
    Path("proved.rules").write_text(proved)
    result = superopt.optimize(
        small_model.write(), rules=["proved.rules"], library=False, cost="roofline", budget=20
    )
    print([step.rule for step in result.report.steps])


if __name__ == "__main__":
    main()
