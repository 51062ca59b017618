"""What a rank says when another one is gone."""

import pytest

from pretrainkit.launch.rank import lost_peer


@pytest.mark.parametrize("words", ["Connection closed by peer", "Connection reset by peer", "Broken pipe"])
def test_a_lost_rank_is_told_from_other_failures(words):
    assert lost_peer(RuntimeError(f"[gloo/transport/tcp/pair.cc:553] {words} [127.0.0.1]:9637")) == words
    assert lost_peer(ValueError(words)) is None
    assert lost_peer(RuntimeError("shapes do not match")) is None
