"""Families x chunk sizes x cache x policies: every pair of settings always, every combination in the long run."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from backend.models import registry
from backend.models.hf_adapter import TEXT_FAMILIES
from backend.sched.policy import POLICIES
from tests.equivalence.harness import (
    FAMILIES,
    IMAGE_FAMILIES,
    Adapters,
    Answers,
    assert_matches,
    generate,
    limits,
    prompts_of,
    request_of,
)

Setting = tuple[str, int, bool, str]

WHOLE = 1024
ALL: tuple[Setting, ...] = tuple(product(FAMILIES, (1, 7, 16, 64, WHOLE), (False, True), POLICIES))


def pairs_of(setting: Setting) -> set[tuple[tuple[int, object], ...]]:
    return set(combinations(enumerate(setting), 2))


def pairwise(settings: tuple[Setting, ...]) -> list[Setting]:
    """Few of `settings` that hold every pair of values of two parameters: greedily, whichever adds most."""
    missing = set().union(*map(pairs_of, settings))
    chosen: list[Setting] = []
    while missing:
        best = max(settings, key=lambda setting: len(pairs_of(setting) & missing))
        chosen.append(best)
        missing -= pairs_of(best)
    return chosen


def check(setting: Setting, adapter: Adapters, expected: Answers) -> None:
    """Prompts that come one after the other, and once more where there is a cache to offer something."""
    family, budget, caching, policy = setting
    model = adapter(family)
    prompts = prompts_of(family)
    answers = dict(expected(family))
    requests = [request_of(model, p) for p in prompts]
    if caching:
        requests += [request_of(model, p, f"{p.name} again") for p in prompts]
        answers |= {f"{name} again": answer for name, answer in answers.items()}
    arrivals = (0, 2, 4, 6, *(300,) * len(prompts))
    outcome = generate(model, requests, limits(budget, enable_prefix_caching=caching), policy=policy, arrivals=arrivals)
    assert_matches(answers, outcome.tokens)


@pytest.mark.parametrize("setting", pairwise(ALL), ids=lambda s: "-".join(map(str, s)))
def test_every_pair_of_settings(setting: Setting, adapter: Adapters, expected: Answers) -> None:
    check(setting, adapter, expected)


@pytest.mark.long
@pytest.mark.parametrize("setting", ALL, ids=lambda s: "-".join(map(str, s)))
def test_every_combination(setting: Setting, adapter: Adapters, expected: Answers) -> None:
    check(setting, adapter, expected)


def test_pairs_are_complete_and_few() -> None:
    """Counted by hand: each two of the four parameters, each value of the one with each of the other."""
    chosen = pairwise(ALL)
    sizes = (len(FAMILIES), 5, 2, len(POLICIES))
    num_pairs = sum(one * other for one, other in combinations(sizes, 2))
    for first, second in combinations(range(4), 2):
        together = {(setting[first], setting[second]) for setting in chosen}
        assert len(together) == sizes[first] * sizes[second]
    assert len(set().union(*map(pairs_of, chosen))) == num_pairs
    assert len(set().union(*map(pairs_of, chosen[:-1]))) < num_pairs, "the last one adds nothing"
    assert len(chosen) < len(ALL) / 4


def test_every_family_that_is_claimed_has_its_row() -> None:
    """Text families share one adapter, and each is compared in `test_text_families`; all others are rows here."""
    assert set(registry.FAMILIES) - set(TEXT_FAMILIES) == set(IMAGE_FAMILIES)
    assert set(FAMILIES) - set(IMAGE_FAMILIES) <= set(TEXT_FAMILIES)
