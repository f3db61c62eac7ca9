"""The bundled shop as the demonstration's workers run it: with a lease that is soon over."""

from __future__ import annotations

from copy import copy

from ...projections.app import App
from ...projections.projection import AnyProjection
from ...projections.shop import app as shop

LEASE = 2.0
"""Seconds after which a killed worker is replaced."""


def _with_short_lease(projection: AnyProjection) -> AnyProjection:
    made = copy(projection)
    made.lease = LEASE
    return made


app = App(aggregates=shop.aggregates, projections=map(_with_short_lease, shop.projections))
