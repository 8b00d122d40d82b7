"""The functions of the rule language take as many arguments as the parser lets them have."""

from inspect import signature

import pytest

from superopt.rules.lang.functions import FUNCTIONS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_declared_numbers_of_arguments_are_those_of_the_implementation(name: str) -> None:
    function = FUNCTIONS[name]
    parameters = signature(function.evaluate).parameters.values()
    runs = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    required = sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in parameters)
    assert 1 <= function.min_args <= function.max_args
    if not runs:
        assert (function.min_args, function.max_args) == (required, len(parameters))
