"""Many cases in one test: :func:`folded`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeAlias

import pytest

Test: TypeAlias = Callable[..., None]


def folded(names: str, cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for every case, as ``pytest.mark.parametrize`` does, but as one test."""
    given = [name.strip() for name in names.split(",")]

    def decorate(test: Test) -> Test:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            listed = list(cases)
            if not listed:
                pytest.fail("there are no cases")
            failed, skipped = [], []
            for case in listed:
                values, name = case if len(given) > 1 else (case,), str(case)
                if isinstance(case, type(pytest.param())):
                    values, name = case.values, str(case.id or name)
                try:
                    test(**dict(zip(given, values, strict=True)), **fixtures)
                except pytest.skip.Exception as reason:
                    skipped.append(str(reason))
                except (Exception, pytest.fail.Exception) as error:
                    failed.append(f"{name}: {type(error).__name__}: {error}")
            if failed:
                pytest.fail(f"{len(failed)} of {len(listed)} cases:\n" + "\n".join(failed))
            if len(skipped) == len(listed):
                pytest.skip(skipped[0])

        signature = inspect.signature(test)
        run.__signature__ = signature.replace(parameters=[  # type: ignore[attr-defined]
            one for name, one in signature.parameters.items() if name not in given])
        return run
    return decorate
