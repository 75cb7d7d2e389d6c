"""Algorithms over groups of ranks: compositions of flat ones, for groups of any sizes.

``composition`` sees a topology as levels of groups, ``exchanges`` runs flat algorithms between the
groups of a level, ``ownership`` shares a vector out; an algorithm is a sequence of exchanges. It
takes positions as ranks: :mod:`hpccoll.algorithms.build` puts ranks with an order of their own in
their places. A new composition is a file here, and its entries in the table.
"""
