from __future__ import annotations

import pytest

from queen.errors import OptionError
from queen.serve.upstream.address import Address, read_address, read_headers


@pytest.mark.parametrize(("url", "address"), [
    ("http://triton:8000", Address("http", "triton", 8000)),
    ("http://triton", Address("http", "triton", 80)),
    ("https://models.example/prefix/v2/", Address("https", "models.example", 443, "/prefix")),
    ("grpc://triton", Address("grpc", "triton", 8001)),
    ("grpcs://[::1]:9000", Address("grpcs", "::1", 9000)),
])  # fmt: skip
def test_an_address_is_read(url, address):
    assert read_address(url) == address
    assert read_address(str(address)) == address


@pytest.mark.parametrize("url", [
    "", "triton:8000", "ftp://triton", "http://", "http://a:b:c", "http://host:99999", "http://host/?x=1",
    "http://host/#x", "http://ho st", "http://h\u00f6st", "grpc://host/path", "http://user:secret@host",
])  # fmt: skip
def test_what_is_no_address_is_refused_without_a_word_of_a_password(url):
    with pytest.raises(OptionError) as caught:
        read_address(url)
    assert "secret" not in str(caught.value)


def test_headers_are_read_and_a_wrong_one_is_not_repeated():
    assert read_headers(["Authorization: Bearer a:b"]) == (("Authorization", "Bearer a:b"),)
    for line in ("secret", ": secret", "a b: secret", "Name: sec\r\nret", "Name: secr\u00e9t"):
        with pytest.raises(OptionError) as caught:
            read_headers([line])
        assert "sec" not in str(caught.value)
