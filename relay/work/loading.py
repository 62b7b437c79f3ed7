"""Finds the handlers of an application: a module's name, or a file's path, with ``:name`` where there are several."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from relay.config.model import RelayConfig
from relay.message.errors import ConfigError, RelayError
from relay.message.limits import raise_limit
from relay.work.subscriber import Handler


def load_handler(app: str, queue: str) -> Handler:
    """Return the handler of ``queue`` in ``module``, ``module:name``, ``file.py`` or ``file.py:name``; raises ConfigError."""
    where, _, name = app.partition(":")
    try:
        module = _module(where)
    except RelayError:
        raise
    except (Exception, SystemExit) as error:  # whatever the application raises while it is loaded: not the relay's failure
        raise_limit(error)
        raise ConfigError(f"{where} cannot be loaded: {type(error).__name__}: {error}{_place(error)}; correct it there") from error
    found = {key: value for key, value in vars(module).items() if isinstance(value, Handler)}
    if name:
        if name not in found:
            raise ConfigError(
                f"{app}: {where} has no handler called {name!r}; there is {', '.join(found) or 'none'}"
            )
        found = {name: found[name]}
    ours = list({id(handler): handler for handler in found.values() if handler.queue == queue}.values())
    if len(ours) == 1:
        return ours[0]
    if not ours:
        others = ", ".join(sorted({handler.queue for handler in found.values()})) or "no queue"
        raise ConfigError(f'{app} handles {others}, not {queue!r}: write @subscriber("{queue}") there')
    raise ConfigError(f"{app} has {len(ours)} handlers of {queue!r}: add :name to choose one")


def check_resources(handler: Handler, config: RelayConfig) -> None:
    """Raise ConfigError if a handler writes where the configuration has no resource, or one that cannot take part."""
    for resource in handler.also if handler.resource is None else (handler.resource, *handler.also):
        if resource not in config.resources:
            known = ", ".join(config.resources) or "none"
            raise ConfigError(
                f"@subscriber names resource {resource!r}: the configuration has {known}; add [resources.{resource}]"
            )
    for resource in handler.also:
        if config.resources[resource].kind != "postgresql":
            raise ConfigError(
                f"@subscriber(also=[{resource!r}]): only PostgreSQL prepares transactions; let {resource!r} decide "
                "(resource=), or write there from a handler of its own"
            )


def _place(error: BaseException) -> str:
    """Return where it was raised, unless it says so itself: of a slip in the file the last frame is the interpreter's."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return ""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f" ({Path(last.filename).name}, line {last.lineno})"


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        if not where or where.startswith("."):
            raise _no_module(where)
        # An application beside the caller is found as `python -m` would find it.
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{where}.".startswith(f"{error.name}."):
                raise
            raise _no_module(where) from None
    path = Path(where).resolve()
    if not path.is_file():
        raise ConfigError(f"{where}: there is no such file; give the path of a .py file or a module's name")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _no_module(where: str) -> ConfigError:
    return ConfigError(f"{where!r}: there is no such module; give a module's name or the path of a .py file")
