"""What all tests share: ``--update-golden``."""


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true",
                     help="write tests/golden/*.txt anew; look at the difference before you commit")
