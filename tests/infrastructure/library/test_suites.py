"""The test cases that the `eventsourcing` library ships for whoever implements its persistence."""

from __future__ import annotations

from typing import Any, ClassVar
from unittest import TestCase
from uuid import UUID, uuid4

import pytest
from eventsourcing import persistence
from eventsourcing.postgres import PostgresTrackingRecorder
from eventsourcing.tests import application as application_cases
from eventsourcing.tests import persistence as persistence_cases
from eventsourcing.tests import projection as projection_cases
from eventsourcing.utils import Environment, get_topic
from psycopg.sql import SQL, Identifier

from onefold.infrastructure.postgres import (
    AggregateRecorder,
    ApplicationRecorder,
    Factory,
    ProcessRecorder,
    TrackingRecorder,
)


class OnFactory(TestCase):
    settings: ClassVar[dict[str, str]] = {}
    factory: Factory


class WithTextIds(TestCase):
    settings: ClassVar[dict[str, str]] = {"ORIGINATOR_ID_TYPE": "text"}

    def new_originator_id(self) -> UUID | str:
        return f"test/{uuid4()}"


class WithSmallPool(TestCase):
    settings: ClassVar[dict[str, str]] = {"POSTGRES_POOL_SIZE": "1", "POSTGRES_MAX_OVERFLOW": "0"}


class WithOtherSchema(TestCase):
    settings: ClassVar[dict[str, str]] = {"POSTGRES_SCHEMA": "my schema"}


class TestAggregateRecorder(OnFactory, persistence_cases.AggregateRecorderTestCase):
    def create_recorder(self) -> persistence.AggregateRecorder:
        return self.factory.aggregate_recorder()


class TestAggregateRecorderWithTextIds(WithTextIds, TestAggregateRecorder):
    pass


class TestAggregateRecorderWithOtherSchema(WithOtherSchema, TestAggregateRecorder):
    pass


class TestRecorderOfAnotherPurpose(OnFactory, persistence_cases.AggregateRecorderTestCase):
    def create_recorder(self) -> persistence.AggregateRecorder:
        return self.factory.aggregate_recorder(purpose="notes")


class TestApplicationRecorder(
    OnFactory, persistence_cases.ApplicationRecorderTestCase[persistence.ApplicationRecorder]
):
    def create_recorder(self) -> persistence.ApplicationRecorder:
        return self.factory.application_recorder()

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class TestApplicationRecorderWithTextIds(WithTextIds, TestApplicationRecorder):
    pass


class TestApplicationRecorderWithPoolOfOne(WithSmallPool, TestApplicationRecorder):
    pass


class TestApplicationRecorderWithOtherSchema(WithOtherSchema, TestApplicationRecorder):
    pass


class TestProcessRecorderAsApplicationRecorder(TestApplicationRecorder):
    def create_recorder(self) -> persistence.ApplicationRecorder:
        return self.factory.process_recorder()


class TestTrackingRecorder(OnFactory, persistence_cases.TrackingRecorderTestCase):
    def create_recorder(self) -> persistence.TrackingRecorder:
        return self.factory.tracking_recorder()


class TestProcessRecorder(OnFactory, persistence_cases.ProcessRecorderTestCase):
    def create_recorder(self) -> persistence.ProcessRecorder:
        return self.factory.process_recorder()


class TestProcessRecorderWithPoolOfOne(WithSmallPool, TestProcessRecorder):
    pass


class TestProcessRecorderAsTrackingRecorder(TestTrackingRecorder):
    def create_recorder(self) -> persistence.TrackingRecorder:
        return self.factory.process_recorder()


class OwnTrackingRecorder(PostgresTrackingRecorder):
    pass


class TestInfrastructureFactory(persistence_cases.InfrastructureFactoryTestCase[Factory]):
    database_url: str

    def setUp(self) -> None:
        self.env = Environment(
            "TestCase",
            {
                "PERSISTENCE_MODULE": "onefold.infrastructure.postgres",
                "ONEFOLD_DATABASE_URL": self.database_url,
            },
        )
        super().setUp()

    def expected_factory_class(self) -> type[Factory]:
        return Factory

    def expected_aggregate_recorder_class(self) -> type[persistence.AggregateRecorder]:
        return AggregateRecorder

    def expected_application_recorder_class(self) -> type[persistence.ApplicationRecorder]:
        return ApplicationRecorder

    def expected_tracking_recorder_class(self) -> type[persistence.TrackingRecorder]:
        return TrackingRecorder

    def tracking_recorder_subclass(self) -> type[persistence.TrackingRecorder]:
        return OwnTrackingRecorder

    def expected_process_recorder_class(self) -> type[persistence.ProcessRecorder]:
        return ProcessRecorder


class TestExampleApplication(application_cases.ExampleApplicationTestCase):
    expected_factory_topic = get_topic(Factory)


# The case looks for a warning, which the strict run would turn into an error before it is recorded.
@pytest.mark.filterwarnings("default:'log' is deprecated:DeprecationWarning")
class TestApplication(application_cases.ApplicationTestCase):
    pass


class CountersView(PostgresTrackingRecorder, projection_cases.EventCountersView):
    """A materialised view as users of the library write it: on the library's own tracking recorder."""

    _created_event_counter_name = "CREATED_EVENTS"
    _subsequent_event_counter_name = "SUBSEQUENT_EVENTS"

    def __init__(self, datastore: Any, **kwargs: Any) -> None:
        super().__init__(datastore, **kwargs)
        self.counters = Identifier(self.datastore.schema, self.tracking_table_name + "_counters")
        self.sql_create_statements.append(
            SQL("CREATE TABLE IF NOT EXISTS {} (name text PRIMARY KEY, count bigint)").format(self.counters)
        )

    def get_created_event_counter(self) -> int:
        return self._count(self._created_event_counter_name)

    def get_subsequent_event_counter(self) -> int:
        return self._count(self._subsequent_event_counter_name)

    def incr_created_event_counter(self, tracking: persistence.Tracking) -> None:
        self._increment(self._created_event_counter_name, tracking)

    def incr_subsequent_event_counter(self, tracking: persistence.Tracking) -> None:
        self._increment(self._subsequent_event_counter_name, tracking)

    def _count(self, name: str) -> int:
        query = SQL("SELECT count FROM {} WHERE name = %s").format(self.counters)
        with self.datastore.transaction() as cursor:
            row = cursor.execute(query, (name,)).fetchone()
        return 0 if row is None else row["count"]

    def _increment(self, name: str, tracking: persistence.Tracking) -> None:
        statement = SQL(
            "INSERT INTO {0} VALUES (%s, 1) ON CONFLICT (name) DO UPDATE SET count = {0}.count + 1"
        ).format(self.counters)
        with self.datastore.transaction(commit=True) as cursor:
            self._insert_tracking(cursor, tracking)
            cursor.execute(statement, (name,))


class TestEventCountersView(OnFactory, projection_cases.EventCountersViewTestCase):
    def construct_event_counters_view(self) -> projection_cases.EventCountersView:
        return self.factory.tracking_recorder(CountersView)


class TestEventCountersProjection(projection_cases.AggregateEventCountersProjectionTestCase):
    view_class = CountersView


class TestEventSourcedProjection(projection_cases.EventSourcedProjectionTestCase):
    pass
