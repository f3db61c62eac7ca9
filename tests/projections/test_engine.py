"""The engine over a log and a read model in memory: any pages, crashes and rivals give what a plain fold gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onefold.domain.event import Event, EventMeta, encode
from onefold.domain.registry import Registry
from onefold.projections.engine import Engine, Progress
from onefold.projections.errors import HandlerFailed, ProjectionFailed, RowRefused
from onefold.projections.ports import Checkpoint, Kept, Key, Page, Record
from onefold.projections.projection import AnyProjection, Handler, Projection
from onefold.projections.row import Row

known = Registry()


class Put(Event, name="engine.put", registry=known):
    amount: int = 1


class Cleared(Event, name="engine.cleared", registry=known):
    pass


class Looked(Event, name="engine.looked", registry=known):
    """Changes nothing."""


class Foreign(Event, name="engine.foreign", registry=known):
    """No projection reads it."""


class Broken(Event, name="engine.broken", registry=known):
    """No fold can take it."""


class Huge(Event, name="engine.huge", registry=known):
    """Gives a row that the read model refuses."""


class Stock(Row, key="item"):
    item: str
    amount: int = 0
    seen: tuple[int, ...] = ()


def stock(**given: Any) -> Projection[Stock]:
    """Adds up, and keeps every version that it saw: an event lost, repeated or out of order shows."""
    made = Projection("stock", Stock, registry=known, **given)

    @made.on(Put)
    def put(row: Stock | None, event: Put) -> Stock:
        row = row or Stock(item=event.meta.key)
        return row.evolve(amount=row.amount + event.amount, seen=(*row.seen, event.meta.version))

    @made.on(Cleared)
    def cleared(row: Stock | None, event: Cleared) -> None:
        return None

    @made.on(Looked)
    def looked(row: Stock | None, event: Looked) -> Stock | None:
        return row

    @made.on(Broken)
    def broken(row: Stock | None, event: Broken) -> Stock:
        raise KeyError("broken on purpose")

    @made.on(Huge)
    def huge(row: Stock | None, event: Huge) -> Stock:
        return (row or Stock(item=event.meta.key)).evolve(amount=10**30)

    return made


class Crash(Exception):
    """The process, or its connection, ends here."""


class Overtaken(Exception):
    """Stands for `Fenced`."""


@dataclass
class MemoryLog:
    events: list[Event] = field(default_factory=list)
    visible: int | None = None
    reads: int = 0

    def read(self, after: int, limit: int, types: Collection[str] | None = None) -> Page:
        self.reads += 1
        end = 2**63 if self.visible is None else self.visible
        found = [record_of(event, types) for event in self.events if after < event.meta.position <= end][
            :limit
        ]
        waiting = not found and end < len(self.events)
        return Page(after, found[-1][0] if found else after, found, waiting)

    def prefetch(self, after: int, limit: int, types: Collection[str] | None = None) -> None:
        """Everything is in memory anyhow."""

    def event(self, record: Record) -> Event:
        return known.decode(record[7], record[5], record[8] or "", EventMeta(record[6], record[1], record[0]))


def record_of(event: Event, types: Collection[str] | None) -> Record:
    meta = event.meta
    wanted = types is None or event.event_name in types
    data = encode(event) if wanted else None
    version = event.schema_version
    return (
        meta.position, meta.version, 0, 0, b"", version, meta.stream, event.event_name, data, None
    )  # fmt: skip


@dataclass
class MemoryModel:
    """A read model whose writes are atomic; `crash(step)` is asked before each step and after each write."""

    crash: Callable[[str], None] = lambda _: None
    rows: dict[Key, Kept] = field(default_factory=dict)
    position: int = 0
    token: int = 1
    held: bool = True
    writes: int = 0
    handle_page: Callable[[Page], None] = lambda _: None

    def claim(self) -> Checkpoint | None:
        self.crash("claim")
        return Checkpoint(self.position, self.token) if self.held else None

    def load(self, keys: Collection[Key]) -> Mapping[Key, Kept]:
        self.crash("load")
        return {key: self.rows[key] for key in keys if key in self.rows}

    def pack(self, changes: Mapping[Key, Kept]) -> Mapping[Key, Kept]:
        for _, row in changes.values():
            if row is not None and row.amount >= 10**30:
                raise RowRefused(OverflowError("too large to pack"))
        return changes

    def write(self, packed: Mapping[Key, Kept], at: Checkpoint, upto: int) -> Checkpoint:
        changes = packed
        self.crash("write")
        if (at.position, at.token) != (self.position, self.token):
            raise Overtaken
        for _, row in changes.values():
            if row is not None and row.amount >= 10**20:
                raise RowRefused(OverflowError("too large"))
        for key, (position, row) in changes.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = (position, row)
        self.position = upto
        self.writes += 1
        self.crash("written")
        return Checkpoint(upto, at.token)

    def handle(self, page: Page, at: Checkpoint) -> Checkpoint:
        if (at.position, at.token) != (self.position, self.token):
            raise Overtaken
        self.handle_page(page)
        self.position = page.upto
        self.crash("written")
        return Checkpoint(page.upto, at.token)

    def release(self) -> None:
        self.held = False

    def content(self) -> dict[Key, Row]:
        return {key: row for key, (_, row) in self.rows.items()}


def log_of(facts: Iterable[tuple[str, Event]], *, gap: int = 1) -> MemoryLog:
    versions: dict[str, int] = {}
    events = []
    for number, (stream, fact) in enumerate(facts, 1):
        versions[stream] = versions.get(stream, 0) + 1
        events.append(fact.bound(EventMeta(f"stock/{stream}", versions[stream], number * gap)))
    return MemoryLog(events)


def run(
    projection: AnyProjection, log: MemoryLog, model: MemoryModel, page: int = 3, cached_rows: int = 100
) -> Progress:
    return Engine(projection, log, model, page=page, cached_rows=cached_rows).run()


streams = st.sampled_from(["a", "b", "c"])
facts = st.one_of(
    st.builds(Put, amount=st.integers(1, 9)),
    st.builds(Put, amount=st.integers(1, 9)),
    st.just(Cleared()),
    st.just(Looked()),
    st.just(Foreign()),
)
histories = st.lists(st.tuples(streams, facts), max_size=40)
pages = st.integers(1, 12)
caches = st.sampled_from([0, 1, 2, 100])


@given(history=histories, page=pages, cached_rows=caches)
def test_any_size_of_page_and_cache_gives_what_a_plain_fold_gives(
    history: list[tuple[str, Event]], page: int, cached_rows: int
) -> None:
    projection, log, model = stock(), log_of(history), MemoryModel()
    progress = run(projection, log, model, page, cached_rows)
    assert model.content() == projection.fold(log.events)
    assert model.position == len(history) == progress.position == progress.read
    assert progress.applied == sum(not isinstance(fact, Foreign) for _, fact in history)
    assert (progress.duplicates, progress.held, progress.waiting) == (0, True, False)


@example(history=[("a", Put())] * 3, page=10, cached_rows=100, crashes=[("write", 1)])
@example(history=[("a", Put())] * 6, page=2, cached_rows=100, crashes=[("written", 2)])
@settings(max_examples=400)
@given(
    history=histories,
    page=pages,
    cached_rows=caches,
    crashes=st.lists(
        st.tuples(st.sampled_from(["claim", "load", "write", "written"]), st.integers(1, 4)), max_size=5
    ),
)
def test_crashes_at_any_step_lose_nothing_and_repeat_nothing(
    history: list[tuple[str, Event]], page: int, cached_rows: int, crashes: list[tuple[str, int]]
) -> None:
    planned = list(crashes)
    counts: dict[str, int] = {}

    def crash(step: str) -> None:
        counts[step] = counts.get(step, 0) + 1
        if planned and planned[0][0] == step and counts[step] >= planned[0][1]:
            planned.pop(0)
            counts.clear()
            raise Crash

    projection, log, model = stock(), log_of(history), MemoryModel(crash=crash)
    engine = Engine(projection, log, model, page=page, cached_rows=cached_rows)
    for attempt in range(len(crashes) + 1):
        try:
            engine.run()
            break
        except Crash:
            # Every second time it is the process that ends, not only its connection.
            if attempt % 2:
                engine = Engine(projection, log, model, page=page, cached_rows=cached_rows)
    assert model.content() == projection.fold(log.events)
    assert model.position == len(history)


@given(
    history=st.lists(st.tuples(streams, st.builds(Put, amount=st.integers(1, 9))), max_size=30),
    page=pages,
    backs=st.lists(st.integers(0, 30), min_size=1, max_size=4),
)
def test_a_checkpoint_that_is_set_back_makes_what_was_applied_a_no_op(
    history: list[tuple[str, Event]], page: int, backs: list[int]
) -> None:
    """Case H12: a batch that overlaps the position applies only its new part."""
    projection, log, model = stock(), log_of(history), MemoryModel()
    log.visible = len(history) // 2
    run(projection, log, model, page)
    log.visible = None
    for back in backs:
        applied = sum(position <= model.position for position in range(1, len(history) + 1))
        model.position = min(back, model.position)
        again = model.position
        progress = run(projection, log, model, page)
        assert model.content() == projection.fold(log.events)
        assert progress.duplicates == applied - again
        assert progress.applied == len(history) - applied


@given(
    history=histories,
    extra=streams,
    at=st.integers(0, 40),
    page=pages,
    poison=st.sampled_from([Broken, Huge]),
)
def test_an_event_that_cannot_be_applied_stops_the_projection_right_before_it(
    history: list[tuple[str, Event]], extra: str, at: int, page: int, poison: type[Event]
) -> None:
    """Case H4, policy stop: whether the fold or the read model refuses it, and however the pages are cut."""
    place = min(at, len(history))
    # A refused row that the same page removes again never meets the read model.
    rest = [(stream, Looked() if isinstance(fact, Cleared) else fact) for stream, fact in history[place:]]
    log = log_of([*history[:place], (extra, poison()), *rest])
    bad = log.events[place].meta
    projection, model = stock(), MemoryModel()
    for _ in range(2):
        with pytest.raises(ProjectionFailed) as caught:
            run(projection, log, model, page)
        failure = caught.value.event
        assert (failure.type_name, failure.stream, failure.version, failure.position) == (
            poison.event_name,
            bad.stream,
            bad.version,
            bad.position,
        )
        assert model.content() == projection.fold(log.events[:place])
        assert model.position == place
    # Once it is mended, the rest is applied as if nothing had been.
    mended = stock()
    mended.folds[poison] = lambda row, _: row
    progress = run(mended, log, model, page)
    assert model.content() == mended.fold(log.events)
    assert model.position == len(log.events)
    assert progress.read == len(log.events) - place


def test_the_error_names_projection_type_stream_version_position_and_reason() -> None:
    log = log_of([("a", Put()), ("b", Put()), ("a", Broken())], gap=2**53)
    with pytest.raises(ProjectionFailed) as caught:
        run(stock(), log, MemoryModel())
    assert str(caught.value) == (
        "projection stock failed at event engine.broken (stream stock/a, version 2, position "
        f"{3 * 2**53}): KeyError: 'broken on purpose'. Events before it are applied; "
        "mend the fold or its row model and run again"
    )


def with_data(record: Record, **changes: Any) -> Record:
    names = [
        "position",
        "version",
        "occurred",
        "recorded",
        "id",
        "schema_version",
        "stream",
        "type",
        "data",
        "more",
    ]
    values = dict(zip(names, record, strict=True)) | changes
    return tuple(values.values())  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"data": '{"amount": "many"}'},
            "UndecodableEvent: data of event 'engine.put' .* amount: Input should be",
        ),
        ({"data": None}, "UndecodableEvent: data of event 'engine.put'"),
        (
            {"schema_version": 7},
            "UnknownEventType: no event class is registered for type 'engine.put' schema version 7",
        ),
    ],
)
@pytest.mark.parametrize("keyed", [False, True], ids=["keyed by stream", "keyed by event"])
@pytest.mark.parametrize("page", [1, 2, 10])
def test_an_event_that_cannot_be_decoded_stops_the_projection_right_before_it(
    changes: dict[str, Any], reason: str, keyed: bool, page: int
) -> None:
    class Damaged(MemoryLog):
        def read(self, after: int, limit: int, types: Collection[str] | None = None) -> Page:
            found = super().read(after, limit, types)
            records = [with_data(each, **changes) if each[0] == 3 else each for each in found.records]
            return Page(found.after, found.upto, records)

    log = Damaged(log_of([("a", Put()), ("b", Put()), ("a", Put()), ("b", Put())]).events)
    projection = stock(key=lambda event: event.meta.key) if keyed else stock()
    model = MemoryModel()
    with pytest.raises(ProjectionFailed, match=reason) as caught:
        run(projection, log, model, page)
    assert caught.value.event.position == 3
    assert model.content() == projection.fold(log.events[:2])
    assert model.position == 2


def test_a_key_that_cannot_be_derived_stops_the_projection_at_its_event() -> None:
    def by_share(event: Any) -> str | None:
        return str(12 // event.amount)

    projection = stock(key=by_share)
    projection.folds = {Put: lambda row, event: Stock(item=str(12 // event.amount), amount=event.amount)}
    log = log_of([("a", Put(amount=2)), ("a", Put(amount=3)), ("a", Put(amount=0)), ("a", Put(amount=4))])
    model = MemoryModel()
    with pytest.raises(ProjectionFailed, match="ZeroDivisionError"):
        run(projection, log, model, page=10)
    assert model.position == 2
    assert model.content() == {("6",): Stock(item="6", amount=2), ("4",): Stock(item="4", amount=3)}


def test_events_without_a_key_concern_no_row() -> None:
    projection = stock(key=lambda event: None if event.meta.version == 2 else event.meta.key)
    log = log_of([("a", Put()), ("a", Put()), ("a", Put())])
    model = MemoryModel()
    progress = run(projection, log, model)
    assert model.content() == projection.fold(log.events) == {("a",): Stock(item="a", amount=2, seen=(1, 3))}
    assert (progress.applied, progress.read) == (2, 3)


def test_several_streams_may_share_a_row_in_the_order_of_the_log() -> None:
    projection = Projection("all", Stock, key=lambda _: "all", registry=known)

    @projection.on(Put)
    def put(row: Stock | None, event: Put) -> Stock:
        row = row or Stock(item="all")
        return row.evolve(amount=row.amount * 10 + event.amount)

    log = log_of([("a", Put(amount=1)), ("b", Put(amount=2)), ("a", Put(amount=3))])
    for page in (1, 2, 3):
        model = MemoryModel()
        run(projection, log, model, page)
        assert model.content() == {("all",): Stock(item="all", amount=123)}


def test_an_old_event_is_folded_as_the_class_that_it_is_read_as() -> None:
    """One stored name may lead to two classes: its old schema version to one, its present one to another."""
    registry = Registry()

    class Moved(Event, name="stock.moved", version=2, registry=registry):
        amount: int

    class Counted(Event, name="stock.counted", registry=registry):
        amount: int

    @registry.upcast("stock.moved", 1, to="stock.counted")
    def was_a_count(data: dict[str, Any]) -> dict[str, Any]:
        return data

    def folded(classes: Sequence[type[Event]]) -> dict[Key, Row]:
        projection = Projection("stock", Stock, registry=registry)
        for event_class in classes:
            sign = 1 if event_class is Moved else 1000
            projection.on(event_class)(
                lambda row, event, sign=sign: Stock(  # type: ignore[misc]
                    item="a", amount=(row.amount if row else 0) + sign * event.amount
                )
            )
        model, log = MemoryModel(), Stored()
        run(projection, log, model)  # type: ignore[arg-type]
        return model.content()

    class Stored:
        def read(self, after: int, limit: int, types: Collection[str] | None = None) -> Page:
            stored = [
                (1, 1, 0, 0, b"", 2, "stock/a", "stock.moved", '{"amount": 1}', None),
                (2, 2, 0, 0, b"", 1, "stock/a", "stock.moved", '{"amount": 2}', None),
                (3, 3, 0, 0, b"", 1, "stock/a", "stock.counted", '{"amount": 4}', None),
            ]
            found = [record for record in stored if record[0] > after][:limit]
            return Page(after, found[-1][0] if found else after, found)  # type: ignore[arg-type]

        def prefetch(self, after: int, limit: int, types: Collection[str] | None = None) -> None:
            pass

    assert folded([Moved, Counted]) == folded([Counted, Moved]) == {("a",): Stock(item="a", amount=6001)}
    assert folded([Moved]) == {("a",): Stock(item="a", amount=1)}
    assert folded([Counted]) == {("a",): Stock(item="a", amount=6000)}


def test_nothing_happens_while_another_worker_holds_the_projection() -> None:
    log, model = log_of([("a", Put())]), MemoryModel(held=False)
    progress = run(stock(), log, model)
    assert (progress.held, progress.applied, log.reads, model.position) == (False, 0, 0, 0)


def test_a_run_says_that_it_waits_for_a_hole() -> None:
    log, model = log_of([("a", Put()), ("a", Put())]), MemoryModel()
    log.visible = 1
    progress = run(stock(), log, model)
    assert (progress.position, progress.waiting) == (1, True)
    log.visible = None
    assert run(stock(), log, model).waiting is False


def test_rows_in_memory_are_dropped_when_someone_else_has_held_the_projection() -> None:
    projection, model = stock(), MemoryModel()
    log = log_of([("a", Put(amount=1)), ("a", Put(amount=2))])
    log.visible = 1
    engine = Engine(projection, log, model, page=10)
    engine.run()
    # A rival takes over, applies the rest, and gives the lease back.
    log.visible = None
    model.token += 1
    run(projection, log, model)
    model.token += 1
    log.events += log_of([("a", Put(amount=4))] * 3).events[2:]
    engine.run()
    assert model.content() == {("a",): Stock(item="a", amount=7, seen=(1, 2, 3))}


@pytest.mark.parametrize("page", [2, 100])
def test_a_worker_that_was_overtaken_writes_nothing_and_starts_anew(page: int) -> None:
    projection, log = stock(), log_of([("a", Put())] * 10)
    model = MemoryModel()
    engine = Engine(projection, log, model, page=page)

    def overtake(step: str) -> None:
        if step == "write" and model.token == 1:
            model.token = 2
            run(projection, log, model, page)

    model.crash = overtake
    with pytest.raises(Overtaken):
        engine.run()
    assert model.content() == projection.fold(log.events)
    engine.run()
    assert model.content() == projection.fold(log.events)


def test_a_run_stops_between_pages_when_it_is_told_to() -> None:
    for page in (1, 3):
        log, model = log_of([("a", Put())] * 20), MemoryModel()
        progress = Engine(stock(), log, model, page=page).run(stop=lambda m=model: m.writes >= 2)  # type: ignore[misc]
        assert 2 * page <= progress.position < 20
        assert model.position == progress.position


def test_a_backlog_that_comes_up_during_a_run_is_worked_off_in_it() -> None:
    projection, log, model = stock(), log_of([(stream, Put()) for stream in "abc" * 10]), MemoryModel()
    log.visible = 2

    def appear(_: Progress) -> None:
        log.visible = None

    progress = Engine(projection, log, model, page=4, on_page=appear).run()
    assert model.content() == projection.fold(log.events)
    assert (progress.position, progress.applied, progress.read) == (30, 30, 30)


def test_a_run_that_isolates_stops_when_it_is_told_to() -> None:
    failed: list[Page] = []

    def fail(page: Page) -> None:
        failed.append(page)
        raise HandlerFailed(ValueError("never"))

    log, model = log_of([("a", Put())] * 8), MemoryModel(handle_page=fail)
    progress = Engine(handler(), log, model, page=8).run(stop=lambda: len(failed) >= 2)
    assert (progress.position, model.position, len(failed)) == (0, 0, 2)


def test_progress_is_told_after_every_page() -> None:
    told: list[int] = []
    log, model = log_of([("a", Put())] * 10), MemoryModel()
    Engine(stock(), log, model, page=4, on_page=lambda progress: told.append(progress.position)).run()
    assert told == [4, 8, 10]


def test_a_page_of_slow_folds_is_cut_so_that_the_lease_is_renewed_in_time() -> None:
    projection = Projection("slow", Stock, lease=0.1, registry=known)

    @projection.on(Put)
    def put(row: Stock | None, event: Put) -> Stock:
        time.sleep(0.01)
        return (row or Stock(item="a")).evolve(amount=event.meta.version)

    for page in (100, 20):
        written: list[float] = []

        def note(step: str, written: list[float] = written) -> None:
            if step == "written":
                written.append(time.monotonic())

        model = MemoryModel(crash=note)
        log = log_of([("a", Put())] * 40)
        progress = run(projection, log, model, page)
        assert model.content() == {("a",): Stock(item="a", amount=40)}
        assert (progress.applied, model.position) == (40, 40)
        assert max(after - before for before, after in pairwise(written)) < 0.1


def handler() -> Handler:
    made = Handler("mail", registry=known)
    made.on(Put)(lambda *_: None)
    return made


@given(history=histories, at=st.integers(0, 40), page=pages)
def test_a_handler_that_fails_is_isolated_to_its_event(
    history: list[tuple[str, Event]], at: int, page: int
) -> None:
    place = min(at, len(history))
    log = log_of([*history[:place], ("a", Put(amount=13)), *history[place:]])
    handled: list[int] = []

    def handle_page(page: Page) -> None:
        done = []
        for record in page.records:
            if record[8] == '{"amount":13}' and not mended:
                raise HandlerFailed(ValueError("thirteen"))
            if record[7] == "engine.put":
                done.append(record[0])
        handled.extend(done)

    mended: list[bool] = []
    model = MemoryModel(handle_page=handle_page)
    with pytest.raises(ProjectionFailed, match="ValueError: thirteen") as caught:
        run(handler(), log, model, page)
    assert caught.value.event.position == place + 1
    assert model.position == place
    mended.append(True)
    run(handler(), log, model, page)
    assert handled == [e.meta.position for e in log.events if isinstance(e, Put)]


def test_a_failure_that_passes_by_itself_costs_nothing_but_smaller_pages() -> None:
    failures = [HandlerFailed(ValueError("once")), HandlerFailed(ValueError("twice"))]

    def handle_page(page: Page) -> None:
        if failures:
            raise failures.pop()

    log = log_of([("a", Put())] * 50)
    model = MemoryModel(handle_page=handle_page)
    progress = run(handler(), log, model, page=8)
    assert (model.position, progress.position, progress.applied, progress.read) == (50, 50, 50, 50)
    assert log.reads < 15


@pytest.mark.parametrize("step", ["load", "write"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_what_was_refused_once_is_counted_once(step: str, nth: int) -> None:
    """Counts stay exact while a page is read ahead and another one written behind."""
    seen: list[str] = []

    def refuse(at: str) -> None:
        seen.append(at)
        if at == step and seen.count(step) == nth:
            raise RowRefused(ValueError("not now"))

    log = log_of([(stream, Put()) for stream in "abcdefgh" for _ in range(3)])
    model = MemoryModel(crash=refuse)
    projection = stock()
    progress = run(projection, log, model, page=4)
    assert model.content() == projection.fold(log.events)
    assert (progress.applied, progress.read, progress.position) == (24, 24, 24)


def test_an_isolating_run_says_that_it_waits_or_that_it_lost_the_lease() -> None:
    def once(page: Page) -> None:
        model.handle_page = lambda _: None
        raise HandlerFailed(ValueError("once"))

    log = log_of([("a", Put())] * 4)
    log.visible = 3
    model = MemoryModel(handle_page=once)
    progress = run(handler(), log, model)
    assert (progress.position, progress.waiting, progress.held) == (3, True, True)

    def lose(page: Page) -> None:
        model.held = False
        raise HandlerFailed(ValueError("once"))

    model = MemoryModel(handle_page=lose)
    assert run(handler(), log, model).held is False
