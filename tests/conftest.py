"""What all tests share: Hypothesis settings, and ``--update-golden``."""

from hypothesis import HealthCheck, settings

settings.register_profile("hpccoll", deadline=None, derandomize=True, max_examples=60,
                          suppress_health_check=[HealthCheck.too_slow])
#: ``pytest tests/law --hypothesis-profile=deep`` looks for something new every time.
settings.register_profile("deep", deadline=None, derandomize=False, max_examples=2000,
                          suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hpccoll")


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true",
                     help="write tests/golden/*.txt anew; look at the difference before you commit")
