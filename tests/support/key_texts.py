"""What the parts of a key's text may be, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

HEX, URL_SAFE = "0123456789abcdef", "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
IDS = st.text(HEX, min_size=16, max_size=16)
SECRETS = st.text(URL_SAFE, min_size=43, max_size=43)
