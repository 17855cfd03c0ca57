"""The toys again, as plain loops."""

import itertools

import numpy as np


def catch_observation(rows: int, columns: int, row: int, pellet: int, paddle: int) -> np.ndarray:
    board = np.zeros((rows, columns), np.float32)
    board[row, pellet] = 1
    board[rows - 1, paddle] = 1
    return board


def catch_episode(rows: int, columns: int, pellet: int, actions) -> tuple[list[np.ndarray], list[float]]:
    """Return what an episode shows before each action, and the reward of each."""
    paddle, observations, rewards = columns // 2, [], []
    for row, action in enumerate(actions):
        observations.append(catch_observation(rows, columns, row, pellet, paddle))
        paddle = min(max(paddle + {0: -1, 1: 0, 2: 1}[action], 0), columns - 1)
        rewards.append(0.0 if row < rows - 2 else (1.0 if paddle == pellet else -1.0))
    return observations, rewards


def catch_expected_return(rows: int, columns: int, probabilities: np.ndarray) -> float:
    """Add up all pellets and all sequences of actions; `probabilities` are [rows - 1, pellets, paddles, 3]."""
    total = 0.0
    for pellet in range(columns):
        for actions in itertools.product(range(3), repeat=rows - 1):
            observations, rewards = catch_episode(rows, columns, pellet, actions)
            weight = 1.0 / columns
            for row, action in enumerate(actions):
                paddle = int(np.argmax(observations[row][rows - 1]))
                weight *= probabilities[row, pellet, paddle, action]
            total += weight * sum(rewards)
    return total


def catch_look_ahead_bound(rows: int, columns: int, num_moves: int) -> float:
    """Try each blind beginning; after it, each pellet gets its best ending."""
    best = -np.inf
    for blind in itertools.product(range(3), repeat=rows - 1 - num_moves):
        returns = [
            max(
                sum(catch_episode(rows, columns, pellet, blind + seeing)[1])
                for seeing in itertools.product(range(3), repeat=num_moves)
            )
            for pellet in range(columns)
        ]
        best = max(best, float(np.mean(returns)))
    return best


def random_walk_values(num_states: int, left_reward: float) -> np.ndarray:
    """Solve v = r + P v for the symmetric walk whose right end pays 1."""
    transition, reward = np.zeros((num_states, num_states)), np.zeros(num_states)
    for state in range(num_states):
        for successor in (state - 1, state + 1):
            if successor < 0:
                reward[state] += 0.5 * left_reward
            elif successor == num_states:
                reward[state] += 0.5
            else:
                transition[state, successor] = 0.5
    return np.linalg.solve(np.eye(num_states) - transition, reward)


def two_colours_step(cells, action, sign):
    """Return the agent's next cell and the reward, of the cells of blue, red and agent on 5 x 5."""
    row, column = divmod(cells[2], 5)
    row_move, column_move = {0: (-1, 0), 1: (1, 0), 2: (0, -1), 3: (0, 1)}[action]
    row, column = min(max(row + row_move, 0), 4), min(max(column + column_move, 0), 4)
    agent = 5 * row + column
    return agent, {cells[0]: sign, cells[1]: -sign}.get(agent, -0.04)


def discounting_chain_values(best, chain, time, discount):
    """Add up the discounted rewards of the rest of an episode, step by step."""
    value, weight = 0.0, 1.0
    for step in range(time + 1, 101):
        if step == (1, 3, 10, 30, 100)[chain]:
            value += weight * (1.1 if chain == best else 1.0)
        weight *= discount
    return value
