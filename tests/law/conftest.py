"""Laws are tried on the same examples every time; look for new ones with

    pytest tests/law --hypothesis-profile explore
"""

from hypothesis import settings

settings.register_profile("reproducible", derandomize=True, database=None, deadline=None,
                          max_examples=30)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("reproducible")
