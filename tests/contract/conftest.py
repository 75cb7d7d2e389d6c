"""Fixtures of the transport rules: ranks of every transport, and payloads."""

import pytest
from contract.ranks import FLAVOURS, PAYLOADS, world


@pytest.fixture(scope="module", params=FLAVOURS)
def ranks(request):
    """Ranks of every transport, the same ones for all rules of a module."""
    with world(request.param, request.session) as members:
        yield members


@pytest.fixture(params=FLAVOURS)
def fresh(request):
    """Ranks for a single rule that leaves unfinished messages behind."""
    with world(request.param, request.session) as members:
        yield members


@pytest.fixture(params=PAYLOADS)
def payload(request):
    """Name of a size and kind of memory."""
    return request.param
