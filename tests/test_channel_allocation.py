"""The example of channel allocation."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from channel_allocation.plot import cost_ticks, epoch_ticks, save_plot
from channel_allocation.policies import Allocate, baseline, baselines, expected_costs
from channel_allocation.training import CHECKPOINT, RATE_EPOCHS, Training, TrainingSettings, first_rates
from gymnasium.utils.env_checker import check_env

SMALL = TrainingSettings(epochs=5, exploration_epochs=5, horizon=40, units=16)
POSITIVE = ("subsystems", "channels", "epochs", "exploration-epochs", "horizon", "units", "environments")


@pytest.fixture(scope="module")
def plant() -> Plant:
    return random_plant(4, 0)


@pytest.fixture(scope="module")
def controller(plant: Plant) -> Controller:
    return Controller(plant, first_rates(plant, channels_of(4)))


def _always(*subsystems: int) -> Allocate:
    """Return an allocation that is the same in each step."""
    return lambda _x, _random: np.array(subsystems)


def _fit(agent: Agent) -> None:
    """Make one optimizer step on the choices of one step."""
    choices, states = agent.choose(agent.state(np.ones((1, 8))), np.array([[2, 0, 2]]))
    agent.remember(states, choices, np.array([-3.0], np.float32), np.zeros((1, 8)))
    agent.fit(torch.Generator().manual_seed(0))


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
    assert evaluate_bound(plant, channels_of(2), 20).median == pytest.approx(noise, rel=0.1)


def test_the_bound_has_the_noise_of_the_other_allocations() -> None:
    plant = random_plant(2, 1)
    plant = replace(plant, b=plant.b * [1, 0])  # the second subsystem needs no channel
    channels = Channels(*np.array([[0.0], [0.0], [1.0], [1.0]]))
    found = evaluate(plant, channels, lambda _: _always(0), Controller(plant, np.ones(2)), 2)
    assert evaluate_bound(plant, channels, 2).episodes == pytest.approx(found.episodes)


def test_controllers_get_the_success_rates_of_an_allocation(plant: Plant) -> None:
    controllers: list[Controller] = []

    def allocation(controller: Controller) -> Allocate:
        controllers.append(controller)
        return _always(0, 1, 2)

    evaluate(plant, channels_of(4), allocation, episodes=1)
    assert controllers[-1].rates == pytest.approx([*channels_of(4).success, 0.0], abs=0.1)


def test_diverged_episodes_are_counted(plant: Plant, controller: Controller) -> None:
    found = evaluate(plant, channels_of(4), lambda _: _always(3, 3, 3), controller, 2)
    assert found.diverged == 2


def test_expected_costs_are_means_over_the_channels(plant: Plant, controller: Controller) -> None:
    random = np.random.default_rng(0)
    x, rates = random.normal(size=8), np.array([[0.9, 0.5, 0.0, 0.3], [0.2, 0.0, 0.7, 0.0]])
    costs = []
    for one in rates:
        u = controller.inputs(x, (one > 0).astype(float))
        sent = u * (random.random((20_000, 4)) < one)
        moved = plant.a @ x + sent @ plant.b.T
        found = (moved @ controller.p * moved).sum(axis=1) + plant.input_cost * (sent**2).sum(axis=1)
        costs.append(found.mean())
    assert expected_costs(plant, controller, x, rates) == pytest.approx(costs, rel=0.02)


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
            costs[name] = expected_costs(plant, controller, x, rates[np.newaxis])[0]
        assert costs["exhaustive"] <= costs["greedy"] + 1e-9
        assert costs["exhaustive"] <= costs["largest_norm"] + 1e-9


def test_intelligent_random_follows_the_spectral_radii(plant: Plant, controller: Controller) -> None:
    allocate, random = (
        baselines(plant, channels_of(4), controller)["intelligent_random"],
        np.random.default_rng(0),
    )
    drawn = np.bincount(np.concatenate([allocate(np.zeros(8), random) for _ in range(4_000)]), minlength=4)
    assert drawn / drawn.sum() == pytest.approx(plant.radii / plant.radii.sum(), abs=0.015)


def test_round_robin_serves_all_in_turn(plant: Plant, controller: Controller) -> None:
    allocate, random = baselines(plant, channels_of(4), controller)["round_robin"], np.random.default_rng(0)
    assert [allocate(np.zeros(8), random).tolist() for _ in range(3)] == [[0, 1, 2], [3, 0, 1], [2, 3, 0]]


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


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_target_network_moves_slowly(shift: float) -> None:
    agent = Agent(AgentSettings(4, 3, units=8), seed=0)
    with torch.no_grad():
        list(agent.target.parameters())[-1].add_(shift)
    before = [parameter.clone() for parameter in agent.target.parameters()]
    _fit(agent)
    for old, slow, fast in zip(before, agent.target.parameters(), agent.network.parameters(), strict=True):
        assert torch.allclose(slow, old + 0.005 * (fast - old))


def test_goals_are_values_of_the_target_network() -> None:
    agent, other = (Agent(AgentSettings(4, 3, units=8), seed=0) for _ in range(2))
    with torch.no_grad():
        list(other.target.parameters())[-1].add_(10.0)  # the value of the next state outweighs the reward
    _fit(agent)
    _fit(other)
    biases = [list(one.network.parameters())[-1] for one in (agent, other)]
    assert not torch.equal(*biases)


def test_controllers_adapt_in_training_and_the_learning_rate_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    given, reset = [], ChannelEnv.reset

    def noted(self: ChannelEnv, **options: Any) -> Any:
        found = reset(self, **options)
        given.append(self.controller.rates)
        return found

    monkeypatch.setattr(ChannelEnv, "reset", noted)
    training = Training(replace(SMALL, epochs=RATE_EPOCHS + 1, horizon=1))
    rates, learning_rates = [], []
    for _ in training.run():
        rates.append(np.mean(training.rates, axis=0))
        learning_rates.append(training.agent.optimizer.param_groups[0]["lr"])
    assert given[-1] == pytest.approx(rates[-2])
    assert learning_rates[-1] == pytest.approx(learning_rates[0] / 3)


def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = Training(SMALL)
    costs = [epoch.cost for epoch in whole.run()]
    list(Training(replace(SMALL, epochs=3)).run(tmp_path))
    resumed = Training.load(tmp_path, {"epochs": 5})
    assert resumed.settings == SMALL
    assert [epoch.cost for epoch in resumed.done] == costs[:3]
    assert [epoch.cost for epoch in resumed.run(tmp_path)] == costs[3:]
    for one, other in zip(whole.agent.network.parameters(), resumed.agent.network.parameters(), strict=True):
        assert torch.equal(one, other)


def test_training_learns_what_a_random_allocation_does_not_know() -> None:
    training = Training(TrainingSettings(3, epochs=8, exploration_epochs=5, horizon=300, units=32))
    list(training.run())
    plant, channels = training.plant, training.channels
    learnt = evaluate(plant, channels, lambda _: training.agent.allocate, training.controller(), 2)
    random = evaluate(plant, channels, baseline(plant, channels, "intelligent_random"), episodes=2)
    assert learnt.median < 0.8 * random.median
    assert learnt.median > evaluate_bound(plant, channels, 2).median


def test_commands_train_evaluate_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, plot = tmp_path / "run", tmp_path / "plot.svg"
    few = ["--epochs", "3", "--horizon", "20", "--units", "8", "--environments", "2", "--channels", "2"]
    assert main(["train", "--out", str(folder), *few]) == 0
    assert main(["train", "--out", str(folder), "--resume"]) == 0
    assert main(["evaluate", str(folder), "--episodes", "1"]) == 0
    assert main(["plot", str(folder), "--out", str(plot)]) == 0
    out = capsys.readouterr().out
    assert out.count("epoch ") == 3
    assert "has 3 epochs" in out
    assert "M = 2" in out
    assert "exhaustive" in out
    assert plot.read_text().count("<path") > 10


def test_plots_have_round_ticks_and_separate_points(tmp_path: Path) -> None:
    assert cost_ticks(83.6, 166) == [50, 100, 200]
    assert cost_ticks(50, 100) == [50, 100]
    assert cost_ticks(3, 30_000) == [1, 10, 100, 1_000, 10_000, 100_000]
    assert epoch_ticks(20) == [5, 10, 15, 20]
    costs = {"learnt": [(4, 45.0)], "greedy": [(4, 41.0)], "uniform": [(4, 9_000.0)]}
    save_plot(tmp_path / "plot.svg", {"N = 4": [(1, 100.0), (2, 50.0)]}, costs)
    text = (tmp_path / "plot.svg").read_text()
    points = [
        re.findall(r'x="([\d.]+)" y="[\d.]+" text-anchor="middle">' + one, text)
        for one in ("45.0", "41.0", "9,000")
    ]
    assert len({one for found in points for one in found}) == 3


def test_an_interrupted_training_says_how_to_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Training.save

    def interrupted(self: Training, folder: Path) -> None:
        save(self, folder)
        if len(self.done) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Training, "save", interrupted)
    few = ["--horizon", "10", "--units", "8"]
    assert main(["train", "--out", str(tmp_path), *few]) == 130
    message = capsys.readouterr().err
    assert "epoch 2" in message
    assert "--resume" in message


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a training, `run`, and a damaged one."""
    folder = tmp_path_factory.mktemp("allocation")
    list(Training(replace(SMALL, epochs=1)).run(folder / "run"))
    (folder / "damaged").mkdir()
    (folder / "damaged" / CHECKPOINT).write_bytes(b"no checkpoint")
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("evaluate run --subsystems 8", "N = 4, not 8"),
        ("evaluate run --episodes 0", "--episodes: 0"),
        ("evaluate missing", "no checkpoint"),
        ("evaluate damaged", "damaged"),
        ("train --out run", "--resume"),
        ("train --out run --resume --subsystems 8", "subsystems = 4"),
        ("train --out new --subsystems 1", "fewer channels"),
        ("train --out new --channels 4", "fewer channels"),
        ("train --out new --targets none", "terminal, chain"),
        *((f"train --out new --{name} 0", f"--{name}: 0") for name in POSITIVE),
        ("train --out new --seed -1", "--seed: -1"),
        ("train --out new --plant-seed -1", "--plant-seed: -1"),
        ("plot run", "evaluate first"),
    ],
)
def test_bad_input_is_rejected(
    arguments: str,
    words: str,
    trained: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(trained)
    try:
        code = main(arguments.split())
    except SystemExit as stop:  # of argparse
        code = stop.code  # type: ignore[assignment]
    assert code == 2
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
