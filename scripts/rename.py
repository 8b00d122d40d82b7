#!/usr/bin/env python3
# ruff: noqa
"""Rename modules, functions, classes, constants, methods, fields and parameters by a table.

    scripts/rename.py TABLE... [--dry-run]

Each line of a table is `OLD NEW`; `#` starts a comment. OLD is one of

    package.module                      a file; NEW is the dotted path of the new file
    package.module:name                 a function, class or constant of a module
    package.module:Class.member         a method, field or property (of subclasses, too)
    package.module:function(parameter)  a parameter, or `Class.method(parameter)`

and NEW the bare new name but for files. mypy resolves every reference, so what has the same name
and is something else stays. Prose and strings are not changed; what they still say is listed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
import tokenize
from io import StringIO
from pathlib import Path

from mypy import build, nodes, types
from mypy.modulefinder import BuildSource
from mypy.options import Options
from rename_modules import (
    Edits,
    dotted_paths,
    import_edits,
    move_file,
    move_modules,
    read_table,
    sources,
)

ROOT = Path.cwd()
IDENT = re.compile(r"\w+")


VISITS = {
    "FuncDef": "visit_func_def",
    "ClassDef": "visit_class_def",
    "NameExpr": "visit_name_expr",
    "MemberExpr": "visit_member_expr",
    "CallExpr": "visit_call_expr",
    "ClassPattern": "visit_class_pattern",
}


class Renamer:
    def __init__(self, tree, edits, result, table):
        self.tree, self.edits, self.types = tree, edits, result
        self.modules, self.names, self.members, self.params = table
        self.by_var, self.seen, self.alive = {}, set(), []
        self.functions = []
        self.classes = []

    # -- walking: mypy's visitors are compiled and take no interpreted subclass

    NOT_CHILDREN = frozenset(
        [
            "node",
            "info",
            "type",
            "unanalyzed_type",
            "definition",
            "metaclass",
            "removed_base_type_exprs",
            "original_def",
            "related",
            "def_frame",
            "typevars",
            "type_vars",
            "names",
            "var",
            "variables",
            "analyzed_type",
            "alias_tvars",
            "type_guard",
            "literal_hash",
            "expanded",
            "original_first_arg",
            "min_args",
            "defn",
            "mro",
            "bases",
            "imports",
            "plugin_deps",
            "future_import_flags",
            "unreachable_lines",
            "alias_deps",
            "path",
            "removed_statements",
            "inferred_types",
            "new_syntax",
            "function_type",
            "method_types",
        ]
    )
    ATTRIBUTES = {}

    def children(self, node):
        kind = type(node)
        names = self.ATTRIBUTES.get(kind)
        if names is None:
            names = [
                n
                for n in dir(kind)
                if not n.startswith("_")
                and n not in self.NOT_CHILDREN
                and not callable(getattr(kind, n, None))
            ]
            self.ATTRIBUTES[kind] = names
        for name in names:
            try:
                value = getattr(node, name, None)
            except AssertionError:  # a property that holds only after another phase
                continue
            self.each(value)

    def each(self, value):
        if isinstance(value, (list, tuple)):
            for item in value:
                self.each(item)
        elif (
            (
                isinstance(value, nodes.Node)
                and not isinstance(value, (nodes.Var, nodes.TypeInfo, nodes.MypyFile))
            )
            or isinstance(value, nodes.Argument)
            or type(value).__module__ == "mypy.patterns"
        ):
            self.accept(value)

    def accept(self, node):
        if id(node) in self.seen:
            return
        self.seen.add(id(node))
        self.alive.append(node)
        method = getattr(self, VISITS.get(type(node).__name__, ""), None)
        if method is not None:
            method(node)
        else:
            self.children(node)

    # -- declarations

    def _defined(self, node, keyword, old, new):
        line = node.line
        for n in range(line, line + 60):
            if n > len(self.edits.lines):
                break
            m = re.match(
                rf"\s*(?:async\s+)?{keyword}\s+({re.escape(old)})\b", self.edits.lines[n - 1]
            )
            if m:
                self.edits.word(n, m.start(1), old, new)
                return
        self.edits.missed.append((line, old, f"definition after {self.edits.lines[line - 1]!r}"))

    def _member_new(self, info, name):
        for base in info.mro:
            if (new := self.members.get((base.fullname, name))) is not None:
                return new
        return None

    def visit_mypy_file(self, o):
        self.children(o)

    def visit_func_def(self, o):
        name = o.name
        if o.info and (not self.functions or self.classes[-1:] == [o.info]):
            if (new := self._member_new(o.info, name)) is not None:
                self._defined(o, "def", name, new)
        elif (new := self.names.get(o.fullname)) is not None and not self.functions:
            self._defined(o, "def", name, new)
        for argument in o.arguments:
            var = argument.variable
            new = self.param_new(o, var.name)
            if new is not None:
                self.by_var[id(var)] = new
                column = self.edits.column(argument.line, argument.column)
                any(
                    self.edits.word(argument.line, column + stars, var.name, new)
                    for stars in range(3)
                ) or self.edits.missed.append((argument.line, var.name, "parameter"))
        self.functions.append(o)
        saved, self.classes = self.classes, []
        self.children(o)
        self.classes = saved
        self.functions.pop()

    def param_new(self, o, parameter):
        full = o.fullname
        if (new := self.params.get((full, parameter))) is not None:
            return new
        if o.info:
            for base in o.info.mro[1:]:
                if (new := self.params.get((f"{base.fullname}.{o.name}", parameter))) is not None:
                    return new
        return None

    def visit_class_def(self, o):
        if not self.functions and not self.classes:
            if (new := self.names.get(o.fullname)) is not None:
                self._defined(o, "class", o.name, new)
        self.classes.append(o.info)
        for statement in o.defs.body:
            if isinstance(statement, nodes.AssignmentStmt):
                for lvalue in statement.lvalues:
                    if isinstance(lvalue, nodes.NameExpr):
                        new = self._member_new(o.info, lvalue.name)
                        if new is not None:
                            self._name(lvalue, new)
        self.children(o)
        self.classes.pop()

    # -- references

    def _name(self, o, new):
        column = self.edits.column(o.line, o.column)
        if not self.edits.word(o.line, column, o.name, new):
            if not self.edits.inside_string(o.line, o.name, new):
                self.edits.missed.append((o.line, o.name, "name"))

    def visit_name_expr(self, o):
        node = o.node
        if node is not None and id(node) in self.by_var:
            self._name(o, self.by_var[id(node)])
        elif o.kind == nodes.GDEF or (node is not None and getattr(node, "fullname", None)):
            full = getattr(node, "fullname", o.fullname)
            new = self.names.get(full)
            if new is not None and full.rpartition(".")[2] == o.name:
                self._name(o, new)
        self.children(o)

    def visit_member_expr(self, o):
        new = self.member_expr_new(o)
        if new is not None and new != o.name:
            line = o.end_line or o.line
            ends = self.edits.column(line, o.end_column or 0)
            if not self.edits.word(line, 0, o.name, new, ends=ends):
                pattern = re.compile(rf"(?<=\.){re.escape(o.name)}(?!\w)")
                if not self.edits.inside_string(o.line, o.name, new, pattern):
                    self.edits.missed.append((o.line, o.name, "member"))
        self.children(o)

    def member_expr_new(self, o):
        if isinstance(o.expr, nodes.RefExpr) and isinstance(o.expr.node, nodes.MypyFile):
            symbol = o.expr.node.names.get(o.name)
            full = symbol.fullname if symbol else o.fullname
            return self.names.get(full or "")
        typ = self.types.get(o.expr)
        if typ is None and isinstance(o.expr, nodes.RefExpr):
            if isinstance(o.expr.node, nodes.TypeInfo):
                return self._member_new(o.expr.node, o.name)
        return self.of_type(typ, o.name)

    def of_type(self, typ, name):
        typ = types.get_proper_type(typ)
        if isinstance(typ, types.Instance):
            new = self._member_new(typ.type, name)
            if new is None and typ.last_known_value:
                return self.of_type(typ.last_known_value, name)
            return new
        if isinstance(typ, types.UnionType):
            for item in typ.items:
                if (new := self.of_type(item, name)) is not None:
                    return new
        if isinstance(typ, types.CallableType) and typ.is_type_obj():
            return self._member_new(typ.type_object(), name)
        if isinstance(typ, types.TypeType):
            return self.of_type(typ.item, name)
        if isinstance(typ, types.TypeVarType):
            return self.of_type(typ.upper_bound, name)
        if isinstance(typ, types.TupleType):
            return self.of_type(typ.partial_fallback, name)
        if isinstance(typ, types.Overloaded) and typ.is_type_obj():
            return self._member_new(typ.type_object(), name)
        return None

    def visit_call_expr(self, o):
        self._attribute_string(o)
        for name, value in zip(o.arg_names, o.args, strict=True):
            if name is None:
                continue
            new = self.keyword_new(o, name)
            if new is not None:
                self._keyword(value, name, new)
        self.children(o)

    def _attribute_string(self, o):
        """`monkeypatch.setattr(module, "name", ...)`, `getattr(thing, "name")`."""
        called = getattr(o.callee, "name", "")
        if called not in ("setattr", "delattr", "getattr", "hasattr") or len(o.args) < 2:
            return
        thing, text = o.args[0], o.args[1]
        if not isinstance(text, nodes.StrExpr):
            return
        new = None
        if isinstance(thing, nodes.RefExpr) and isinstance(thing.node, nodes.MypyFile):
            symbol = thing.node.names.get(text.value)
            new = self.names.get((symbol.fullname or "") if symbol else "")
        elif isinstance(thing, nodes.RefExpr) and isinstance(thing.node, nodes.TypeInfo):
            new = self._member_new(thing.node, text.value)
        else:
            new = self.of_type(self.types.get(thing), text.value)
        if new is not None:
            column = self.edits.column(text.line, text.column) + 1
            if not self.edits.word(text.line, column, text.value, new):
                self.edits.missed.append((text.line, text.value, "string"))

    def keyword_new(self, o, name):
        callee = o.callee
        ref = callee.node if isinstance(callee, nodes.RefExpr) else None
        if (
            isinstance(callee, nodes.RefExpr)
            and callee.fullname in ("dataclasses.replace", "copy.replace")
            and o.args
        ):
            return self.of_type(self.types.get(o.args[0]), name)
        if isinstance(callee, nodes.RefExpr) and callee.fullname == "functools.partial" and o.args:
            callee = o.args[0]
            ref = callee.node if isinstance(callee, nodes.RefExpr) else None
        if isinstance(ref, nodes.Decorator):
            ref = ref.func
        if isinstance(ref, nodes.FuncDef):
            return self.param_new(ref, name)
        if isinstance(ref, nodes.TypeInfo):
            return self.class_keyword(ref, name)
        typ = types.get_proper_type(self.types.get(callee))
        if isinstance(typ, types.CallableType):
            if typ.is_type_obj():
                return self.class_keyword(typ.type_object(), name)
            definition = typ.definition
            if isinstance(definition, nodes.Decorator):
                definition = definition.func
            if isinstance(definition, nodes.FuncDef):
                return self.param_new(definition, name)
        return None

    def class_keyword(self, info, name):
        init = info.get_method("__init__")
        if isinstance(init, nodes.FuncDef) and init.info.fullname != "builtins.object":
            new = self.param_new(init, name)
            if new is not None:
                return new
        return self._member_new(info, name)

    def _keyword(self, value, old, new):
        line, column = value.line, self.edits.column(value.line, value.column)
        for back in range(40):
            n = line - back
            if n < 1:
                break
            text = self.edits.lines[n - 1]
            head = text[:column] if back == 0 else text.rstrip("\n")
            found = None
            for found in re.finditer(rf"(?<![\w.])({re.escape(old)})\s*=(?!=)", head):
                pass
            if found:
                self.edits.word(n, found.start(1), old, new)
                return
        self.edits.missed.append((line, old, "keyword"))

    def visit_class_pattern(self, o):
        ref = o.class_ref.node
        if isinstance(ref, nodes.TypeInfo):
            for key, value in zip(o.keyword_keys, o.keyword_values, strict=True):
                if (new := self._member_new(ref, key)) is not None:
                    self._keyword(value, key, new)
        self.children(o)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    table = read_table(arguments.tables)
    options = Options()
    options.python_version = (3, 11)
    options.incremental = False
    options.follow_imports = "skip"  # other libraries are Any: checking them takes minutes
    options.export_types = True
    options.preserve_asts = True
    options.check_untyped_defs = True
    options.namespace_packages = True
    options.explicit_package_bases = True
    options.ignore_missing_imports = True
    options.mypy_path = [str(ROOT)]
    options.show_traceback = True
    options.allow_untyped_globals = True
    options.warn_unreachable = False
    options.platform = "linux"
    found = sources()
    begin = time.monotonic()
    result = build.build(found, options)
    print(f"mypy: {time.monotonic() - begin:.0f} s", flush=True)
    wanted = {source.module: source for source in found}
    all_edits = {}
    for name, source in wanted.items():
        state = result.graph.get(name)
        if state is None or state.tree is None:
            print("no tree:", name)
            continue
        edits = Edits(source.path)
        Renamer(state.tree, edits, result.types, table).visit_mypy_file(state.tree)
        import_edits(edits, name, source.path.endswith("__init__.py"), table, result.graph)
        all_edits[source.path] = (name, edits)
    modules, names = table[0], table[1]
    changed = words = 0
    texts = {}
    for path, (name, edits) in all_edits.items():
        text = edits.result()
        words += len(edits.at)
        text = move_modules(text, name, path.endswith("__init__.py"), table, result.graph)
        texts[path] = dotted_paths(text, modules, names)
    others = [
        *Path("docs").rglob("*.md"),
        *map(Path, ["README.md", "CONTRIBUTING.md", "pyproject.toml", ".ci/run", "MANIFEST.in"]),
    ]
    for path in others:
        texts[str(path)] = dotted_paths(path.read_text(), modules, names)
    for path, text in texts.items():
        if text != Path(path).read_text():
            changed += 1
            if not arguments.dry_run:
                Path(path).write_text(text)
    if not arguments.dry_run:
        for old, new in modules.items():
            move_file(old, new)
    for path, (_name, edits) in all_edits.items():
        for line, old, kind in edits.missed:
            print(f"{path}:{line}: {kind} {old!r} was not found there")
    print(f"{words} words in {changed} files")


if __name__ == "__main__":
    main()
