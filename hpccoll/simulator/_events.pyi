from collections.abc import Callable

def run(inputs: tuple[object, ...], outputs: tuple[object, ...], depth: int,
        progress: Callable[[int, float], None]) -> (
            tuple[int, int, int] | tuple[int, int, float, float] | None): ...
