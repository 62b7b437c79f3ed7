"""An address that libpq cannot read is not quoted: the password is in it."""

from __future__ import annotations

import traceback

import pytest

from relay.message.errors import Unreachable
from relay.resources import open_resource


@pytest.mark.parametrize("url", ["postgresql://u:s3cret%zz@h/db", "postgresql://u:s3cret or so@h/db", "postgresql://u:s3cret@[::1/db"])
def test_an_address_that_cannot_be_read_is_not_told(url: str) -> None:
    with pytest.raises(Unreachable, match="the address cannot be read; percent-encode what is special in its password") as caught:
        open_resource("shop", url).session()

    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
