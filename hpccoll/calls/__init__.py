"""The user's arguments in; a checked ``Call`` and ``CallFacts`` out, before any message.

No cache and no choice lives here. A new collective is a function in ``resolve``.
"""
