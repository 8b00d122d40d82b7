"""Mutable state of modules, found in their source: what a proof could leave behind for the next."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

MUTATING_METHODS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem",
    "popleft", "remove", "reverse", "setdefault", "sort", "update",
}  # fmt: skip
CONTAINERS = {"dict", "list", "set", "defaultdict", "deque", "Counter", "OrderedDict"}
HIDDEN_GLOBALS = {"ContextVar", "local"}  # of contextvars and threading


def module_state(sources: Mapping[str, str]) -> list[str]:
    """Return the mutable state of modules, given by name: variables that functions rebind or
    mutate, empty containers, context variables."""
    trees = {name: ast.parse(text) for name, text in sources.items()}
    own = {name: _variables(tree) for name, tree in trees.items()}
    found: set[tuple[str, int, str]] = set()
    for module, tree in trees.items():
        visible = _visible(module, tree, own)
        found |= {(module, s.lineno, ast.unparse(s)) for s in _initial_state(tree)}
        for statement in tree.body:
            is_code = isinstance(statement, (ast.FunctionDef, ast.ClassDef))
            for node in _mutated(statement):
                name, path = _path(node)
                target = visible.get(path) or visible.get(name)
                # a module may fill its own table while it is loaded
                if target is not None and (is_code or not target.startswith(module + ".")):
                    found.add((module, node.lineno, f"mutates {target}"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Global):
                found.add((module, node.lineno, ast.unparse(node)))
    return [f"{module}:{line}: {what}" for module, line, what in sorted(found)]


def _variables(tree: ast.Module) -> set[str]:
    """Return the variables and classes of a module."""
    names = set()
    for s in tree.body:
        match s:
            case ast.Assign(targets):
                names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            case ast.AnnAssign(ast.Name(name)) | ast.ClassDef(name):
                names.add(name)
            case _:
                pass
    return names


def _visible(module: str, tree: ast.Module, own: Mapping[str, set[str]]) -> dict[str, str]:
    """Return the variables that a module can name, by the name or path that it uses."""
    out = {name: f"{module}.{name}" for name in own[module]}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(str() as source, aliases):
                for alias in aliases:
                    name, full = alias.asname or alias.name, f"{source}.{alias.name}"
                    if alias.name in own.get(source, ()):
                        out[name] = full
                    out |= {f"{name}.{v}": f"{full}.{v}" for v in own.get(full, ())}
            case _:
                pass
    return out


def _initial_state(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the assignments of a module that make empty containers, or hidden globals."""
    for s in tree.body:
        match s:
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                if any(map(_is_state, ast.walk(value))):
                    yield s
            case _:
                pass


def _is_state(node: ast.AST) -> bool:
    match node:
        case ast.Dict([]) | ast.List([]):
            return True
        case ast.Call(ast.Name(name) | ast.Attribute(attr=name), args, keywords):
            return name in HIDDEN_GLOBALS or (name in CONTAINERS and not args and not keywords)
        case _:
            return False


def _mutated(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the objects that a statement mutates: by a method, an item or an attribute."""
    for node in ast.walk(statement):
        match node:
            case ast.Call(ast.Attribute(value, name)) if name in MUTATING_METHODS:
                yield value
            case ast.Subscript(value, ctx=ast.Store() | ast.Del()):
                yield value
            case ast.Attribute(value, ctx=ast.Store() | ast.Del()):
                yield value
            case _:
                pass


def _path(node: ast.expr) -> tuple[str, str]:
    """Return the first name of an expression, and its first two: a and a.b of a.b[c].d."""
    names: list[str] = []
    while True:
        match node:
            case ast.Attribute(value, name):
                names.append(name)
                node = value
            case ast.Subscript(value):
                node = value
            case ast.Call(function):
                node = function
            case ast.Name(name):
                return name, ".".join((name, *names[-1:]))
            case _:
                return "", ""
