# SPDX-License-Identifier: Apache-2.0
"""The sample order: worked values, one-to-one for every size, and an exact split over seats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yeto.text.order import Permutation, holdout, holdout_key, seat_rows, share_size


def test_worked_values() -> None:
    assert [Permutation(10, 0, 0)[i] for i in range(10)] == [8, 4, 0, 1, 5, 3, 6, 9, 2, 7]
    assert [Permutation(10, 0, 1)[i] for i in range(10)] == [4, 5, 1, 9, 2, 6, 0, 8, 7, 3]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 1000])
def test_every_row_is_visited_once_an_epoch(count: int) -> None:
    for seed in (0, 1, 2**63 - 1):
        permutation = Permutation(count, seed, 3)
        assert sorted(permutation[i] for i in range(count)) == list(range(count))


def test_a_position_of_a_huge_range_needs_no_stored_array() -> None:
    count = 2**31 + 11
    permutation = Permutation(count, 0, 0)
    seen = {permutation[i] for i in (*range(2000), count - 1)}
    assert len(seen) == 2001 and all(0 <= row < count for row in seen)
    with pytest.raises(IndexError):
        permutation[count]


def test_epochs_and_seeds_give_other_orders() -> None:
    orders = {
        tuple(Permutation(50, seed, epoch)[i] for i in range(50))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


@given(st.integers(1, 200), st.integers(1, 9), st.integers(0, 5), st.integers(0, 2**63 - 1))
def test_seats_partition_the_rows(count: int, seats: int, epoch: int, seed: int) -> None:
    shares = [list(seat_rows(count, seed, epoch, seat, seats)) for seat in range(seats)]
    assert sorted(row for share in shares for row in share) == list(range(count))
    assert [len(share) for share in shares] == [share_size(count, s, seats) for s in range(seats)]


def test_held_out_rows_depend_on_the_row_alone() -> None:
    digests = [bytes([i]) * 32 for i in range(40)]
    chosen = {digests[i] for i in holdout(digests, 8)}
    assert len(chosen) == 8
    assert {sorted(digests)[i] for i in holdout(sorted(digests), 8)} == chosen
    assert max(map(holdout_key, chosen)) < min(holdout_key(d) for d in digests if d not in chosen)


def test_equal_rows_are_never_on_both_sides() -> None:
    digests = [bytes([i % 5]) * 32 for i in range(20)]
    for rows in range(1, 20):
        chosen = holdout(digests, rows)
        inside = {digests[i] for i in chosen}
        assert len(chosen) >= rows
        assert all((digests[i] in inside) == (i in chosen) for i in range(20))
    assert holdout(digests, 0) == set()
