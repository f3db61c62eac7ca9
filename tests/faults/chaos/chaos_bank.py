"""The application whose consumer processes are killed: each deposit becomes an event of the account and changes a row.

Neither is idempotent by itself, so that whatever is applied twice, not at all or out of its turn is seen in the end.
"""

from onefold import Aggregate, App, Event, Message, Registry, Retention, Transaction, applies, consumer

TABLE = """
    CREATE TABLE IF NOT EXISTS accounts (
        account text PRIMARY KEY, balance bigint NOT NULL, count bigint NOT NULL, last bigint NOT NULL,
        in_order boolean NOT NULL
    )
"""
known = Registry()


class Purse(Aggregate, category="purse"):
    class Filled(Event, name="purse.filled", registry=known):
        amount: int

    balance: int = 0

    @applies(Filled)
    def _filled(self, event: Filled) -> None:
        self.balance += event.amount

    def fill(self, amount: int) -> None:
        self.emit(self.Filled(amount=amount))


@consumer(
    "deposits",
    ordering="delta",
    version="sequence",
    registry=known,
    # Some of the brokers keep their messages for ever.
    retention=Retention(redelivery=86_400.0),
)
def deposits(message: Message, tx: Transaction) -> None:
    account, amount = message.subject or "", message.data["amount"]
    purse = tx.find(Purse, account) or Purse.new(account)
    purse.fill(amount)
    tx.save(purse)
    tx.execute(
        "INSERT INTO accounts AS a VALUES (%s, %s, 1, %s, true) ON CONFLICT (account) DO UPDATE "
        "SET balance = a.balance + excluded.balance, count = a.count + 1, last = excluded.last, "
        "in_order = a.in_order AND excluded.last = a.last + 1",
        (account, amount, int(message.extensions["sequence"])),
    )


app = App(aggregates=[Purse], consumers=[deposits])
