"""What others have put on a table is on the next one too, or is named before anything is built."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from onefold.infrastructure.rebuilding.errors import RebuildBlocked
from onefold.infrastructure.rebuilding.rebuild import Rebuild
from onefold.infrastructure.rebuilding.versions import rollback
from onefold.infrastructure.worker import Worker
from onefold.projections.projection import Projection
from onefold.projections.row import Row

from .warehouse import Put, Shop, known, stock


@pytest.fixture
def role(server_url: str) -> Iterator[str]:
    """A role of this test's; it belongs to the server and is removed after the database."""
    name = f"rebuilder{os.getpid()}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(SQL("CREATE ROLE {} LOGIN").format(Identifier(name)))
    yield name
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(SQL("DROP ROLE {}").format(Identifier(name)))


# After the role, so that the database and its grants go first.
@pytest.fixture
def granted(role: str, shop: Shop) -> Shop:
    return shop


BELONGINGS = """
    CREATE INDEX by_amount ON read.stock (amount DESC) WHERE amount > 0;
    CREATE UNIQUE INDEX "By Item" ON read.stock (lower(item));
    ALTER TABLE read.stock ADD CONSTRAINT "price >= 0" CHECK (price >= 0);
    ALTER TABLE read.stock ADD CONSTRAINT one_item UNIQUE (item, amount);
    ALTER TABLE read.stock SET (autovacuum_enabled = false, fillfactor = 50);
    COMMENT ON TABLE read.stock IS 'what''s there';
    COMMENT ON COLUMN read.stock.amount IS 'pieces';
    CREATE VIEW public.rich WITH (security_barrier = true) AS SELECT item, price FROM read.stock WHERE amount > 10;
    CREATE VIEW public.richest AS SELECT max(price) AS price FROM public.rich;
    CREATE VIEW read.joined AS SELECT a.item FROM read.stock a JOIN read.stock b USING (item);
"""


DESCRIPTION = """
    SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'read' AND tablename = 'stock' ORDER BY 1;
    SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid = 'read.stock'::regclass AND contype <> 'n' ORDER BY 1;
    SELECT reloptions, relacl::text, relowner::regrole::text, obj_description(oid) FROM pg_class
    WHERE oid = 'read.stock'::regclass;
    SELECT attname, attacl::text, col_description(attrelid, attnum), format_type(atttypid, atttypmod), attnotnull
    FROM pg_attribute WHERE attrelid = 'read.stock'::regclass AND attnum > 0 ORDER BY attnum;
    SELECT oid::regclass::text, reloptions, relacl::text, pg_get_viewdef(oid) FROM pg_class
    WHERE relname IN ('rich', 'richest', 'joined') ORDER BY 1
"""


def described(shop: Shop) -> list[object]:
    """All that psql would tell of the table and its views."""
    return [shop.all(query) for query in DESCRIPTION.split(";")]


def test_grants_indexes_constraints_settings_comments_and_views_come_along(granted: Shop, role: str) -> None:
    shop = granted
    shop.fill(100, 10)
    Worker(shop.url, stock()).run_once()
    shop.connection.execute(BELONGINGS.encode())
    for grant in (
        "GRANT SELECT ON read.stock TO {} WITH GRANT OPTION",
        "GRANT UPDATE (amount, price) ON read.stock TO {}",
        "GRANT SELECT ON public.rich TO {}",
    ):
        shop.connection.execute(SQL(grant).format(Identifier(role)))
    shop.connection.execute("GRANT SELECT ON read.stock TO PUBLIC")
    before = described(shop)
    shop.connection.execute("UPDATE read.stock SET price = 0")
    done = Rebuild(shop.url, stock()).run()
    assert done.left_behind == ()
    assert described(shop) == before
    prices = shop.all("SELECT price FROM read.stock WHERE amount > 10 ORDER BY item")
    assert shop.all("SELECT price FROM public.rich ORDER BY item") == prices
    assert shop.all("SELECT * FROM public.richest") == [(max(price for (price,) in prices),)]
    assert len(shop.all("SELECT * FROM read.joined")) == len(shop.dump())
    # There and back again.
    rollback(shop.url, stock())
    assert described(shop) == before
    assert shop.all("SELECT * FROM public.richest") == [(0,)]
    shop.connection.execute("DROP TABLE read_before.stock")


def test_a_superuser_s_rebuild_leaves_the_table_to_its_owner(granted: Shop, role: str) -> None:
    shop = granted
    shop.put("a")
    for grant in (
        "GRANT USAGE ON SCHEMA onefold TO {}",
        "GRANT SELECT ON onefold.migrations, onefold.events TO {}",
        "GRANT SELECT, INSERT, UPDATE ON onefold.checkpoints TO {}",
        "GRANT USAGE, CREATE ON SCHEMA read, read_next, read_before TO {}",
    ):
        shop.connection.execute(SQL(grant).format(Identifier(role)))
    as_role = make_conninfo(shop.url, user=role)
    Worker(as_role, stock()).run_once()
    assert Rebuild(shop.url, stock()).run().swapped
    shop.put("a")
    assert Worker(as_role, stock()).run_once().applied == 1


class Narrow(Row, key="item"):
    item: str
    amount: str = ""


def narrow() -> Projection[Narrow]:
    made = Projection("stock", Narrow, registry=known)

    @made.on(Put)
    def put(row: Narrow | None, event: Put) -> Narrow:
        return Narrow(item=event.meta.key, amount=str(event.amount))

    return made


def test_what_wants_a_column_that_is_gone_is_left_out_and_told(shop: Shop) -> None:
    shop.put("a")
    Worker(shop.url, stock()).run_once()
    shop.connection.execute(
        b"""
        CREATE INDEX by_price ON read.stock (price);
        CREATE INDEX by_amount ON read.stock (amount);
        COMMENT ON COLUMN read.stock.price IS 'gone';
        """
    )
    done = Rebuild(shop.url, narrow()).run()
    assert len(done.left_behind) == 2
    assert "by_price" in done.left_behind[0]
    assert "COMMENT ON COLUMN stock.price" in done.left_behind[1]
    assert shop.all("SELECT indexname FROM pg_indexes WHERE schemaname = 'read' ORDER BY 1") == [
        ("by_amount",),
        ("stock_pkey",),
    ]


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        (
            "CREATE VIEW v AS SELECT price FROM read.stock",
            "view v, which wants price as numeric where .* no such column",
        ),
        (
            "CREATE VIEW v AS SELECT amount FROM read.stock",
            "view v, which wants amount as bigint where .* as text",
        ),
    ],
)
def test_a_view_that_the_new_table_cannot_feed_is_named_before_anything_is_built(
    shop: Shop, statement: str, named: str
) -> None:
    shop.put("a")
    Worker(shop.url, stock()).run_once()
    shop.connection.execute(statement.encode())
    with pytest.raises(RebuildBlocked, match=named):
        Rebuild(shop.url, narrow()).run()
    assert shop.versions().keys() == {0}
    assert Rebuild(shop.url, stock()).run().swapped


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("CREATE MATERIALIZED VIEW m AS SELECT item FROM read.stock", "materialized view m"),
        ("CREATE RULE r AS ON DELETE TO read.stock DO ALSO NOTHING", "rule r on table"),
        ("ALTER TABLE read.stock ENABLE ROW LEVEL SECURITY", "row level security"),
        ("CREATE POLICY p ON read.stock USING (true)", "policy p on table"),
        ("CREATE TABLE child () INHERITS (read.stock)", "table child"),
        ("CREATE TABLE other (item text REFERENCES read.stock)", "constraint other_item_fkey on table other"),
        (
            """
            CREATE TABLE other (item text PRIMARY KEY); INSERT INTO other VALUES ('a');
            ALTER TABLE read.stock ADD FOREIGN KEY (item) REFERENCES other
            """,
            "constraint stock_item_fkey",
        ),
        (
            """
            CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
            CREATE TRIGGER t AFTER INSERT ON read.stock FOR EACH ROW EXECUTE FUNCTION f()
            """,
            "trigger t on table",
        ),
        (
            "CREATE FUNCTION f() RETURNS bigint LANGUAGE sql RETURN (SELECT count(*) FROM read.stock)",
            "function f()",
        ),
        ("CREATE FUNCTION f(x read.stock) RETURNS int LANGUAGE sql RETURN 1", "function f"),
        ("CREATE TABLE kept (old read.stock)", "column old of table kept"),
        ("CREATE PUBLICATION p FOR TABLE read.stock", "publication"),
        ("ALTER TABLE read.stock ADD extra bigint GENERATED ALWAYS AS IDENTITY", "sequence"),
    ],
)
def test_what_cannot_be_made_anew_is_named_before_anything_is_built(
    shop: Shop, statement: str, named: str
) -> None:
    shop.put("a")
    Worker(shop.url, stock()).run_once()
    shop.connection.execute(statement.encode())
    with pytest.raises(RebuildBlocked) as blocked:
        Rebuild(shop.url, stock()).run()
    assert named in str(blocked.value)
    assert "--in-place" in str(blocked.value)
    assert shop.versions().keys() == {0}
    assert shop.all("SELECT to_regclass('read_next.stock')") == [(None,)]
