"""Published rules read as graphs: the texts of TASO and Tensat, on rules written here."""

from pathlib import Path

import pytest

from scripts.bench_equations import Equation, holds
from scripts.bench_published import main, renamed
from scripts.taso import IllFormed, read_rules
from scripts.taso_graphs import build
from superopt.errors import UsageError
from superopt.ir.text import show_graph

APPLIED = (
    "transpose(ewadd(input_1,matmul(input_2,input_3)))"
    "==ewadd(transpose(input_1),matmul(transpose(input_3),transpose(input_2)))"
    "conv2d(1,1,0,2,input_7,enlarge(3,3,input_8))==relu(conv2d(1,1,0,0,input_7,input_8))\n"
    "smul(poolavg(3,3,1,1,0,input_7),input_20)==poolmax(3,3,1,1,0,smul(input_7,input_20))\n"
)
TWO_RESULTS = (
    "(relu ?input_1)=>(split_0 (split 1 (relu (concat 1 3 ?input_1 ?input_2))))\n"
    "(relu ?input_2)=>(split_1 (split 1 (relu (concat 1 3 ?input_1 ?input_2))))\n"
)


def written(folder: Path, text: str) -> Path:
    path = folder / "list.txt"
    path.write_text(text)
    return path


def true(text: str, folder: Path) -> list[bool]:
    built = [build((r,)) for r in read_rules(written(folder, text))]
    return [holds(Equation("", "", b.left, b.right, True, False)) for b in built]


def test_a_list_is_read_and_judged(tmp_path: Path) -> None:
    assert true(APPLIED, tmp_path) == [True, True, False]


def test_sizes_differ_where_they_may(tmp_path: Path) -> None:
    first, second, _ = read_rules(written(tmp_path, APPLIED))
    assert show_graph(build((first,)).left) == (
        "graph {\n  input_1: f32[2, 3]\n  input_2: f32[2, 4]\n  input_3: f32[4, 3]\n"
        "  %0 = MatMul(input_2, input_3)\n  %1 = Add(input_1, %0)\n  %2 = Transpose(%1)\n"
        "  return %2\n}\n"
    )
    kernel = build((second,)).right.inputs[1]
    assert kernel.type.shape is not None
    assert kernel.type.shape[2:] == (3, 1)  # which is enlarged to 3 by 3


def test_two_rules_are_a_graph_of_two_outputs(tmp_path: Path) -> None:
    first, second = read_rules(written(tmp_path, TWO_RESULTS))
    both = build((first, second)).right
    assert "Split(%1, axis=1, split=(3, 5))" in show_graph(both)
    assert len(both.outputs) == 2


def test_rules_of_other_names_are_the_same(tmp_path: Path) -> None:
    rules = read_rules(written(tmp_path, "relu(input_4)==input_4\nrelu(input_9)==input_9"))
    one, other = (renamed((r,)) for r in rules)
    assert one == other


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("matmul(input_1,matmul(input_1,input_1))==concat(0,input_1,input_1)", "no small sizes"),
        ("relu(input_1)==split_0(1,input_1)", "nothing was joined"),
        ("conv2d(1,1,0,0,input_1,Iconv(3,3))==enlarge(3,3,Cpool(5,5))", "no small sizes"),
        ("poolavg(3,3,1,1,0,Iconv(3,3))==Cpool(5,5)", "differ by 2"),
        ("smul(input_1,input_2)==transpose(input_2)", "transpose of rank 0"),
    ],
)
def test_what_has_no_shapes_is_not_built(tmp_path: Path, rule: str, why: str) -> None:
    (read,) = read_rules(written(tmp_path, rule))
    with pytest.raises(IllFormed, match=why):
        build((read,))


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("relu(input_1)==input_1\nrelu(input_1", 2, r"'the end' stands where '\)' is expected"),
        ("relu(input_1)=input_1", 1, "'=' is not part of a rule"),
        ("\n\nsoftmax(input_1)==input_1", 3, "softmax is no operator of TASO"),
        ("relu(input_1,input_2)==input_1", 1, "relu takes 1 arguments, not 2"),
        ("(relu ?input_1)=>?input_1\n(matmul 7)=>?input_1", 2, "matmul takes 2 or 3 arguments"),
        ("enlarge(3,input_1,input_2)==input_1", 1, "argument 2 of enlarge is a number"),
        ("conv2d(1,1,0,9,input_1,input_2)==input_1", 1, "9 is no code of activation"),
    ],
)
def test_what_is_no_list_says_its_line(tmp_path: Path, text: str, line: int, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        read_rules(written(tmp_path, text))
    assert f"list.txt:{line}: not a rule" in caught.value.what


def test_an_empty_list_and_none_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no rules"):
        read_rules(written(tmp_path, "\n"))
    with pytest.raises(UsageError, match="cannot read"):
        read_rules(tmp_path / "none.txt")


def test_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    applied = written(tmp_path, APPLIED)
    pairs = tmp_path / "pairs.txt"
    pairs.write_text(TWO_RESULTS)
    assert main([str(applied), "--pairs", str(pairs), "--limit", "20"]) == 0
    out = capsys.readouterr().out
    assert "| list.txt | 3 | 3 | 2 | 0 | 2 |" in out
    assert "| pairs.txt | 1 | 1 | 1 | 0 | 1 |" in out
    assert "list.txt:2: smul(poolavg(3,3,1,1,0,input_7),input_20)" in out
    assert main(["--pairs", str(applied)]) == UsageError.code
    assert "list.txt:2: a rule without its second" in capsys.readouterr().err
