"""The example of channel allocation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from channel_allocation.__main__ import main
from channel_allocation.agent import DISCOUNT, Agent, AgentSettings
from channel_allocation.controller import Controller, cost_to_go
from channel_allocation.environment import ChannelEnv
from channel_allocation.evaluation import evaluate, evaluate_bound
from channel_allocation.plants import (
    NOISE_VARIANCE,
    Channels,
    Plant,
    channels_of,
    check_controllable,
    random_plant,
)
from channel_allocation.policies import baseline, baselines, expected_cost
from channel_allocation.training import CHECKPOINT, Training, TrainingSettings, first_rates
from gymnasium.utils.env_checker import check_env

SMALL = TrainingSettings(epochs=4, horizon=40, units=16)


@pytest.fixture(scope="module")
def plant() -> Plant:
    return random_plant(4, 0)


@pytest.fixture(scope="module")
def controller(plant: Plant) -> Controller:
    return Controller(plant, first_rates(plant, channels_of(4)))


def test_gymnasium_accepts_the_environment(plant: Plant, controller: Controller) -> None:
    check_env(ChannelEnv(plant, channels_of(4), controller), skip_render_check=True)


def test_channels_succeed_as_often_as_their_chains_say(plant: Plant, controller: Controller) -> None:
    channels = channels_of(4)
    environment = ChannelEnv(plant, channels, controller)
    environment.reset(seed=0)
    steps, arrived = 4_000, np.zeros(4)
    for _ in range(steps):
        arrived += environment.step(np.arange(3))[4]["arrived"]
    assert arrived[:3] / steps == pytest.approx(channels.success, abs=0.03)
    assert arrived[3] == 0


def test_riccati_matrix_is_the_cost_of_its_controller() -> None:
    plant = random_plant(2, 1)
    p = cost_to_go(plant, np.ones(2))
    noise = NOISE_VARIANCE * float(np.trace(p))
    assert evaluate_bound(plant, 20).median == pytest.approx(noise, rel=0.1)


def test_expected_costs_are_means_over_the_channels(plant: Plant, controller: Controller) -> None:
    random = np.random.default_rng(0)
    x, rates = random.normal(size=8), np.array([0.9, 0.5, 0.0, 0.3])
    u = controller.inputs(x, (rates > 0).astype(float))
    costs = []
    for _ in range(20_000):
        sent = u * (random.random(4) < rates)
        moved = plant.a @ x + plant.b @ sent
        costs.append(moved @ controller.p @ moved + plant.input_cost * sent @ sent)
    assert expected_cost(plant, controller, x, rates) == pytest.approx(np.mean(costs), rel=0.02)


def test_exhaustive_search_is_at_least_as_good_as_greedy_search(plant: Plant, controller: Controller) -> None:
    channels, random = channels_of(4), np.random.default_rng(0)
    found = baselines(plant, channels, controller)
    for _ in range(5):
        x = 3 * random.normal(size=8)
        costs = {}
        for name in ("greedy", "exhaustive", "largest_norm"):
            rates = np.zeros(4)
            for channel, one in enumerate(found[name](x, random)):
                rates[one] = 1 - (1 - rates[one]) * (1 - channels.success[channel])
            costs[name] = expected_cost(plant, controller, x, rates)
        assert costs["exhaustive"] <= costs["greedy"] + 1e-9
        assert costs["exhaustive"] <= costs["largest_norm"] + 1e-9


def test_large_searches_are_left_out() -> None:
    plant = random_plant(8, 0)
    channels = channels_of(8)
    found = baselines(plant, channels, Controller(plant, first_rates(plant, channels)))
    assert "exhaustive" not in found
    assert sorted(found["largest_norm"](np.arange(16.0), np.random.default_rng(0))) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("targets", ["terminal", "chain"])
def test_choices_have_the_targets_of_their_form(targets: str) -> None:
    agent = Agent(AgentSettings(4, 3, units=8, targets=targets), seed=0)
    choices, states = agent.choose(agent.state(np.ones((1, 8))), np.array([[2, 0, 2]]))
    assert choices.tolist() == [[2, 0, 2]]
    assert states[3, 0, 8:].reshape(3, 4).nonzero()[1].tolist() == [2, 0, 2]
    agent.remember(states, choices, np.array([-3.0], np.float32), np.zeros((1, 8)))
    rewards, discounts = agent.memory.reward[:3].tolist(), agent.memory.discount[:3].tolist()
    last = pytest.approx(DISCOUNT)
    if targets == "terminal":
        assert (rewards, discounts) == ([-3.0] * 3, [last] * 3)
        assert not agent.memory.after[:3].any()
    else:
        assert (rewards, discounts) == ([0.0, 0.0, -3.0], [1.0, 1.0, last])
        assert torch.equal(agent.memory.after[0], torch.from_numpy(states[1, 0]))


def test_the_target_network_moves_slowly() -> None:
    agent = Agent(AgentSettings(4, 3, units=8), seed=0)
    before = [parameter.clone() for parameter in agent.target.parameters()]
    _, states = agent.choose(agent.state(np.ones((1, 8))), np.array([[2, 0, 2]]))
    agent.remember(states, np.array([[2, 0, 2]]), np.array([-3.0], np.float32), np.zeros((1, 8)))
    agent.fit(torch.Generator().manual_seed(0))
    for old, slow, fast in zip(before, agent.target.parameters(), agent.network.parameters(), strict=True):
        assert torch.allclose(slow, old + 0.005 * (fast - old))


def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = Training(SMALL)
    costs = [epoch.cost for epoch in whole.run()]
    stopped = Training(SMALL).run(tmp_path)
    assert [next(stopped).cost for _ in range(3)] == costs[:3]
    stopped.close()  # type: ignore[attr-defined]
    resumed = Training.load(tmp_path, SMALL)
    assert [epoch.cost for epoch in resumed.run(tmp_path)] == costs[3:]
    for one, other in zip(whole.agent.network.parameters(), resumed.agent.network.parameters(), strict=True):
        assert torch.equal(one, other)


def test_training_learns_what_a_random_allocation_does_not_know() -> None:
    training = Training(TrainingSettings(epochs=10, horizon=300, units=64))
    list(training.run())
    plant, channels = training.plant, training.channels
    learnt = evaluate(plant, channels, lambda _: training.agent.allocate, training.controller(), 4)
    random = evaluate(plant, channels, baseline(plant, channels, "uniform"), episodes=4)
    assert learnt.median < 0.5 * random.median
    assert learnt.median > evaluate_bound(plant, 4).median


def test_commands_train_evaluate_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, plot = tmp_path / "run", tmp_path / "plot.svg"
    few = ["--epochs", "3", "--horizon", "20", "--units", "8", "--environments", "2"]
    assert main(["train", "--out", str(folder), *few]) == 0
    assert main(["evaluate", str(folder), "--episodes", "1"]) == 0
    assert main(["plot", str(folder), "--out", str(plot)]) == 0
    out = capsys.readouterr().out
    assert out.count("epoch ") == 3
    assert "exhaustive" in out
    assert plot.read_text().count("<path") > 10


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "run", "--subsystems", "8"], "N = 4, not 8"),
        (["evaluate", "missing"], "no checkpoint"),
        (["evaluate", "damaged"], "damaged"),
        (["train", "--out", "run"], "--resume"),
        (["train", "--out", "run", "--resume", "--subsystems", "8"], "subsystems = 4"),
        (["train", "--out", "new", "--subsystems", "1"], "fewer channels"),
        (["train", "--out", "new", "--targets", "none"], "terminal, chain"),
        (["plot", "run"], "evaluate first"),
    ],
)
def test_bad_input_is_rejected(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    list(Training(replace(SMALL, epochs=1)).run(Path("run")))
    Path("damaged").mkdir()
    (Path("damaged") / CHECKPOINT).write_bytes(b"no checkpoint")
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_impossible_plants_and_channels_are_rejected(plant: Plant, controller: Controller) -> None:
    with pytest.raises(ValueError, match="fewer channels"):
        ChannelEnv(plant, Channels(*np.full((4, 4), 0.5)), controller)
    with pytest.raises(ValueError, match="channel 1 never succeeds"):
        Channels(np.full(2, 0.1), np.full(2, 0.9), np.array([0.9, 0.0]), np.zeros(2))
    with pytest.raises(ValueError, match="from 0 to 1"):
        Channels(*np.full((4, 2), 1.5))
    with pytest.raises(ValueError, match="cannot be controlled"):
        check_controllable(replace(plant, b=np.zeros_like(plant.b)))
