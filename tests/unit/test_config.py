"""A configuration is read whole: defaults, names, references, and every fault in one answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.config.loading import examine, load
from relay.config.model import TableDestination, TopicDestination
from relay.config.quantities import duration, spoken
from relay.message.errors import ConfigError
from relay.message.owned_topics import is_owned_topic
from tests.unit.configurations import BASE, ROUTES, faults_of, good, route_with, table_with


def test_defaults_are_those_of_the_design(tmp_path: Path) -> None:
    config = good(BASE + ROUTES, tmp_path)

    route = config.routes["to-ledger"]
    assert (route.name, route.from_, route.order, route.start) == (
        "to-ledger",
        ["orders"],
        "publisher",
        "earliest",
    )
    assert route.identity == ["cloudevents", "position"]
    assert (route.dedup, route.on_dead) == ("partition", "continue")
    assert (route.batch.messages, route.batch.bytes, route.batch.linger_s) == (20_000, 16 * 1024**2, 0.005)
    assert config.timing.transaction_timeout == 10
    assert config.timing.monitor_retention == 14 * 86400


def test_destinations_say_what_they_promise(tmp_path: Path) -> None:
    config = good(BASE + ROUTES, tmp_path)

    assert isinstance(config.routes["to-ledger"].to, TopicDestination)
    assert isinstance(config.routes["to-table"].to, TableDestination)
    assert config.routes["to-ledger"].guarantee == "exactly once for read_committed readers"
    assert config.routes["to-table"].guarantee == "exactly once"


def test_names_of_everything_the_relay_owns(tmp_path: Path) -> None:
    config = good(BASE + ROUTES, tmp_path)

    assert config.monitor_topic("to-ledger") == "shop.to-ledger.monitor"
    assert config.deadletter_topic == "shop.deadletter"
    assert config.control_topic == "shop.control"
    assert config.group_id("to-ledger") == "shop.to-ledger"
    assert config.transactional_id("to-ledger", 2) == "shop.to-ledger.a.2"
    assert is_owned_topic("shop", "shop.to-ledger.monitor")
    assert not is_owned_topic("shop", "shop.orders")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = good(BASE, tmp_path)

    assert config.relay.state == tmp_path / "state"
    assert config.resources["shop"].url.get_secret_value() == f"sqlite:///{tmp_path}/shop.db"
    assert config.resources["shop"].kind == "sqlite"


def test_an_absolute_sqlite_path_stays(tmp_path: Path) -> None:
    config = good(BASE.replace("sqlite:///shop.db", "sqlite:////var/shop.db"), tmp_path)

    assert config.resources["shop"].url.get_secret_value() == "sqlite:////var/shop.db"


@pytest.mark.parametrize("written", ["./shop.db", "other/../shop.db", "link/shop.db", "link.db"])
def test_every_way_of_writing_one_file_is_one_address(tmp_path: Path, written: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "link.db").symlink_to(tmp_path / "shop.db")
    queue = f'[queues.q]\nstore = "sqlite:///{written}"\nsubscribers = {{ one = {{}} }}\n'
    config = good(BASE + queue, tmp_path)

    assert config.queues["q"].store == config.resources["shop"].url.get_secret_value()


def test_references(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    (tmp_path / "password").chmod(0o600)
    text = BASE.replace('"a"', '"${HOSTNAME}-${env:SIDE:-left}"').replace(
        "sqlite:///shop.db", "postgresql://bob:${file:password}@db/shop$${x}"
    )

    config = good(text, tmp_path, HOSTNAME="box")

    assert config.relay.instance == "box-left"
    assert config.resources["shop"].url.get_secret_value() == "postgresql://bob:s3cret@db/shop${x}"
    assert config.notes == ()


def test_the_machine_has_a_name_even_when_the_environment_has_none(tmp_path: Path) -> None:
    assert good(BASE.replace('"a"', '"${HOSTNAME}"'), tmp_path).relay.instance == os.uname().nodename


@pytest.mark.parametrize("reference", ["${env:MISSING}", "${MISSING}", "${file:missing}", "${what is this}"])
def test_a_reference_that_leads_nowhere_is_one_fault(reference: str, tmp_path: Path) -> None:
    (fault,) = faults_of(BASE.replace('"a"', f'"{reference}"'), tmp_path)

    assert fault.key == "relay.instance"
    assert reference in fault.value


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(
        """
        [relay]
        name = "sh.op"
        instanc = "x"
        [kafka]
        "bootstrap.servers" = "127.0.0.1:9092"
        "acks" = 1
        [resources.shop]
        url = "mysql://host/db"
        [routes.a]
        from = []
        to = { topic = "t" }
        [routes.b]
        from = ["x"]
        to = { queue = "p" }
        [timing]
        resend_after = "20s"
        dedup_horizon = "30 days"
        [queues.q]
        store = "x"
        """
    )

    with pytest.raises(ConfigError) as raised:
        load(path)

    text = str(raised.value)
    for key in (
        "queues.q.subscribers",
        "relay.name = 'sh.op'",
        "relay.instance: ",
        "relay.instanc: ",
        'kafka."acks"',
        "resources.shop.url = (hidden)",
        "routes.a.from",
        "routes.b.to.queue = 'p'",
        "timing.resend_after = 20s",
        "timing.dedup_horizon",
    ):
        assert f"\n  {key}" in text
    assert "11 faults" not in text
    assert "10 faults" in text
    assert "did you mean instance?" in text


def test_a_value_of_the_wrong_type_is_told_in_words_of_the_file(tmp_path: Path) -> None:
    (fault,) = faults_of(BASE.replace('instance = "a"', 'instance = "a"\nstate = 3'), tmp_path)
    (flag,) = faults_of(BASE + '[routes.r]\nfrom = ["x"]\nto = { topic = "t" }\ndedup = true\n', tmp_path)

    assert str(fault) == "relay.state = 3: not a path; write a path in quotes"
    assert str(flag).startswith("routes.r.dedup = true: ")


def test_a_file_that_is_no_toml_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "relay.toml"
    path.write_text("[relay\n")

    with pytest.raises(ConfigError, match="line 1"):
        load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"number = {'1' * 5000}", "is not TOML: Exceeds the limit"),
        (f"deep = {'[' * 5000}{']' * 5000}", "nested hundreds deep"),
        (f"{'.'.join('a' * 5000)} = 1", "nested hundreds deep"),
    ],
    ids=["a number", "brackets", "keys"],
)
def test_what_is_too_long_or_too_deep_for_any_reader_is_told_in_a_sentence(line: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(f"{line}\n{BASE}")

    with pytest.raises(ConfigError, match=told):
        load(path)


def test_a_path_with_a_nul_is_no_path() -> None:
    with pytest.raises(ConfigError, match="not a path; give the path of a configuration"):
        load(Path("relay\0.toml"))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("relay.state", BASE.replace('"a"', '"a"\nstate = "st\\u0000ate"')),
        ("resources.shop.url", BASE.replace("shop.db", "sh\\u0000op.db")),
        ("kafka.ssl.ca.location", BASE.replace(':9092"', ':9092"\n"ssl.ca.location" = "c\\u0000a"')),
        ("registry.ca", f'{BASE}[registry]\nurl = "https://registry"\nca = "c\\u0000a"'),
        ("queues.q.store", f'{BASE}[queues.q]\nstore = "sqlite:///q\\u0000.db"\nsubscribers = {{ one = {{}} }}'),
    ],
)
def test_a_nul_in_a_text_is_one_fault(key: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "ca").touch()

    (fault,) = faults_of(text, tmp_path)

    assert (fault.key, fault.problem) == (key, "it holds a NUL character")


def test_a_variable_that_is_not_utf8_is_a_fault(tmp_path: Path) -> None:
    url = "postgresql://clerk\udcff@host/shop"

    (fault,) = faults_of(BASE.replace("sqlite:///shop.db", "${env:URL}"), tmp_path, URL=url)

    assert fault.key == "resources.shop.url"
    assert "not UTF-8" in fault.problem


def test_durations_and_sizes(tmp_path: Path) -> None:
    text = route_with('batch = { linger = "20ms", bytes = "1MiB", messages = 5 }\n') + (
        '[timing]\nresend_after = "250ms"\ndedup_horizon = "2d"\nmonitor_retention = 1209600\nmarker_wait = 0.5\n'
    )

    config = good(text, tmp_path)

    assert config.routes["r"].batch.linger_s == 0.02
    assert config.routes["r"].batch.bytes == 1024**2
    assert config.timing.resend_after == 0.25
    assert config.timing.dedup_horizon == 172800
    assert config.timing.marker_wait == 0.5


@pytest.mark.parametrize(
    ("seconds", "text"), [(1_209_600, "14d"), (90, "90s"), (120, "2min"), (0.25, "250ms"), (0.3, "300ms"), (1.5, "1500ms"), (0, "0s")]
)
def test_a_duration_is_told_as_it_is_written(seconds: float, text: str) -> None:
    assert spoken(seconds) == text
    assert duration(text) == pytest.approx(seconds)


def test_the_order_of_limits_is_told_in_their_units(tmp_path: Path) -> None:
    (fault,) = faults_of(BASE + '[timing]\ndedup_horizon = "15d"\n', tmp_path)

    assert (fault.value, fault.problem.partition(":")[0]) == ("15d", "must be at most timing.monitor_retention (14d)")


@pytest.mark.parametrize("lines", ["retain = true", "subscribers = ['one']", "balancing = 5"])
def test_what_must_be_a_table_is_told_so(lines: str, tmp_path: Path) -> None:
    queue = f'{BASE}[queues.q]\nstore = "sqlite:///q.db"\n{lines}\n'

    faults = faults_of(queue if "subscribers" in lines else f"{queue}subscribers = {{ one = {{}} }}\n", tmp_path)

    assert [(fault.problem, fault.remedy) for fault in faults] == [("not a table of settings", "write { name = value }")]


@pytest.mark.parametrize("given", ["inf", "1e308", "9" * 400, '"36501d"', f'"{"9" * 400}d"'])
@pytest.mark.parametrize("key", ["ttl", "lease", "retry_max"])
def test_a_duration_beyond_all_use_is_one_fault(key: str, given: str, tmp_path: Path) -> None:
    queue = f'{BASE}[queues.q]\nstore = "sqlite:///q.db"\nsubscribers = {{ one = {{}} }}\n{key} = '

    (fault,) = faults_of(queue + given, tmp_path)

    assert (fault.key, fault.problem) == (f"queues.q.{key}", "longer than a hundred years")
    assert faults_of(queue + '"36500d"', tmp_path) == []


@pytest.mark.parametrize("given", [str(2**63), f'"{"9" * 400}"', '"9000000000GiB"'])
def test_a_size_beyond_all_use_is_one_fault(given: str, tmp_path: Path) -> None:
    (fault,) = faults_of(route_with(f"inflight = {{ hold_bytes = {given} }}"), tmp_path)

    assert fault.key == "routes.r.inflight.hold_bytes"


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("resend_after = 10", "timing.resend_after"),
        ("resend_after = 5\nresend_max = 4", "timing.resend_after"),
        ("transaction_timeout = 60\nin_doubt_alarm = 60", "timing.transaction_timeout"),
        ("socket_timeout = 9.95", "timing.socket_timeout"),
        ("idle_in_transaction = 11", "timing.idle_in_transaction"),
        ("statement_timeout = 10.5", "timing.statement_timeout"),
        ("resolver_lock_timeout = 8", "timing.resolver_lock_timeout"),
        ("dedup_horizon = '15d'", "timing.dedup_horizon"),
        ("append_timeout = 30", "timing.append_timeout"),
        ("marker_wait = 60", "timing.marker_wait"),
        ("transaction_timeout = 901\nin_doubt_alarm = 3000", "timing.transaction_timeout"),
        ("resend_after = 0", "timing.resend_after"),
    ],
)
def test_limits_keep_their_order(lines: str, key: str, tmp_path: Path) -> None:
    (fault,) = faults_of(f"{BASE}\n[timing]\n{lines}\n", tmp_path)

    assert fault.key == key
    assert fault.remedy


def test_a_session_that_brokers_refuse(tmp_path: Path) -> None:
    text = f"{BASE}\n[timing]\nsession_timeout = 5\nidle_in_transaction = 5\nstatement_timeout = 4\n"

    assert [fault.key for fault in faults_of(text, tmp_path)] == ["timing.session_timeout"]


def test_limits_at_their_edges_are_lawful(tmp_path: Path) -> None:
    good(
        f"{BASE}\n[timing]\nsocket_timeout = 9.9\nidle_in_transaction = 10\nmonitor_retention = '7d'\n",
        tmp_path,
    )


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (route_with("", '{ topic = "orders" }'), "routes.r.to.topic", "go round for ever"),
        (route_with("", '{ topic = "shop.other.monitor" }'), "routes.r.to.topic", "relay's own"),
        (route_with("", '{ topic = "a/b" }'), "routes.r.to.topic", "not a topic's name"),
        (route_with("", '{ topic = "x", table = "y" }'), "routes.r.to", "one destination"),
        (route_with("", '{ queue = "x" }'), "routes.r.to.queue", "no such queue"),
        (route_with("", '{ topic = "x", queue = "y" }'), "routes.r.to", "one destination"),
        (route_with("", "{ }"), "routes.r.to", "no destination"),
        (route_with("").replace('["orders"]', '["shop.control"]'), "routes.r.from", "not a log"),
        (route_with("").replace('["orders"]', '["o", "o"]'), "routes.r.from", "twice"),
        (route_with('identity = ["position", "cloudevents"]'), "routes.r.identity", "position"),
        (route_with('identity = ["json:x"]'), "routes.r.identity", "not a rule"),
        (route_with('identity = ["avro:id"]'), "routes.r.identity", "schema"),
        (route_with("identity = []"), "routes.r.identity", "no rule"),
        (route_with('dedup = "route"'), "routes.r.dedup", "only a table"),
        (route_with('order = "random"'), "routes.r.order", "publisher"),
        (
            route_with("batch = { messages = 2000 }\ninflight = { messages = 1000 }"),
            "routes.r.batch.messages",
            "larger",
        ),
        (route_with("inflight = { lanes = 5 }"), "routes.r.inflight.lanes", "not a setting"),
        (route_with('batch = { linger = "5s" }'), "routes.r.batch.linger", "transaction_timeout"),
        (route_with("").replace("routes.r", "routes.decide"), "routes.decide", "reserved"),
        (route_with("").replace("routes.r", 'routes."a.b"'), "routes.a.b", "no dots"),
        (route_with('to_ = "x"'), "routes.r.to_", "not a setting"),
        (table_with('mode = "upsert"'), "routes.r.to.key", "identify a row"),
        (table_with('mode = "upsert", key = ["total"]'), "routes.r.to.key", "not one of columns"),
        (table_with('key = ["id"]'), "routes.r.to.key", "no use"),
        (table_with('sql = "select %(id)s"'), "routes.r.to.sql", "no use"),
        (table_with('mode = "sql"'), "routes.r.to.sql", "needs a statement"),
        (table_with('mode = "sql", sql = "insert into x values (%(nope)s)"'), "routes.r.to.sql", "nope"),
        (table_with('mode = "sql", sql = "insert into x values (%s, %(id)s)"'), "routes.r.to.sql", "'%'"),
        (table_with('mode = "sql", sql = "select f(%(id)s); select 1"'), "routes.r.to.sql", "one statement"),
        (table_with('mode = "sql", sql = "commit /* %(id)s */"'), "routes.r.to.sql", "delivery transaction"),
        (table_with('mode = "sql", sql = "select 1"'), "routes.r.to.sql", "no parameter"),
        (
            table_with("").replace('"shop", columns', '"nope", columns'),
            "routes.r.to.resource",
            "no such resource",
        ),
        (table_with("").replace('"ledger"', '"a;b"'), "routes.r.to.table", "not a table's name"),
        (table_with("").replace('"ledger"', '"public.relay_inbox"'), "routes.r.to.table", "the relay's own"),
        (table_with("").replace("id = ", '"i d" = '), "routes.r.to.columns", "column"),
        (table_with("").replace("ce:id", "json:total"), "routes.r.to.columns", "not a source"),
        (table_with("").replace("ce:id", "avro:total"), "routes.r.to.columns", "schema"),
        (table_with("").replace("ce:id", "kafka:epoch"), "routes.r.to.columns", "not a source"),
    ],
)
def test_a_wrong_route_is_one_fault_with_its_remedy(text: str, key: str, words: str, tmp_path: Path) -> None:
    text = text.replace(", , ", ", ").replace(",  }", " }")

    (fault,) = faults_of(text, tmp_path)

    assert fault.key == key
    assert words in f"{fault.problem} {fault.remedy}"
    assert fault.remedy


@pytest.mark.parametrize(
    "source",
    ["ce:sequence", "json:/a/b~1c", "json:", "header:x-y", "kafka:topic", "kafka:offset", "kafka:value"],
)
def test_sources_of_columns(source: str, tmp_path: Path) -> None:
    good(table_with('mode = "insert"').replace("ce:id", source), tmp_path)


def test_own_sql(tmp_path: Path) -> None:
    words = '''mode = "sql", sql = "update t set n = n + 1, s = 'a;b', p = '5%%' where id = %(id)s;"'''

    config = good(table_with(words), tmp_path)

    assert isinstance(config.routes["r"].to, TableDestination)


def test_an_avro_schema_is_read_once_and_must_be_one(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(
        '{"type": "record", "name": "o", "fields": [{"name": "id", "type": "string"}]}'
    )
    (tmp_path / "wrong.avsc").write_text('{"type": "recrod"}')
    text = table_with('schema = "order.avsc"').replace("ce:id", "avro:id")

    config = good(text, tmp_path)

    assert config.routes["r"].to.schema_ == tmp_path / "order.avsc"
    (fault,) = faults_of(text.replace("order.avsc", "wrong.avsc"), tmp_path)
    assert fault.problem == "not an Avro schema"
    (fault,) = faults_of(text.replace("order.avsc", "absent.avsc"), tmp_path)
    assert "cannot be read" in fault.problem


def test_position_alone_says_what_it_does_not_protect_against(tmp_path: Path) -> None:
    config = good(route_with('identity = ["position"]'), tmp_path)

    assert "not against a producer that sends" in (config.routes["r"].identity_note or "")
    assert good(BASE + ROUTES, tmp_path).routes["to-ledger"].identity_note is None


def test_a_configuration_does_not_change(tmp_path: Path) -> None:
    config = good(BASE, tmp_path)

    with pytest.raises(ValueError, match="frozen"):
        config.relay.name = "other"


def test_sections_that_are_no_sections(tmp_path: Path) -> None:
    faults = faults_of(BASE + "[routes]\nx = 1\n[timings]\n", tmp_path)

    assert {fault.key for fault in faults} == {"routes.x", "timings"}


def test_nothing_at_all_names_what_is_needed(tmp_path: Path) -> None:
    assert {fault.key for fault in faults_of("", tmp_path)} == {"relay", 'kafka."bootstrap.servers"'}


@pytest.mark.parametrize(
    "url", ["postgresql://h/d?c4n4ry=1", "postgresql://[::c4n4ry/d", "sqlite://c4n4ry/x.db", "mysql://c4n4ry"]
)
def test_addresses_that_no_driver_reads(url: str, tmp_path: Path) -> None:
    (fault,) = faults_of(BASE.replace("sqlite:///shop.db", url), tmp_path)

    assert fault.key == "resources.shop.url"
    assert "c4n4ry" not in str(fault)


def test_examine_reads_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(BASE.replace('"a"', '"${env:WHO}"'))

    config, faults = examine(path, {"WHO": "me"})

    assert faults == []
    assert config is not None
    assert config.relay.instance == "me"


@pytest.mark.parametrize(
    ("right", "wrong", "remedy"),
    [
        ('from = ["orders"]', 'from = "orders"', 'a list, such as ["name"]'),
        ('from = ["orders"]', 'from = ["orders"]\nbatch = { messages = "20k" }', "a whole number without quotes or units"),
        ('from = ["orders"]', 'from = ["orders"]\nbatch = { messages = 2.5 }', "a whole number without quotes or units"),
        ('instance = "a"', 'instance = "a"\nallow_plaintext = "maybe"', "true or false"),
        ('instance = "a"', "instance = 7", "a text in quotes"),
    ],
)
def test_a_value_of_a_wrong_kind_is_told_how_to_write_it(right: str, wrong: str, remedy: str, tmp_path: Path) -> None:
    faults = faults_of((BASE + ROUTES).replace(right, wrong, 1), tmp_path)

    assert [f"write {remedy}" for _ in faults] == [fault.remedy for fault in faults]
    assert len(faults) == 1
