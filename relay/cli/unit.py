"""``relay unit close CONFIG UNIT RUN``: end a run whose driver will never come back, as that driver would have.

Messages of such a run wait, shown by `relay indoubt list` with the resource `decisions:UNIT/RUN`. The query's next run
would end them as well; nothing ends them by age.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relay.capture.decisions import PREFIX, UnitDecision, unit_called
from relay.cli.choosing import WhoOption, me, needed
from relay.cli.report import ConfigArgument, JsonOption, print_json, print_line, purpose
from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.control.status_reading import StatusReader
from relay.kafka.decisions import DecisionWriter, decisions_partition
from relay.message.errors import CheckFailed, ConfigError, RelayError
from relay.run.status_record import TEXT_CHARACTERS_MAX, WAITING_MAX
from relay.setup.required import require_topics

app = typer.Typer(add_completion=False, no_args_is_help=True, help=purpose(__doc__))


@app.callback()
def _unit() -> None:
    """Keep ``close`` a command of its own."""


@app.command("close")
def close_command(
    config: ConfigArgument,
    unit: Annotated[str, typer.Argument(metavar="UNIT", help="What stands between `decisions:` and the last slash.")],
    run: Annotated[str, typer.Argument(metavar="RUN", help="What stands behind the last slash.")],
    *,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the decision.")],
    who: WhoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide that nothing of this run counts. Refused (exit 1) if the unit is committed; a living driver finds out."""
    needed(reason)
    _check_names(unit, run)
    loaded = load(Path(config))
    why = f"{who or me()}: {reason[:1000]}"
    require_topics(loaded, decisions_partition(loaded.relay.name).topic)
    known = _may_be_waited_for(loaded, unit, run)
    wanted = UnitDecision(unit_called(unit), run, committed=False, why=why)
    stands = DecisionWriter(loaded.kafka, loaded.timing, loaded.relay.name).decide(wanted)
    if stands.committed:
        raise CheckFailed(
            f"unit {unit} is committed, by run {stands.run} with {stands.rows} rows; what that run wrote counts, and "
            "nothing else of the unit does: there is nothing to close"
        )
    if as_json:
        print_json({"unit": unit, "run": run, "closed": True, "why": stands.why, "known": known})
        return
    print_line(f"run {run} of unit {unit} is closed; workers drop its messages when they ask next")
    if not known:
        print_line("note: no worker waits for that run so far; `relay indoubt list` shows for which they do", style="yellow")


def _may_be_waited_for(config: RelayConfig, unit: str, run: str) -> bool:
    """Does a worker wait for this run, as far as can be seen? With a slip in its name nothing is dropped."""
    named = f"{PREFIX}{unit}/{run}"[:TEXT_CHARACTERS_MAX]
    try:
        with StatusReader(config) as reader:
            reader.read()
            places = [place for record in reader.records() for place in record.partitions]
    except RelayError:
        return True
    return any(len(place.waiting) >= WAITING_MAX or named in {one.resource for one in place.waiting} for place in places)


def _check_names(unit: str, run: str) -> None:
    """Refuse what no run is called: nothing would wait for that decision, and the run that was meant would wait on."""
    if not unit or not run or unit.startswith(PREFIX) or "/" in run:
        raise ConfigError(
            f"UNIT {unit!r} and RUN {run!r} name no run; of {PREFIX}UNIT/RUN, as `relay indoubt list` shows it, give what "
            "stands between the colon and the last slash, and what stands behind that"
        )
