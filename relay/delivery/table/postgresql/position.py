"""Positions under their epochs in PostgreSQL: whoever claims a partition raises its epoch, and no earlier one moves it again."""

from __future__ import annotations

from typing import Final

CLAIM: Final = """
insert into {position} as p (relay, route, topic_id, topic, partition, position, epoch, worker)
select %(relay)s, %(route)s, topic_id, topic, partition, null, 1, %(worker)s
from unnest(%(topic_ids)s::bytea[], %(topics)s::text[], %(partitions)s::int[]) as u (topic_id, topic, partition)
order by topic_id, partition
on conflict (relay, route, topic_id, partition)
do update set epoch = p.epoch + 1, worker = excluded.worker, topic = excluded.topic, writes = 0
returning topic_id, partition, epoch, position
"""
MOVE: Final = """
update {position} p set position = greatest(p.position, u.position), writes = u.floor + 1
from unnest(
    %(topic_ids)s::bytea[], %(partitions)s::int[], %(epochs)s::bigint[], %(positions)s::bigint[], %(floors)s::bigint[]
) as u (topic_id, partition, epoch, position, floor)
where p.relay = %(relay)s and p.route = %(route)s and p.topic_id = u.topic_id and p.partition = u.partition
    and p.epoch = u.epoch and p.worker = %(worker)s and p.writes >= u.floor
"""
HOLD: Final = """
select position from {position} where relay = %(relay)s and route = %(route)s and topic_id = %(topic_id)s
    and partition = %(partition)s and epoch = %(epoch)s and worker = %(worker)s for update
"""
