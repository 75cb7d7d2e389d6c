"""Collectives under way: ``operations`` that requests stand for, the ``engine`` that moves them."""
