# ruff: noqa
"""Moved modules in imports, strings and prose: a part of scripts/rename.py."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import subprocess
from collections import Counter, defaultdict
import sys
import tokenize
from io import StringIO
from pathlib import Path

from mypy import nodes
from mypy.modulefinder import BuildSource


def import_edits(edits, module, is_package, table, graph):
    """Names in `from x import name` and names in annotations, by ast."""
    modules, names, _members, _params = table
    tree = ast.parse(edits.text)
    symbols = graph[module].tree.names
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = absolute(node, module, is_package)
            for alias in node.names:
                symbol = (
                    graph[base].tree.names.get(alias.name)
                    if base in graph and graph[base].tree
                    else None
                )
                full = symbol.fullname if symbol else f"{base}.{alias.name}"
                new = names.get(full or "")
                if new is not None:
                    line, column = alias.lineno, edits.column(alias.lineno, alias.col_offset)
                    edits.word(line, column, alias.name, new) or edits.missed.append(
                        (line, alias.name, "import")
                    )
                    if alias.asname == alias.name:
                        ends = edits.column(alias.end_lineno, alias.end_col_offset)
                        edits.word(alias.end_lineno, 0, alias.asname, new, ends=ends)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            listed = node.targets[0].id
            if listed in ("__all__", "__slots__"):
                for text in ast.walk(node.value):
                    if isinstance(text, ast.Constant) and isinstance(text.value, str):
                        full = symbols[text.value].fullname if text.value in symbols else ""
                        new = names.get(full or "") if listed == "__all__" else None
                        if listed == "__slots__":
                            owners = [
                                c
                                for c in ast.walk(tree)
                                if isinstance(c, ast.ClassDef) and node in c.body
                            ]
                            new = (
                                _members.get((f"{module}.{owners[0].name}", text.value))
                                if owners
                                else None
                            )
                        if new is not None:
                            edits.word(
                                text.lineno,
                                edits.column(text.lineno, text.col_offset) + 1,
                                text.value,
                                new,
                            )
        for annotation in annotations(node):
            for part in ast.walk(annotation):
                if (
                    not isinstance(node, ast.Module)
                    and isinstance(part, ast.Constant)
                    and isinstance(part.value, str)
                    and part.lineno == part.end_lineno
                ):
                    if ast.get_source_segment(edits.text, part)[
                        1:-1
                    ] != part.value or " " in part.value.replace(", ", "").replace(" | ", ""):
                        continue
                    start = edits.column(part.lineno, part.col_offset) + 1
                    for word in re.finditer(r"(?<![\w.])[A-Za-z_]\w*", part.value):
                        full = symbols[word.group()].fullname if word.group() in symbols else ""
                        if (new := names.get(full or "")) is not None:
                            edits.word(part.lineno, start + word.start(), word.group(), new)
                if isinstance(part, ast.Name) and part.id in symbols:
                    full = symbols[part.id].fullname or ""
                    if (new := names.get(full)) is not None and full.rpartition(".")[2] == part.id:
                        edits.word(
                            part.lineno, edits.column(part.lineno, part.col_offset), part.id, new
                        )
                if (
                    isinstance(part, ast.Attribute)
                    and isinstance(part.value, ast.Name)
                    and part.value.id in symbols
                ):
                    target = symbols[part.value.id].node
                    if isinstance(target, nodes.MypyFile) and part.attr in target.names:
                        full = target.names[part.attr].fullname or ""
                        if (new := names.get(full)) is not None:
                            edits.word(
                                part.end_lineno,
                                0,
                                part.attr,
                                new,
                                ends=edits.column(part.end_lineno, part.end_col_offset),
                            )


def short(alias):
    return alias.asname is not None and len(alias.asname) <= 2


def move_modules(text, module, is_package, table, graph):
    """The text with moved modules in its imports, names that stand for modules, and dotted paths."""
    modules, names, _members, _params = table
    tree = ast.parse(text)
    bound = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
    }
    bound |= {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    bound |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    imported = Counter(
        alias.asname or alias.name
        for n in ast.walk(tree)
        if isinstance(n, ast.Import | ast.ImportFrom)
        for alias in n.names
    )
    renamed, rewritten, quoted = {}, [], {}

    def local(old, wanted, full):
        """The name by which this file knows a module from now on."""
        if wanted == old or old in bound:
            return old
        if (
            wanted in bound
            or imported[wanted]
            or wanted in dir(builtins)
            or keyword.iskeyword(wanted)
        ):
            parent = full.split(".")[-2]
            wanted = f"{parent}_{wanted}"
            if wanted in bound or imported[wanted]:
                return old
        renamed[old] = wanted
        return wanted

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            parts, changed = [], False
            for alias in node.names:
                new = modules.get(alias.name, alias.name)
                asname = alias.asname
                if (
                    asname
                    and short(alias)
                    and alias.name in graph
                    and alias.name.startswith("superopt")
                ):
                    asname = local(asname, new.rpartition(".")[2], new)
                changed |= (new, asname) != (alias.name, alias.asname)
                parts.append(new + (f" as {asname}" if asname else ""))
            if changed:
                rewritten.append((node, ["import " + ", ".join(parts)]))
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, module, is_package)
            groups, changed = defaultdict(list), False
            for alias in node.names:
                full = f"{base}.{alias.name}"
                if full in graph and full.startswith("superopt."):
                    new_base, _, new_name = modules.get(full, full).rpartition(".")
                    old = alias.asname or alias.name
                    bound_as = old
                    if alias.asname is None or short(alias):
                        bound_as = local(old, new_name, modules.get(full, full))
                    changed |= (new_base, new_name, bound_as) != (base, alias.name, old)
                    item = new_name + (f" as {bound_as}" if bound_as != new_name else "")
                else:
                    new_base = modules.get(base, base)
                    changed |= new_base != base
                    item = alias.name + (f" as {alias.asname}" if alias.asname else "")
                groups[new_base].append(item)
            if changed or (node.level and module in modules):
                rewritten.append(
                    (node, [f"from {b} import " + ", ".join(i) for b, i in groups.items()])
                )
    lines = text.splitlines(keepends=True)
    for node in ast.walk(tree):  # names of modules in quoted annotations
        for annotation in annotations(node):
            for part in ast.walk(annotation):
                if (
                    isinstance(part, ast.Constant)
                    and isinstance(part.value, str)
                    and "." in part.value
                ):
                    line = lines[part.lineno - 1]
                    for old, new in renamed.items():
                        line = re.sub(rf"(?<![\w.]){old}(?=\.\w)", new, line)
                    if len(line) - len(line.lstrip()) == len(lines[part.lineno - 1]) - len(
                        lines[part.lineno - 1].lstrip()
                    ):
                        quoted[part.lineno - 1] = line
    for n in sorted(
        (n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in renamed),
        key=lambda n: (n.lineno, n.col_offset),
        reverse=True,
    ):
        old, raw = n.id, lines[n.lineno - 1].encode()
        end = n.col_offset + len(old)
        if raw[n.col_offset : end].decode(errors="ignore") == old:
            lines[n.lineno - 1] = (raw[: n.col_offset] + renamed[old].encode() + raw[end:]).decode()
        else:  # within an f-string, whose places Python 3.11 does not give
            lines[n.lineno - 1] = re.sub(
                rf"(?<![\w.'\"]){old}(?=\.\w)", renamed[old], lines[n.lineno - 1]
            )
    for number in quoted:
        for old, new in renamed.items():
            lines[number] = re.sub(rf"(?<![\w.]){old}(?=\.\w)", new, lines[number])
    for node, new in sorted(rewritten, key=lambda x: -x[0].lineno):
        head = " " * node.col_offset
        comment = re.search(r"\s+#[^\n]*$", lines[node.end_lineno - 1].rstrip("\n"))
        new = [head + line for line in new]
        new[0] += comment.group() if comment else ""
        lines[node.lineno - 1 : node.end_lineno] = ["\n".join(new) + "\n"]
    return "".join(lines)


def dotted_paths(text, modules, names):
    """The text with the new dotted names and file paths of what moved, in strings and prose too."""
    new = {}
    for old, target in names.items():
        owner, _, _name = old.rpartition(".")
        new[old] = f"{modules.get(owner, owner)}.{target}"
    new |= modules
    for old, target in modules.items():
        new[old.replace(".", "/") + ".py"] = target.replace(".", "/") + ".py"
        for top in ("kernels", "rules", "verifier"):
            if old.startswith(f"superopt.{top}."):
                inner, to = (x.removeprefix("superopt.").replace(".", "/") for x in (old, target))
                new[f"{inner}.py"] = f"{to}.py"
    new |= {target: target for target in modules.values()}
    if not new:
        return text
    words = sorted(new, key=len, reverse=True)
    pattern = re.compile(r"(?<![\w./])(?:" + "|".join(map(re.escape, words)) + r")(?!\w)")
    return "".join(
        line
        if re.match(r"\s*(from|import) ", line)
        else pattern.sub(lambda m: new[m.group()], line)
        for line in text.splitlines(keepends=True)
    )


def annotations(node):
    if isinstance(node, ast.AnnAssign) or (
        isinstance(node, ast.arg) and node.annotation is not None
    ):
        yield node.annotation
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
        yield node.returns
    elif isinstance(node, ast.Module):  # type aliases
        yield from (n.value for n in node.body if isinstance(n, ast.Assign))
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("cast", "TypeVar", "NewType")
    ):
        yield from node.args
    elif isinstance(node, ast.ClassDef):
        yield from node.bases


def absolute(node, module, is_package):
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    drop = node.level - (1 if is_package else 0)
    parts = parts[: len(parts) - drop] if drop else parts
    return ".".join([*parts, *([node.module] if node.module else [])])


def file_of(module):
    path = module.replace(".", "/")
    for top in ("kernels", "rules", "verifier"):
        if module.startswith(f"superopt.{top}."):
            path = path.removeprefix("superopt/")
    return Path(path)


def move_file(old, new):
    """Move a module's file; packages on the way get what a package of this tree has."""
    source, target = file_of(old), file_of(new)
    if not source.with_suffix(".py").exists():
        source, target = source / "__init__.py", target / "__init__.py"
    else:
        source, target = source.with_suffix(".py"), target.with_suffix(".py")
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "mv", str(source), str(target)], check=True)


def read_table(paths):
    modules, names, members, params = {}, {}, {}, {}
    for path in paths:
        for number, line in enumerate(Path(path).read_text().splitlines(), 1):
            line = line.partition("#")[0].strip()
            if not line:
                continue
            old, *rest = line.split()
            if len(rest) != 1:
                sys.exit(f"{path}:{number}: {line!r} is not `OLD NEW`")
            new = rest[0]
            if ":" not in old:
                modules[old] = new
                continue
            module, _, what = old.partition(":")
            if what.endswith(")"):
                what, _, parameter = what[:-1].partition("(")
                params[f"{module}.{what}", parameter] = new
            elif "." in what:
                owner, _, member = what.rpartition(".")
                members[f"{module}.{owner}", member] = new
            else:
                names[f"{module}.{what}"] = new
    return modules, names, members, params


def sources():
    found = []
    for line in subprocess.run(
        ["git", "ls-files", "*.py"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        path = Path(line)
        if not path.exists():
            continue
        parts = path.with_suffix("").parts
        if parts[0] in ("rules", "verifier", "kernels"):
            path, parts = Path("superopt", path), ("superopt", *parts)
        if parts[-1] == "__init__":
            parts = parts[:-1]
        found.append(BuildSource(str(path), ".".join(parts), None))
    return found


class Edits:
    """Replacements of one file: by (line, column) of the old word."""

    def __init__(self, path):
        self.path = path
        self.text = Path(path).read_text()
        self.lines = self.text.splitlines(keepends=True)
        self.at = {}
        self.missed = []
        self.strings = self._strings()

    def _strings(self):
        """Places of string tokens: (first line, first column, last line, last column)."""
        return [
            (t.start, t.end, t.string)
            for t in tokenize.generate_tokens(StringIO(self.text).readline)
            if t.type == tokenize.STRING
        ]

    def column(self, line, utf8):
        """mypy's columns count bytes, as ast's."""
        return len(self.lines[line - 1].encode()[:utf8].decode(errors="ignore"))

    def word(self, line, column, old, new, *, ends=None):
        """Replace the word that starts (or ends) here; False if another is there."""
        if ends is not None:
            column = ends - len(old)
        if column < 0 or line > len(self.lines):
            return False
        text = self.lines[line - 1]
        if text[column : column + len(old)] != old or re.match(r"\w", text[column + len(old) :]):
            return False
        if column and re.match(r"\w", text[column - 1]):
            return False
        self.at[line, column] = (old, new)
        return True

    def inside_string(self, line, old, new, pattern=None):
        """Replace the word in braces of the f-strings that touch this line."""
        pattern = pattern or re.compile(rf"(?<![\w'\"]){re.escape(old)}(?!\w)")
        done = False
        for (l0, c0), (l1, c1), string in self.strings:
            prefix = string[: re.search(r"['\"]", string).start()].lower()
            if not (l0 <= line <= l1) or "f" not in prefix:
                continue
            for n in range(l0, l1 + 1):
                text = self.lines[n - 1]
                lo, hi = (c0 if n == l0 else 0), (c1 if n == l1 else len(text))
                for match in pattern.finditer(text, lo, hi):
                    before = text[lo : match.start()]
                    if before.replace("{{", "").count("{") > before.replace("}}", "").count("}"):
                        self.at[n, match.start()] = (old, new)
                        done = True
        return done

    def result(self):
        lines = list(self.lines)
        for (line, column), (old, new) in sorted(self.at.items(), reverse=True):
            text = lines[line - 1]
            lines[line - 1] = text[:column] + new + text[column + len(old) :]
        return "".join(lines)
