"""A new ring of events, and no observed communicators."""

from hpccoll.measure.profiling.observer import OBSERVER
from hpccoll.runtime.events.ring import events


def forget_events():
    """Forget the events and the communicators of earlier tests."""
    events.cache_clear()
    OBSERVER.comms.clear()
    OBSERVER.phases.clear()
