"""Checks before a run starts, one at a time."""

from dataclasses import replace

import pytest

from oddlot import Asynchronous
from oddlot.codecs import Plain
from oddlot.core.support.errors import UsageError
from oddlot.history.goals import Goal
from oddlot.run.checks import check_goal, check_types, measured
from oddlot.wire.codec import Codec
from tests.fits import a_job, fleet
from tests.transcripts import raises


class LikeACodec:
    """A class with the methods of a codec that is not a subclass of Codec."""

    encode = Plain.encode
    decode = Plain.decode

    def __repr__(self) -> str:
        return "LikeACodec()"


class Inherits(Plain):
    """A user-defined codec."""


@pytest.mark.parametrize("codec", [None, Plain(), Inherits()])
def test_codec_or_none_is_accepted(codec: Codec | None) -> None:
    check_types(a_job(), Asynchronous(), fleet(2), codec, {})


def test_object_that_is_no_codec_subclass_is_rejected() -> None:
    """The object lacks the method `of_changes`, required by the engines."""
    with raises(UsageError, "invalid_value", name="codec"):
        check_types(a_job(), Asynchronous(), fleet(2), LikeACodec(), {})


def test_job_of_wrong_type_is_rejected() -> None:
    with raises(UsageError, "invalid_value", name="job", given=5):
        check_types(5, Asynchronous(), fleet(2), None, {})


def test_dollar_goal_without_price_is_rejected() -> None:
    with raises(UsageError, "goal_without_price", given="dollars>=1"):
        check_goal(Goal.parse("dollars>=1", {}, True), "dollars>=1", a_job(), fleet(2))


def test_one_reachable_goal_of_several_is_enough() -> None:
    until = "dollars>=1 or epochs>=2"
    check_goal(Goal.parse(until, {}, True), until, a_job(), fleet(2))


def test_no_metrics_without_eval_data_or_compute() -> None:
    on = fleet(2)
    job = replace(a_job(), eval_data=a_job().train_data)
    assert measured(job, on) == ["loss"]
    assert measured(a_job(), on) == []
    assert measured(job, replace(on, computes=False)) == []
