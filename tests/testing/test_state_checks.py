"""`StateChecks` also finds errors long after an epoch is complete."""

from oddlot import Synchronous
from oddlot.core.commands import Step
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from oddlot.testing.state_checks import StateChecks
from tests.fits import BATCH, a_job, fleet, trained


def test_sample_merged_again_in_a_complete_epoch_is_found() -> None:
    run, _ = trained(a_job(), Synchronous(), fleet(), "epochs>=3")
    conductor = Recipe(a_job(), Synchronous(), fleet(), RunConfig(until="epochs>=3")).conductor()
    state = StateChecks()
    for record in run.records:
        conductor.handle(record.event, record.now)
        state.note(record, conductor)
        assert not list(state.faults(conductor))
    assert state.whole == 3
    again = next(r for r in run.records if any(isinstance(action, Step) for action in r.actions))
    state.note(again, conductor)
    faults = list(state.faults(conductor))
    assert len(faults) >= BATCH
    assert {fault.code for fault in faults[:BATCH]} == {"position_repeated"}
