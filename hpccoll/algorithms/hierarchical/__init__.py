"""Algorithms over groups of ranks: compositions of flat ones, for groups of any sizes.

``composition`` splits a topology into levels of groups, ``exchanges`` runs flat algorithms between
the groups of a level, ``ownership`` divides a vector. An algorithm is a sequence of exchanges. Its
ranks are positions in the topology's order; :mod:`hpccoll.algorithms.build` renames them. A new
composition is a file here, and its entries in the table.
"""
