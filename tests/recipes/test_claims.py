"""Claims in recipes: what they come to, and a line for whatever is wrong with one."""

import pytest
import yaml

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.recipes.claims import Side

TEXT = """\
title: A recipe
settings:
  rounds: 3
  clients: 10
  participants: [2, 4]
methods: [random, fedavg, coprefl: {gamma: [0, 1]}]
select: test
metrics: [accuracy, variance, models, best-round]
claims:
  - claim: CoPreFL's start is more accurate
    source: CoPreFL, AAAI text, Table 1(a)
    of: coprefl
    against: fedavg
    metric: accuracy
    says: better
    where: {participants: 4, rounds: 3}
    printed: 83.29 78.96±2.98
    cause: It is.
  - claim: Fewer participants are worse
    source: CoPreFL, AAAI text, Table 12
    of: {row: coprefl, where: {participants: 2}}
    against: {row: coprefl, where: {participants: 4}}
    metric: variance
    says: worse
    margin: 3
    cause: {printed: Nothing moves., ratio: It does.}
  - claim: The same holds on Tiny-ImageNet
    source: CoPreFL, AAAI text, Table 1(a)
    open: ImageNet
"""


def test_claims_come_to(read):
    better, fewer, imagenet = read().claims
    asked = better.asked
    assert asked.of == Side("coprefl", {"participants": 4})  # What is compared tells a table.
    assert (asked.against.row, asked.metric, asked.says, asked.margin) == (
        "fedavg", "accuracy", "better", 0.5,
    )  # fmt: skip
    assert better.printed == {"of": (83.29, None), "against": (78.96, 2.98)}
    assert (better.causes, better.needs) == ({"": "It is."}, "")
    assert [one.where["participants"] for one in (fewer.asked.of, fewer.asked.against)] == [2, 4]
    assert fewer.asked.margin == 3
    assert fewer.causes == {"printed": "Nothing moves.", "ratio": "It does."}
    assert (imagenet.asked, imagenet.needs) == (None, "ImageNet")


def test_a_recipe_without_claims_has_none(read):
    assert read(TEXT.partition("claims:")[0]).claims == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("of: coprefl\n", "of: copref\n", "line 12: unknown row 'copref': did you mean 'coprefl'?"),
        (
            "metric: accuracy",
            "metric: acuracy",
            "line 14: metric: unknown value 'acuracy': did you mean 'accuracy'?",
        ),
        ("metric: accuracy", "metric: final", "line 14: unknown column of this recipe 'final': "),
        ("says: better", "says: beter", "says: unknown value 'beter': did you mean 'better'?"),
        ("participants: 4, r", "participant: 4, r", "where: unknown setting 'participant': did "),
        ("participants: 4, r", "participants: 5, r", "where: participants = 5; in the settings it"),
        ("    where: {participants: 4, rounds: 3}\n", "", "of: which participants? It is compared"),
        ("against: fedavg", "against: coprefl", "a claim is about two rows, and these are one"),
        ("    against: fedavg\n", "", "line 10: the claim has no 'against', and no 'open' either"),
        (
            "    source: CoPreFL, AAAI text, Table 1(a)\n    of",
            "    of",
            "line 10: the claim has no 'source'",
        ),
        (
            "    open: ImageNet",
            "    open: ImageNet\n    of: fedavg",
            "'of' of a claim that is open",
        ),
        ("cause: It is.", "causes: It is.", "unknown key 'causes': did you mean 'cause'?"),
        ("margin: 3", "margin: 0", "line 25: margin = 0: must be a number above 0"),
        ("margin: 3", "margin: yes", "margin = True: must be a number above 0"),
        ("printed: 83.29 78.96±2.98", "printed: 83.29", "1 figures for 2 columns"),
        (
            "says: worse\n    margin: 3\n",
            "says: equal\n",
            "says: equal: variance is not in percent and needs a margin",
        ),
        (
            "metric: accuracy",
            "metric: best-round",
            "says: best-round can only be equal: no way of it is better",
        ),
        ("{row: coprefl, where: {participants: 2}}", "{where: {participants: 2}}", "no 'row'"),
    ],
)
def test_what_is_wrong_is_one_line(read, old, new, message):
    assert old in TEXT
    with pytest.raises(SettingsError) as caught:
        read(TEXT.replace(old, new))
    assert message in str(caught.value)
    assert str(caught.value).count("line ") >= 1
    assert "\n" not in str(caught.value)


def test_a_changed_recipe_keeps_the_claims_that_it_has_the_rows_of(read):
    found = read(changes=["participants=4"])
    assert [one.claim for one in found.claims] == [
        "CoPreFL's start is more accurate", "The same holds on Tiny-ImageNet",
    ]  # fmt: skip
    assert found.claims[0].asked.of == Side("coprefl", {})
    # It says so in what is kept of it, which can be read again.
    assert len(yaml.safe_load(found.to_yaml())["claims"]) == 2
    assert len(read(found.to_yaml()).claims) == 2
    without = TEXT.partition("  - claim: The same")[0]
    assert "claims" not in yaml.safe_load(read(without, ["methods=[random]"]).to_yaml())


def test_a_change_hides_no_mistake(read):
    """A claim that the file itself has no row of is no claim that the change left without one."""
    with pytest.raises(SettingsError, match="unknown row 'copref'"):
        read(TEXT.replace("of: coprefl\n", "of: copref\n"), ["participants=4"])


def test_where_each_value_is_a_row_a_claim_names_one(read):
    text = TEXT.replace("select: test", "select: all").replace(
        "of: coprefl\n", "of: coprefl:gamma=1.0\n"
    )
    assert read(text).claims[0].asked.of.row == "coprefl:gamma=1.0"
