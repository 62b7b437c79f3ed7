"""The audit of one route on Spark: what is read first bounds what is read later, as in ``relay verify``.

Positions and the destination's ends are taken before the log's end, so that a message that arrives meanwhile is at
worst *unseen* and never a phantom. Only facts travel; what is kept on the driver is small (captures without a
marker, begins and seals, windows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Final

from relay.audit import memory, readers, tables
from relay.audit.checker import (
    DEAD_AND_DELIVERED,
    DEAD_THOUGH_ABORTED,
    EXAMPLES_MAX,
    EXPIRED_TWICE,
    REDRIVING,
    Findings,
    Offender,
)
from relay.audit.ledger import Place
from relay.audit.neighbours import beside, former_monitors, neighbours, remember_all
from relay.audit.route_topics import names_of, needed, ranges_of
from relay.audit.verify import Offence, RouteReport
from relay.config.model import RelayConfig, RouteConfig, TableDestination, TopicDestination
from relay.jobs import facts, judging, table_facts
from relay.jobs.deaths import Deaths
from relay.jobs.facts import Rules
from relay.jobs.monitors import SMALL, Monitor, Monitors
from relay.jobs.outcomes import CaptureOutcomes
from relay.jobs.records import Range, Sources, located, read
from relay.jobs.session import reaching
from relay.jobs.windows import Window, WindowedReport, Windows, spread
from relay.message.errors import ConfigError
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD, DELIVERED, InputRange
from relay.monitor.resolution import Kind, Resolutions, Told
from relay.world import clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORDS_PER_TASK: Final = 500_000
TASKS_MAX: Final = 4096
_LOG: Final = "log.pos"
_IN_LOG: Final = (_LOG, "undecided.pos", "aborted.pos")
_OFFENCES: Final = (
    *(("lost", f"verdict = '{verdict}'", _LOG, why) for verdict, why in judging.LOST_WORDS.items()),
    ("in_doubt", "verdict = 'in_doubt'", _LOG, "its delivery was begun and nothing says how it ended"),
    ("in_doubt", "undecided is not null and log is null", "undecided.pos", "its capture is undecided"),
    ("unseen", "verdict = 'unseen'", _LOG, "not delivered yet"),
    ("unseen", f"verdict = '{judging.REDRIVING}'", _LOG, REDRIVING),
    ("phantoms", "verdict = 'phantom'", "last_effect", "no captured message has this identity"),
    ("phantoms", "verdict = 'phantom_aborted'", "last_effect", "its capture was aborted"),
    ("phantoms", judging.ABORTED_LETTER, "aborted.pos", DEAD_THOUGH_ABORTED),
    ("duplicates", "log is not null and effects > 1", "last_effect", "a second effect"),
    ("duplicates", f"verdict = '{judging.SECOND}'", _LOG, DEAD_AND_DELIVERED),
    ("duplicates", "verdict = 'expired' and effects > 1", "last_effect", EXPIRED_TWICE),
    ("altered", "log is not null and effects > 0 and log.content <> effect.content", "effect.pos",
     "key or value differ from the log's"),
)  # fmt: skip
"""Kind, which rows, where the offender lies (at the destination, or in the log), and why it is one."""
_ODD: Final = {
    "conflict": ("have another content", "the first wins"),
    "elsewhere": (
        "lie in another partition than their first",
        'their order is not judged; a producer must send one id to one partition, or the route set dedup = "route"',
    ),
}
Step = Callable[[str], None]


class RouteAudit:
    """One route; ``report`` reads and concludes in the order that bounds each reading by the one before."""

    def __init__(self, config: RelayConfig, route: RouteConfig, sources: Sources, step: Step) -> None:
        self._config, self._route, self._sources = config, route, sources
        self._tell = step
        self._notes: list[str] = []
        self._monitors = Monitors(sources.topics, self._read, self._notes)
        self._records = 0
        self._outputs: list[LogPartition] = []
        self._output_ranges: dict[LogPartition, Range] = {}
        self._partitions: list[LogPartition] = []
        self._first: dict[LogPartition, int] = {}
        self._is_recorded = False
        self._facts = sources.topics.describe(names_of(self._config, self._route), settings=False)
        for name in route.from_:
            needed(self._facts, self._route, name, "the log")
        if any(rule.startswith("avro:") for rule in route.identity):
            raise ConfigError(
                f"routes.{route.name}.identity = {route.identity}: avro: identities cannot be audited"
            )
        self._deaths = Deaths(config, route, self._facts, sources, self._monitors, self._read)
        ids = {name: self._facts[name].topic_id for name in route.from_}
        self._rules = Rules(tuple(route.identity), route.order, ids)

    def report(
        self, *, allow_lag: bool, window_s: int | None = None, tasks: int | None = None
    ) -> WindowedReport:
        """Read everything and conclude; counts are also given by window of ``window_s`` seconds (None: chosen), shuffles have ``tasks`` (None: by the records)."""
        started = clock.monotonic()
        route, to = self._route, self._route.to
        if isinstance(to, TableDestination):
            table_facts.check(route, to)
            self._rules = replace(self._rules, as_stored=table_facts.as_stored(self._config, to))
            where = f"table {to.table} in {to.resource}"
        elif isinstance(to, TopicDestination):
            where = f"topic {to.topic}"
        else:
            raise ConfigError(
                f"routes.{route.name}: this job audits routes to topics and tables, not to queues"
            )
        with ExitStack() as stack, reaching(f"the audit of route {route.name}"):
            resolutions = self._resolutions()
            # Before the positions: a living route may pass what retention takes meanwhile.
            begins = {place: low for place, (low, _end) in self._log_ranges().items()}
            self._step("monitor")
            monitor = self._monitors.small(self._config.monitor_topic(route.name))
            effects, dead, standing = self._before(monitor, to, stack)
            log, lows, self._partitions = self._log()
            self._sources.spark.conf.set("spark.sql.shuffle.partitions", str(tasks or self._tasks()))
            self._step("log")
            self._kept_log = self._kept(log, stack)
            self._refuse_respelled()
            sides = self._decided(CaptureOutcomes(self._config, resolutions, stack))
            met = self._kept(judging.meet([*sides, judging.sided(effects, judging.EFFECT), dead]), stack)
            self._step("meeting of log and destination")
            standing = judging.Standing(
                self._partitions, standing.positions, lows, monitor.evidence.open_ranges(),
                self._said_delivered(resolutions, lows), self._remembered(met, monitor, lows), self._outputs,
            )  # fmt: skip
            second = self._deaths.second(met)
            entered = self._entered(met, monitor)
            forgotten = self._deaths.forgotten(met, entered, monitor)
            untold = self._untold(met, monitor)
            judged = judging.judge(met, entered, standing, self._of_others(met, to), second, forgotten, untold)
            if isinstance(to, TableDestination) and readers.shares_rows(to):
                judged = self._kept(judging.sharing(judged), stack)
            late = self._late(met, monitor, to)
            findings, windows = self._conclude(met, judged, late, window_s)
            of_others = 0 if untold is None else judged.where("untold and verdict = 'forgotten'").agg({"effects": "sum"}).collect()[0][0] or 0
            self._notes += memory.said(findings.forgotten - of_others, lows, monitor.ranges)
            self._notes += memory.of_others(of_others)
            self._notes += memory.let_go(resolutions, self._route.name, lows)
            self._blame_left(findings, begins, standing.positions, monitor)
            ran = bool(self._is_recorded or standing.positions or self._monitors.instances(monitor))
            self._notes += memory.left_behind(findings, route, ran=ran, lows=lows, outputs=self._output_ranges)
            self._notes += filter(None, [route.identity_note])
            offences = self._named(findings)
        findings.notes += self._notes
        report = RouteReport(
            route.name, where, route.guarantee, findings, offences, clock.monotonic() - started,
            allow_lag, ordered=route.order != "none",
        )  # fmt: skip
        return WindowedReport(report, windows)

    def _step(self, words: str) -> None:
        self._tell(f"{self._route.name}: {words}")

    def _before(
        self, monitor: Monitor, to: TopicDestination | TableDestination, stack: ExitStack
    ) -> tuple[DataFrame, DataFrame, judging.Standing]:
        """Take the positions first, then what they promise: dead letters, and the ends of the outputs or the rows."""
        config, route = self._config, self._route
        partitions = [
            LogPartition(name, p) for name in route.from_ for p in range(self._facts[name].partitions)
        ]
        if isinstance(to, TableDestination):
            positions = self._kept_positions(to)
            self._look_again()
            dying = self._kept(table_facts.inbox(self._sources.spark, config, route, to, DEAD), stack)
            dying.count()  # now: a living worker trims a death as soon as its dead letter is there
            dead = self._deaths.sides().unionByName(judging.sided(dying, judging.DYING))
            effects = self._kept(table_facts.effects(self._sources.spark, config, route, to), stack)
            self._step(f"table {to.table}")
            self._records += effects.count()  # now, before the log's end is taken
            untold = effects.where("digest = X''").count()
            if untold:
                raise ConfigError(
                    f"routes.{route.name}: {untold} rows of {to.table} have no id, or no source where the route has several "
                    "topics, and this job cannot tell them apart: use `relay verify`"
                )
            return effects, dead, judging.Standing(partitions, positions, {})
        positions = self._sources.scan.committed(config.group_id(route.name), partitions)
        self._look_again()
        outputs = ranges_of(self._sources.topics, needed(self._facts, self._route, to.topic, "the destination"))
        dead = self._deaths.sides()
        self._outputs, self._output_ranges = list(outputs), outputs
        effects = facts.output_effects(
            self._read(outputs), self._outputs, self._rules, self._foreign(monitor)
        )
        return effects, dead, judging.Standing(partitions, positions, {})

    def _look_again(self) -> None:
        """Know the partitions that were added meanwhile: what is read later must hold all that was read before promises."""
        self._facts |= self._sources.topics.describe(self._facts, settings=False)

    def _kept_positions(self, to: TableDestination) -> dict[LogPartition, int]:
        """Return the positions in the table's own database: the group's offset is only a hint (design section 6)."""
        store = tables.open_store(to.resource, self._config.resources[to.resource])
        try:
            kept = store.positions(self._config.relay.name, self._route.name)
        finally:
            store.close()
        names = {topic_id: name for name, topic_id in self._rules.topic_ids.items()}
        return {LogPartition(names[one], number): at for (one, number), at in kept.items() if one in names}

    def _late(self, met: DataFrame, monitor: Monitor, to: TopicDestination | TableDestination) -> DataFrame:
        """Return the messages that took effect after a later one of their lane, and that nothing says were redriven."""
        pages = None
        if monitor.ranges:
            pages = facts.page_rows(self._read(monitor.ranges), list(monitor.ranges), monitor.ends)
        if isinstance(to, TopicDestination):
            late = judging.lapses(met)
        else:
            late = table_facts.lapses(met, table_facts.commits(self._sources.spark, self._config, self._route, to, pages))
        if pages is None or self._route.order == "none" or late.cache().isEmpty():
            return late
        return judging.not_redriven(late, pages)

    def _log_ranges(self) -> dict[LogPartition, Range]:
        found: dict[LogPartition, Range] = {}
        for name in self._route.from_:
            found |= ranges_of(self._sources.topics, self._facts[name])
        return found

    def _log(self) -> tuple[DataFrame, dict[LogPartition, int], list[LogPartition]]:
        """Return the facts of the log from where the route started."""
        self._look_again()
        ranges = self._log_ranges()
        begun = self._first_start()
        self._first, self._is_recorded = begun.offsets, begun.is_recorded
        lows = {partition: first for partition, (first, _end) in ranges.items() if partition.topic not in begun.made_again}
        for partition, start in self._first.items():
            if partition in ranges and ranges[partition][0] < start:
                ranges[partition] = (min(start, ranges[partition][1]), ranges[partition][1])
        partitions = list(ranges)
        return facts.log_facts(self._read(ranges), partitions, self._rules), lows, partitions

    def _refuse_respelled(self) -> None:
        """Raise ConfigError where a table's rows do not have the ids as their messages have them."""
        if self._rules.as_stored is None:
            return
        first = self._kept_log.where(f"respelled and kind = {facts.MESSAGE}").select("pos").head(1)
        if first:
            raise ConfigError(
                f"routes.{self._route.name}: the table's column of ids spells that of {self._place(first[0].pos, self._partitions)} otherwise "
                "than the log (a uuid in capitals, a number with zeros), and this job cannot tell such rows apart: use `relay verify`"
            )

    def _decided(self, asked: CaptureOutcomes) -> list[DataFrame]:
        """Divide the messages by how their captures ended; each part is one side of the meeting."""
        self._notes += asked.notes
        messages = self._kept_log.where(f"kind = {facts.MESSAGE}")
        free = judging.sided(messages.where("capture is null"), judging.CAPTURED)
        if self._kept_log.where("capture is not null").isEmpty():
            return [free]
        held = messages.where("capture is not null")
        markers = self._kept_log.where(f"kind in ({facts.COMMITTED}, {facts.ABORTED})")
        marked = markers.groupBy("capture").agg({"kind": "min"}).withColumnRenamed("min(kind)", "marked")
        committed = self._sent_to_all(marked.where(f"marked = {facts.COMMITTED}").select("capture"))
        undecided = held.join(committed, "capture", "left_anti")
        counted = judging.sided(held.join(committed, "capture", "left_semi"), judging.CAPTURED)
        return [free, counted, judging.ended(undecided, asked.of(undecided, marked))]

    def _sent_to_all(self, captures: DataFrame) -> DataFrame:
        """Let captures travel whole to every task as long as they are few: the messages need not be shuffled then."""
        from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

        kept = captures.cache()
        return sql.broadcast(kept) if kept.count() <= SMALL else kept

    def _entered(self, met: DataFrame, monitor: Monitor) -> DataFrame | None:
        """Ask the monitor about what the log and the destination do not explain; None where that is nothing."""
        wanted = judging.unexplained(met)
        first = wanted.limit(SMALL + 1).collect()
        if not first or not monitor.ranges:
            return None
        self._step(f"monitor, for {'more than ' if len(first) > SMALL else ''}{min(len(first), SMALL):,} messages")
        return self._monitors.deciding(monitor, wanted, first).cache()

    def _of_others(self, met: DataFrame, to: TopicDestination | TableDestination) -> DataFrame | None:
        """Return which effects of no message are those of other routes into the table, or of ones configured no more."""
        from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

        config, spark = self._config, self._sources.spark
        wanted = judging.strangers(met)
        first = wanted.limit(SMALL + 1).collect()
        if not first:
            return None
        others = neighbours(config, self._route)
        found = [
            table_facts.inbox(spark, config, other, to, DELIVERED).withColumn("former", sql.lit(False))
            for other in others if isinstance(to, TableDestination)
        ]  # fmt: skip
        monitors = {config.monitor_topic(other.name): False for other in others}
        for name in [*monitors, *former_monitors(config, self._sources.topics)]:
            monitor = self._monitors.small(name)
            if monitor.ranges:
                entered = self._monitors.deciding(monitor, wanted, first).where(f"entry.outcome = {DELIVERED}")
                found.append(entered.select("digest", sql.lit(monitors.get(name, True)).alias("former")))
        if not found:
            return None
        together = reduce(lambda one, other: one.unionByName(other), found).join(wanted, "digest", "left_semi")
        named = together.groupBy("digest").agg(sql.bool_and("former").alias("former")).cache()
        if others and isinstance(to, TableDestination):
            names = ", ".join(other.name for other in others)
            self._notes.append(f"{named.where('not former').count()} rows of {to.table} are those of {names}")
        return named

    def _remembered(
        self, met: DataFrame, monitor: Monitor, lows: Mapping[LogPartition, int]
    ) -> dict[LogPartition, int] | None:
        """Return from where on each output partition is younger than what log and monitor have lost; None if one is whole."""
        if memory.is_whole(lows, self._first, monitor.ranges) or judging.strangers(met).isEmpty():
            return None
        if not self._outputs:
            return {}
        self._step("how far back log and monitor remember")
        recent = self._monitors.recent(monitor, memory.margin_ms(self._config.timing))
        marks = facts.transaction_marks(self._read(self._output_ranges), self._outputs)
        return judging.first_recent(marks, recent, self._outputs)

    def _conclude(
        self,
        met: DataFrame,
        judged: DataFrame,
        late: DataFrame,
        window_s: int | None,
    ) -> tuple[Findings, list[Window]]:
        """Count by window, add what only a second look shows, and keep the first offenders of each kind."""
        findings, windows = Findings(), spread(judged, window_s)
        if self._route.order != "none" and windows.total("delivered"):
            self._step("order")
            self._order(findings, met, late, windows)
        if any(window.odd for window in windows):
            self._conflicts(findings, met, windows)
        for name in judging.COUNTED:
            setattr(findings, name, windows.total(name))
        findings.dead_letters = met.where("dead").count()
        self._examples(findings, judged)
        return findings, list(windows)

    def _blame_left(
        self,
        findings: Findings,
        begins: Mapping[LogPartition, int],
        positions: Mapping[LogPartition, int],
        monitor: Monitor,
    ) -> None:
        """Count as lost what left the log below the route's position, or below its start if nothing was ever entered."""
        left = {name: at for name, at in ({**self._first, **positions}).items() if at < begins.get(name, 0)}
        entered = self._monitors.entered(monitor) if left.keys() - positions.keys() else set()
        for name, at in left.items():
            if name in positions or name not in entered:
                low = begins[name]
                why = f"the route stands there, but the log begins at {low}: up to that, it was left undelivered"
                findings.blame("lost", Place(name.topic, name.partition, at), why, low - at)

    def _order(self, findings: Findings, met: DataFrame, late: DataFrame, windows: Windows) -> None:
        late = late.cache()
        for row in late.groupBy(windows.column().alias("window")).count().collect():
            windows.at(int(row["window"])).counts["reordered"] = int(row["count"])
        for row in late.orderBy("pos").limit(EXAMPLES_MAX).collect():
            _, after = located(row.after, self._partitions)
            why = f"{'delivered' if self._outputs else 'committed'} after offset {after} of its lane"
            self._example(findings, "reordered", self._place(row.pos, self._partitions), why)
        moved = judging.wandering_lanes(met) if self._outputs else 0
        if moved:
            findings.notes.append(
                f"{moved} lanes lie in more than one output partition: their order cannot be seen across them (was "
                "the topic grown?)"
            )

    def _conflicts(self, findings: Findings, met: DataFrame, windows: Windows) -> None:
        messages = self._kept_log.where(f"kind = {facts.MESSAGE}")
        odd = judging.conflicts(met, messages).cache()
        per_window = odd.groupBy(windows.column().alias("window")).agg(
            {"conflict": "count_if", "elsewhere": "count_if"}
        )
        for row in per_window.collect():
            windows.at(int(row["window"])).counts["conflicts"] = int(row["count_if(conflict)"])
        for name, words in _ODD.items():
            first = odd.where(name).orderBy("pos").limit(1).collect()
            if first:
                count, place = odd.where(name).count(), self._place(first[0].pos, self._partitions)
                findings.notes.append(f"{count} repeats {words[0]} (such as {place}): {words[1]}")

    def _examples(self, findings: Findings, judged: DataFrame) -> None:
        """Keep the first few offenders of each kind by their place; a row of a table has none of its own."""
        present = [one for one in _OFFENCES if getattr(findings, one[0])]
        if not present:
            return
        # One pass over everything; the kinds are looked for among what is wrong at all.
        wrong = judged.where(" or ".join(f"({condition})" for _, condition, _, _ in present)).cache()
        for kind, condition, where, why in present:
            lies_in_log = where in _IN_LOG
            first = (
                wrong.where(condition).selectExpr(f"{where} as pos", "log.pos as log").orderBy("pos", "log")
            )
            for row in first.limit(EXAMPLES_MAX).collect():
                if lies_in_log or (row.pos is None and row.log is not None):
                    place = self._place(row.log if row.pos is None else row.pos, self._partitions)
                    self._example(findings, kind, place, why)
                elif row.pos is None:
                    self._example(findings, kind, f"a row of {getattr(self._route.to, 'table', '')}", why)
                else:
                    self._example(findings, kind, self._place(row.pos, self._outputs), why)

    @staticmethod
    def _example(findings: Findings, kind: str, place: Place | str, why: str) -> None:
        if sum(offender.kind == kind for offender in findings.offenders) < EXAMPLES_MAX:
            findings.offenders.append(Offender(kind, place, why))

    @staticmethod
    def _place(pos: int, partitions: list[LogPartition]) -> Place:
        partition, offset = located(pos, partitions)
        return Place(partition.topic, partition.partition, offset)

    def _named(self, findings: Findings) -> list[Offence]:
        offences = []
        for kind, place, why in findings.offenders:
            name, source = "", ""
            if isinstance(place, Place):
                name, source = readers.describe(
                    self._sources.scan, place.topic, place.partition, place.offset
                )
            offences.append(Offence(kind, str(place), name, source, why))
        return offences

    def _foreign(self, own: Monitor) -> set[bytes]:
        """Return the producer instances of other routes that write into the same output topic."""
        found = self._instances([self._config.monitor_topic(name) for name in beside(self._config, self._route)])
        return found - self._monitors.instances(own) if found else found

    def _untold(self, met: DataFrame, own: Monitor) -> DataFrame | None:
        """Return the effects that may be those of other routes, whose monitors have forgotten who wrote them; None if they have not."""
        others = beside(self._config, self._route)
        if not self._outputs or remember_all(self._config, others, self._sources.topics) or judging.strangers(met).isEmpty():
            return None
        monitors = [*map(self._config.monitor_topic, others), *former_monitors(self._config, self._sources.topics)]
        known = self._instances(monitors) | self._monitors.instances(own)
        return judging.of_unknown(met, facts.transaction_marks(self._read(self._output_ranges), self._outputs), known).cache()

    def _instances(self, monitors: Iterable[str]) -> set[bytes]:
        return set[bytes]().union(*(self._monitors.instances(self._monitors.small(name)) for name in monitors))

    def _first_start(self) -> readers.FirstStart:
        if self._config.control_topic not in self._facts:
            return readers.FirstStart()
        control = ranges_of(self._sources.topics, self._facts[self._config.control_topic])
        return readers.FirstStart(self._sources.scan.read(control), self._route.name, self._rules.topic_ids)

    def _resolutions(self) -> Resolutions:
        if self._config.control_topic not in self._facts:
            return Resolutions()
        return readers.resolutions(
            self._sources.scan.read(ranges_of(self._sources.topics, self._facts[self._config.control_topic]))
        )

    def _said_delivered(self, resolutions: Resolutions, places: Iterable[LogPartition]) -> list[InputRange]:
        said = resolutions.of_route(Kind.DELIVERY, self._route.name, places)
        obeyed = [one for one in said if one.told is Told.COMMIT and resolutions.is_obeyed(one)]
        return [InputRange(*one.subject.place, one.subject.first, one.subject.next) for one in obeyed]

    def _read(self, ranges: Mapping[LogPartition, Range]) -> DataFrame:
        self._sources.broker.wait_until_stable(ranges)
        self._records += sum(end - first for first, end in ranges.values())
        tasks = 2 * self._sources.spark.sparkContext.defaultParallelism
        return read(self._sources.spark, self._sources.java, ranges, tasks=tasks)

    def _tasks(self) -> int:
        """Return into how many tasks the meeting of log and destination is divided: some 40 MB of facts each."""
        return min(
            max(self._records // RECORDS_PER_TASK, self._sources.spark.sparkContext.defaultParallelism),
            TASKS_MAX,
        )

    def _kept(self, frame: DataFrame, stack: ExitStack) -> DataFrame:
        """Keep a frame that is asked several times on the executors' disks, until the report is made."""
        from pyspark import StorageLevel  # noqa: PLC0415 - see the package

        kept = frame.persist(StorageLevel.DISK_ONLY)
        stack.callback(kept.unpersist)
        return kept
