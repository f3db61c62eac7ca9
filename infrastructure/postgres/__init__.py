"""The log and the read models on PostgreSQL; also the persistence module for the `eventsourcing` library.

With `PERSISTENCE_MODULE=onefold.infrastructure.postgres` an application of that library runs on logs of this product.
"""

from .kept import SnapshotRecorder
from .library import Factory
from .mapper import AggregateSnapshot
from .recorders import (
    AggregateRecorder,
    ApplicationRecorder,
    ProcessRecorder,
    TrackingRecorder,
)

__all__ = [
    "AggregateRecorder",
    "AggregateSnapshot",
    "ApplicationRecorder",
    "Factory",
    "ProcessRecorder",
    "SnapshotRecorder",
    "TrackingRecorder",
]
