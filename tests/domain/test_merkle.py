"""Trees and proofs are those of RFC 6962: known roots, and the definitions of the text itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from onefold.domain.merkle import (
    Peaks,
    consistency_proof,
    continues,
    includes,
    inclusion_proof,
    leaf_hash,
    node_hash,
    root_of,
)

# The entries and roots that implementations of Certificate Transparency are tested with.
ENTRIES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
LEAVES = [leaf_hash(bytes.fromhex(entry)) for entry in ENTRIES]
MANY = [leaf_hash(str(number).encode()) for number in range(41)]


def tree_hash(leaves: Sequence[bytes]) -> bytes:
    """MTH of section 2.1, word for word."""
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return node_hash(tree_hash(leaves[:k]), tree_hash(leaves[k:]))


def path(m: int, leaves: Sequence[bytes]) -> list[bytes]:
    """PATH of section 2.1.1, word for word."""
    if len(leaves) == 1:
        return []
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    if m < k:
        return [*path(m, leaves[:k]), tree_hash(leaves[k:])]
    return [*path(m - k, leaves[k:]), tree_hash(leaves[:k])]


def subproof(m: int, leaves: Sequence[bytes], whole: bool = True) -> list[bytes]:
    """SUBPROOF of section 2.1.2, word for word."""
    if m == len(leaves):
        return [] if whole else [tree_hash(leaves)]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    if m <= k:
        return [*subproof(m, leaves[:k], whole), tree_hash(leaves[k:])]
    return [*subproof(m - k, leaves[k:], False), tree_hash(leaves[:k])]


def subtree(start: int, end: int) -> bytes:
    return tree_hash(MANY[start:end])


@pytest.mark.parametrize("size", range(1, 9))
def test_the_roots_are_the_known_ones(size: int) -> None:
    assert root_of(LEAVES[:size]).hex() == ROOTS[size - 1]


def test_the_root_of_nothing_is_the_hash_of_nothing() -> None:
    assert root_of([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_leaves_may_be_added_in_any_portions() -> None:
    for first in range(len(MANY) + 1):
        for second in range(first, len(MANY) + 1):
            tree = Peaks().extended(MANY[:first]).extended(MANY[first:second])
            assert tree == Peaks().extended(MANY[:second])
            assert second == 0 or tree.root == tree_hash(MANY[:second])
            assert Peaks.of(tree.size, bytes(tree)) == tree


def test_peaks_are_as_many_as_the_size_has_bits() -> None:
    with pytest.raises(ValueError, match="expected 2 hashes for 5 leaves, found 32 bytes"):
        Peaks.of(5, bytes(32))


def test_a_path_is_that_of_the_definition_and_proves_its_leaf_and_no_other() -> None:
    for size in range(1, len(MANY) + 1):
        root = tree_hash(MANY[:size])
        for index in range(size):
            found = inclusion_proof(index, size, subtree)
            assert found == path(index, MANY[:size])
            assert includes(MANY[index], index, size, found, root)
            assert not includes(MANY[index], size - 1 - index, size, found, root) or size - 1 - index == index
            assert not includes(leaf_hash(b"x"), index, size, found, root)
            assert not includes(MANY[index], index, size, [*found, root], root)
            assert not found or not includes(MANY[index], index, size, found[:-1], root)
    assert not includes(MANY[0], 5, 5, [], root)


def test_a_proof_of_consistency_is_that_of_the_definition_and_proves_it() -> None:
    for second in range(1, len(MANY) + 1):
        for first in range(1, second + 1):
            found = consistency_proof(first, second, subtree)
            assert found == subproof(first, MANY[:second])
            roots = tree_hash(MANY[:first]), tree_hash(MANY[:second])
            assert continues(first, roots[0], second, roots[1], found)
            assert not continues(first, leaf_hash(b"x"), second, roots[1], found)
            assert not continues(first, roots[0], second, leaf_hash(b"x"), found)
            assert not continues(first, roots[0], second, roots[1], [*found, roots[0]])
            assert not found or not continues(first, roots[0], second, roots[1], found[:-1])


def test_what_no_proof_can_be_about_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a leaf from 0 to 4, found 5"):
        inclusion_proof(5, 5, subtree)
    with pytest.raises(ValueError, match="expected a size from 1 to 5, found 6"):
        consistency_proof(6, 5, subtree)
    assert not continues(0, MANY[0], 5, MANY[1], [])
    assert not continues(3, MANY[0], 5, MANY[1], [])
