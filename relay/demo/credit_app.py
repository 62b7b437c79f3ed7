"""The two applications of the document's example, [28]: the customer database's module and the credit approval's.

``relay work relay.demo.credit_app --queue sales --subscriber customer`` enriches each sale with its customer and publishes it
to the queue of the credit approval, which lies on another medium; the approval books its decision.
"""

from __future__ import annotations

from typing import Any

from relay.work.desks import Database
from relay.work.message import Message
from relay.work.subscriber import Unusable, subscriber


@subscriber("sales", resource="shop")
def customer(message: Message, db: Database) -> None:
    """Add what the customer database knows, and pass the sale on to the credit approval."""
    sale: dict[str, Any] = message.json()
    row = db.execute("select credit, bank from customer where id = %s", (sale["customer"],)).fetchone()
    if row is None:
        raise Unusable("the customer is not known")
    message.publish("credit", {**sale, "credit": row[0], "bank": row[1]}, key=str(sale["customer"]))


@subscriber("credit", resource="shop")
def approval(message: Message, db: Database) -> None:
    """Decide, and book the decision."""
    sale: dict[str, Any] = message.json()
    db.execute(
        "insert into decision (sale, customer, approved) values (%s, %s, %s)",
        (sale["id"], sale["customer"], sale["total"] <= sale["credit"]),
    )
