"""The application whose relay processes are killed: what tills take goes out, and is added up where it comes in.

Adding up is not idempotent by itself, so that whatever arrives twice, not at all or out of its turn is seen in the end.
"""

from onefold import Aggregate, App, Event, Message, Retention, Transaction, applies, consumer, publish

TABLE = """
    CREATE TABLE takings (
        till text PRIMARY KEY, total bigint NOT NULL, count bigint NOT NULL, last bigint NOT NULL,
        in_order boolean NOT NULL
    )
"""


class Till(Aggregate, category="till"):
    class Taken(Event, name="till.taken"):
        amount: int

    total: int = 0

    @applies(Taken)
    def _taken(self, event: Taken) -> None:
        self.total += event.amount


@consumer("takings", ordering="delta", version="sequence", retention=Retention(redelivery=86_400.0))
def takings(message: Message, tx: Transaction) -> None:
    tx.execute(
        "INSERT INTO takings AS t VALUES (%s, %s, 1, %s, true) ON CONFLICT (till) DO UPDATE "
        "SET total = t.total + excluded.total, count = t.count + 1, last = excluded.last, "
        "in_order = t.in_order AND excluded.last = t.last + 1",
        (message.subject, message.data["amount"], int(message.extensions["sequence"])),
    )


app = App(
    aggregates=[Till],
    consumers=[takings],
    publications=[publish(Till.Taken, to="takings"), publish(Till.Taken, to="logged", via="log")],
)
