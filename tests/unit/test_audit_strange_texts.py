"""A table that others write to as well may hold texts that are none."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from relay.audit.tables import open_store
from relay.config.model import ResourceConfig


def test_a_row_whose_text_is_not_utf8_hides_no_other(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as file:
        file.execute("create table ledger (id text primary key, total integer not null)")
        file.execute("insert into ledger values ('41', 1), (x'ff42', 2), ('43', 3)")

    with closing(open_store("shop", ResourceConfig.model_validate({"url": f"sqlite:///{tmp_path}/shop.db"}))) as store:
        assert sorted(store.rows("ledger", ["id", "total"])) == [("41", "1"), ("43", "3"), ("\ufffdB", "2")]
