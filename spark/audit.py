"""Audits a relay at any scale: log, outcomes, monitor and destination are held against each other on Spark.

It counts what ``relay verify`` counts, by the same rules and under the same names, and also by time window; the
report is JSON and a page with charts. Run it with ``relay spark audit CONFIG --help``.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.jobs import session
from relay.jobs.auditing import RouteAudit, Step
from relay.jobs.page import page
from relay.jobs.records import Broker, Sources, java_settings
from relay.jobs.windows import WindowedReport
from relay.kafka.scan import Scan
from relay.kafka.topics import Topics
from relay.message.errors import ConfigError, RelayError


def main(arguments: Sequence[str]) -> int:
    """Run the job: 0 all is right, 1 it is not, 2 wrong words or parts, 3 unreachable.

    A route that cannot be audited does not keep the others from it; where they are right, its own status is returned.
    """
    options = _parse(arguments)
    return session.run("audit", lambda: _audit(options))


def _parse(arguments: Sequence[str]) -> Namespace:
    parser = session.parser("audit", __doc__ or "")
    parser.add_argument("config", help="the configuration, such as relay.toml")
    parser.add_argument("--route", action="append", default=[], help="only this route; may be repeated")
    parser.add_argument(
        "--allow-lag", action="store_true", help="messages not delivered yet do not fail the check"
    )
    parser.add_argument(
        "--window", type=session.count, metavar="SECONDS", help="width of the time windows (default: chosen)"
    )
    parser.add_argument("--report", type=session.written, metavar="FILE", help="write the JSON report here as well")
    parser.add_argument("--html", type=session.written, metavar="FILE", help="write the page with charts here")
    parser.add_argument(
        "--tasks", type=session.count, metavar="N", help="tasks of a shuffle (default: by the number of records)"
    )
    return parser.parse_args(arguments)


def _audit(options: Namespace) -> int:
    config = load(Path(options.config))
    unknown = [name for name in options.route if name not in config.routes]
    if unknown:
        raise ConfigError(
            f"--route {unknown[0]}: there is no such route; there are: {', '.join(config.routes)}"
        )
    java = java_settings(config.kafka)
    spark = session.start("audit", options.master)
    with (
        Topics(config.kafka, config.timing) as topics,
        Scan(config.kafka, config.timing, f"{config.relay.name}.verify") as scan,
        session.progress(spark, "audit") as step,
    ):
        sources = Sources(spark, java, Broker(spark, java), topics, scan)
        topics.names()  # brokers that are away are told once, not for each route
        found, refused = _reports(options, config, sources, step)
    if not found and len(refused) == 1:
        raise next(iter(refused.values()))
    routes = {one.report.route: one.document() for one in found}
    if not options.json:
        for one in found:
            session.say(("right: " if one.report.ok else "WRONG: ") + one.report.sentence)
        for name, error in refused.items():
            session.say(f"NOT AUDITED: {name}: {error}")
    right = all(one.report.ok for one in found)
    _write(options, config, routes, refused)
    return max((error.exit_code for error in refused.values()), default=0) if right else 1


def _reports(
    options: Namespace, config: RelayConfig, sources: Sources, step: Step
) -> tuple[list[WindowedReport], dict[str, RelayError]]:
    """Audit each route; one that cannot be audited does not keep the others from it, and is returned with why."""
    found, refused = list[WindowedReport](), dict[str, RelayError]()
    for name in options.route or config.routes:
        try:
            audit = RouteAudit(config, config.routes[name], sources, step)
            found.append(audit.report(allow_lag=options.allow_lag, window_s=options.window, tasks=options.tasks))
        except RelayError as error:
            refused[name] = error
    return found, refused


def _write(options: Namespace, config: RelayConfig, routes: dict[str, dict[str, Any]], refused: Mapping[str, RelayError]) -> None:
    errors = {name: {"ok": False, "error": str(error)} for name, error in refused.items()}
    document: dict[str, Any] = {"ok": not errors and all(route["ok"] for route in routes.values()), "routes": routes | errors}
    text = orjson.dumps(document, option=orjson.OPT_INDENT_2, default=str).decode()
    if options.json:
        session.say(text)  # before the files: what was found must not go with a disk that is full
    try:
        if options.report:
            options.report.write_text(text + "\n", "utf-8")
        if options.html:
            options.html.write_text(page(f"Audit of {config.relay.name}", document["routes"]), "utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written ({error.strerror}); name a file that you may write, where there is room") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
